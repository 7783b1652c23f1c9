"""Markdown for a check: cells in code spans, cut by whole rows in bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.report.json import to_json
from harness.report.markdown import CHECK_LIMIT, code, render_markdown

CASES = {case["id"]: case for case in map(json.loads, (Path(__file__).parent.parent / "cases/diff.jsonl").read_text().splitlines())}


def with_findings(document, details):
    """The document with one failed cell for each text."""
    failed = next(f for f in document["findings"] if f["verdict"] == "BROKEN")
    return {**document, "findings": [{**failed, "detail": text} for text in details]}


def rows(markdown: str) -> list[str]:
    return [line for line in markdown.splitlines() if line.startswith("| `norm/")]


def test_golden(document, golden) -> None:
    golden("diff.md", render_markdown(document) + "\n")


def test_golden_of_a_marked_run(marked, golden) -> None:
    golden("diff_marked.md", render_markdown(to_json(marked)) + "\n")


def test_no_cell_stands_outside_a_code_span(document) -> None:
    outside = re.sub(r"(`+).+?\1(?!`)", "", render_markdown(document))
    assert "@" not in outside


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a@h200", "`a@h200`"),
        ("two\nlines", "`two lines`"),
        ("a `tick`", "`` a `tick` ``"),
        ("``", "``` `` ```"),
    ],
)
def test_code_span(text, expected) -> None:
    assert expected == code(text)


def test_a_bar_in_a_text_does_not_end_its_table_cell(document) -> None:
    (row,) = rows(render_markdown(with_findings(document, ["a | b"])))
    assert 8 == len(re.split(r"(?<!\\)\|", row)) - 2


class TestCut:
    def test_d26_a_text_of_too_many_bytes_goes_whole_and_is_counted(self, document) -> None:
        count, letter = re.match(r"(\d+) x '(.)' with acute accent", CASES["d26"]["input"]["summary"]).groups()
        text = {"e": "é"}[letter] * int(count)
        markdown = render_markdown(with_findings(document, [text]))
        assert CHECK_LIMIT >= len(markdown.encode())
        assert [] == rows(markdown)
        assert "_1 of 1 findings are cut here; the JSON has them all._" in markdown

    @pytest.mark.parametrize("extra", range(4))
    def test_stops_at_a_row_and_counts_the_others(self, document, extra) -> None:
        details = ["é" * (100 + extra)] * 1000
        markdown = render_markdown(with_findings(document, details))
        cut = int(re.search(r"_(\d+) of 1000 findings are cut", markdown).group(1))
        kept = rows(markdown)
        assert 1000 == cut + len(kept)
        assert all(row.endswith(" |") and details[0] in row for row in kept)
        size = len(markdown.encode())
        assert CHECK_LIMIT - len(kept[0].encode()) - 2 < size <= CHECK_LIMIT

    def test_nothing_is_cut_that_fits(self, document) -> None:
        whole = render_markdown(document)
        assert "cut here" not in whole
        assert whole == render_markdown(document, limit=len(whole.encode()))

    def test_findings_yield_to_the_rest_of_the_report(self, document) -> None:
        markdown = render_markdown(with_findings(document, ["x" * 500] * 1000))
        assert 1 == markdown.count("cut here")
        assert "- `crash`: head's code died" in markdown
        assert "0 of 4 GPUs measured" in markdown.splitlines()[-1]

    def test_one_byte_too_many_costs_rows(self, document) -> None:
        whole = render_markdown(document)
        shorter = render_markdown(document, limit=len(whole.encode()) - 1)
        assert len(shorter.encode()) < len(whole.encode())
        assert "findings are cut here" in shorter

    def test_refuses_a_limit_without_room_for_the_headings(self, document) -> None:
        with pytest.raises(ValueError, match="at most 100 bytes"):
            render_markdown(document, limit=100)
