"""A diff as a check run: what it concludes, says and points at."""

from __future__ import annotations

import json
import re

import pytest

from harness.report.github import (
    ANNOTATIONS_LIMIT,
    TITLE_LIMIT,
    Conclusion,
    annotate,
    conclude,
    concluding,
    concluding_error,
    summary,
    title,
)
from harness.report.json import to_json
from harness.report.markdown import CHECK_LIMIT

SOURCES = {"norm": {"path": "kernels/norm.py", "line": 12}, "step": {"path": "kernels/step.py", "line": 30}}


@pytest.fixture
def placed(document):
    """The sample, with the lines of its kernels."""
    return {**document, "sources": SOURCES}


def variants(document, count):
    """The document with `count` regressions, each of a variant of its own."""
    one = next(f for f in document["findings"] if f["verdict"] == "REGRESSED")
    findings = [{**one, "cell": f"norm/v{n}/M=1,dtype=bf16@h200"} for n in range(count)]
    return {**document, "sources": SOURCES, "findings": findings}


class TestConclusion:
    @pytest.mark.parametrize(
        ("code", "expected"),
        [(0, "success"), (1, "failure"), (2, "failure"), (3, "failure"), (130, "cancelled"), (77, "failure"), (-9, "failure")],
    )
    def test_is_total(self, code, expected) -> None:
        assert expected == conclude(code)

    @pytest.mark.parametrize(("code", "expected"), [(0, "success"), (1, "failure"), (2, "failure"), (3, "neutral"), (130, "cancelled")])
    def test_undecided_is_neutral_only_where_that_is_asked_for(self, code, expected) -> None:
        assert expected == conclude(code, neutral_when_undecided=True)

    def test_is_never_skipped(self) -> None:
        assert "skipped" not in set(Conclusion)


class TestTitle:
    def test_counts_the_verdicts_that_fail(self, document) -> None:
        assert "fail: 1 BROKEN, 1 DRIFTED, 5 REGRESSED" == title(document)

    def test_of_a_pass_says_how_much_was_compared(self, document) -> None:
        passing = {**document, "exit_code": 0, "findings": [], "conclusion": ["passes: 7 results compared, none fails"]}
        assert "pass: 7 results compared, none fails" == title(passing)

    def test_of_an_undecided_diff_counts_what_leaves_it_undecided(self, document) -> None:
        findings = [f for f in document["findings"] if f["exit_code"] == 3]
        assert "undecided: 1 INCOMPARABLE, 1 MISSING" == title({**document, "exit_code": 3, "findings": findings})

    def test_has_no_more_characters_than_github_takes(self, document) -> None:
        long = title({**document, "exit_code": 0, "conclusion": ["passes: " + "x" * 999]})
        assert (TITLE_LIMIT, "...") == (len(long), long[-3:])

    def test_names_what_marks_the_run_however_long_the_rest_is(self, marked) -> None:
        data = to_json(marked)
        assert "fail: 9 REGRESSED; marked one_sided, untouched_moved" == title(data)
        long = title({**data, "exit_code": 0, "findings": [], "conclusion": ["passes: " + "x" * 999]})
        assert (TITLE_LIMIT, True) == (len(long), long.endswith("...; marked one_sided, untouched_moved"))


class TestSummary:
    def test_golden(self, document, golden) -> None:
        notes = ["head feature/@octocat at bbbbbbbbbbbb was never run: <only> what [can](https://example.org) be compiled here is compared"]
        golden("check.md", summary({**document, "notes": notes}) + "\n")

    def test_mentions_nobody(self, document) -> None:
        named = {**document, "conclusion": ["fails: see @octocat"], "notes": ["head @team/all is dirty"], "rules": ["ask @octocat"]}
        outside = re.sub(r"(`+).+?\1(?!`)", "", summary({**named, "reasons": dict.fromkeys(document["reasons"], "by @octocat")}))
        assert "@" not in outside
        assert "&#64;&#8203;octocat" in outside

    def test_a_mark_mentions_nobody(self, marked) -> None:
        data = to_json(marked)
        forged = dict.fromkeys(("detail", "do", "reproduce"), "ask @octocat <b> [x](y)")
        shown = summary({**data, "marks": [data["marks"][0] | forged]})
        outside = re.sub(r"(`+).+?\1(?!`)", "", shown)
        assert "@" not in outside
        assert "<b>" not in outside
        assert "ask &#64;&#8203;octocat &lt;b> \\[x\\](y)" in outside

    def test_a_text_of_the_diff_is_no_link_no_html_and_no_heading(self, document) -> None:
        shown = summary({**document, "notes": ["<img src=x> [here](https://example.org)\n## Passed"]})
        assert "- &lt;img src=x> \\[here\\](https&#58;//example.org) #&#8203;#&#8203; Passed" in shown.splitlines()

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("see https://example.org or HTTP://example.org", "see https&#58;//example.org or HTTP&#58;//example.org"),
            ("at www.example.org or www", "at ww&#119;.example.org or ww&#119;"),
            ("mail a@example.org", "mail a&#64;&#8203;example.org"),
            ("as GH-26 and gh-7 say, not high-5", "as GH-&#8203;26 and gh-&#8203;7 say, not high-5"),
            ("o/r#1", "o/r#&#8203;1"),
            ("&#64;octocat &commat;octocat", "&amp;#&#8203;64;octocat &amp;commat;octocat"),
            (r"\[x\](//example.org)", r"\\\[x\\\](//example.org)"),
            ("by `a@b [x](https://example.org)` alone", "by `a@b [x](https://example.org)` alone"),
            ("an open ` before ``a b``", "an open \\` before ``a b``"),
            ("7 of 8: a.b at 1.5:2", "7 of 8: a.b at 1.5:2"),
        ],
        ids=["address", "www", "mail", "issue", "reference", "entity", "escaped bracket", "code span", "open backtick", "plain"],
    )
    def test_text_from_outside_links_nowhere(self, document, marked, text, expected) -> None:
        lists = {name: [text] for name in ("conclusion", "notes", "rules")}
        shown = summary({**document, **lists, "reasons": dict.fromkeys(document["reasons"], text)})
        reasons = shown.partition("### Reasons\n\n")[2].partition("\n\n")[0].splitlines()
        assert 3 == shown.splitlines().count(f"- {expected}")
        assert {True} == {line.endswith(f"`: {expected}") for line in reasons}
        data = to_json(marked)
        forged = summary({**data, "marks": [data["marks"][0] | {"detail": text, "do": text}]})
        assert f": {expected}. Do next: {expected}: `" in forged

    def test_is_cut_by_whole_rows_with_a_count(self, document) -> None:
        shown = summary(variants(document, 2000))
        assert CHECK_LIMIT >= len(shown.encode()) > CHECK_LIMIT - 1000
        kept = len(re.findall(r"^\| `norm/v\d+/.*\|$", shown, re.MULTILINE))
        assert f"_{2000 - kept} of 2000 findings are cut here; the JSON has them all._" in shown

    def test_says_so_where_the_headings_alone_are_too_long(self, document) -> None:
        shown = summary({**document, "conclusion": ["fails: " + "x" * CHECK_LIMIT]})
        assert "headings of the report alone are longer than 65535 bytes" in shown


class TestAnnotations:
    def test_golden(self, placed, golden) -> None:
        golden("check.json", json.dumps(annotate(placed), indent=1, ensure_ascii=False) + "\n")

    def test_stand_on_the_line_of_the_kernel_at_head(self, placed) -> None:
        found = {(a["title"], a["path"], a["start_line"], a["end_line"], a["annotation_level"]) for a in annotate(placed)}
        expected = {
            ("norm/fused: rel_l2_error BROKEN on 1 cell", "kernels/norm.py", 12, 12, "failure"),
            ("norm/fused: rel_l2_error DRIFTED on 1 cell", "kernels/norm.py", 12, 12, "failure"),
            ("norm/fused: registers REGRESSED on 4 cells", "kernels/norm.py", 12, 12, "failure"),
            ("step/fused: spill_bytes REGRESSED on 1 cell", "kernels/step.py", 30, 30, "failure"),
            ("norm/fused: rel_l2_error INCOMPARABLE on 1 cell", "kernels/norm.py", 12, 12, "warning"),
            ("norm/chain: rel_l2_error MISSING on 1 cell", "kernels/norm.py", 12, 12, "warning"),
        }
        assert expected == found

    def test_say_what_moved_and_how_to_repeat_it(self, placed) -> None:
        (message,) = [a["message"] for a in annotate(placed) if a["title"].startswith("step/")]
        expected = [
            "REGRESSED (grew): it grew by more than its rule allows",
            "step/fused/B=1,dtype=fp32@h200: 0 -> 8",
            "harness submit --ref worktree --kernel step --variant fused --case B=1,dtype=fp32 --device h200 --kind static"
            " # step/fused/B=1,dtype=fp32@h200",
        ]
        assert expected == message.splitlines()

    def test_a_kernel_whose_line_is_not_known_has_none(self, document) -> None:
        assert [] == annotate(document)
        assert {"kernels/step.py"} == {a["path"] for a in annotate({**document, "sources": {"step": SOURCES["step"]}})}

    def test_cells_beyond_twenty_are_counted(self, placed) -> None:
        one = next(f for f in placed["findings"] if f["verdict"] == "REGRESSED")
        cells = [{**one, "cell": f"norm/fused/M={n},dtype=bf16@h200"} for n in range(30)]
        (annotation,) = annotate({**placed, "findings": cells})
        assert "and 10 more cells" in annotation["message"].splitlines()
        assert 20 == annotation["message"].count("@h200: ")

    @pytest.mark.parametrize(("count", "sizes"), [(0, [0]), (1, [1]), (50, [50]), (51, [50, 1]), (120, [50, 50, 20])])
    def test_are_at_most_fifty_a_request_and_the_verdict_is_in_the_first(self, document, count, sizes) -> None:
        many = variants(document, count)
        bodies = concluding(many, Conclusion.FAILURE, annotate(many))
        assert sizes == [len(b["output"].get("annotations", [])) for b in bodies]
        assert all(size <= ANNOTATIONS_LIMIT for size in sizes)
        assert ["failure", *[None] * (len(sizes) - 1)] == [b.get("conclusion") for b in bodies]


def test_an_error_is_posted_with_its_three_parts() -> None:
    body = concluding_error("the merge base of @a and b", "a shallow clone", "git fetch --unshallow", Conclusion.FAILURE)
    assert ("completed", "failure", "no verdict: the merge base of @a and b") == (
        body["status"],
        body["conclusion"],
        body["output"]["title"],
    )
    assert "- asked: `the merge base of @a and b`" in body["output"]["summary"].splitlines()
