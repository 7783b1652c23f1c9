"""Text for a terminal, rendered from JSON alone."""

from __future__ import annotations

import pytest

from harness.report.coverage import device_lines
from harness.report.json import to_json
from harness.report.text import MISSING_LISTED, render_text


def test_golden(document, golden) -> None:
    golden("diff.txt", render_text(document) + "\n")


def test_verbose_golden_lists_every_finding(document, golden) -> None:
    golden("diff_verbose.txt", render_text(document, verbose=True) + "\n")


@pytest.mark.parametrize("name", ["clean", "nothing", "marked"])
def test_golden_of_small_diffs(request, golden, name) -> None:
    golden(f"diff_{name}.txt", render_text(to_json(request.getfixturevalue(name))) + "\n")


def test_the_last_line_says_how_many_gpus_were_measured(document) -> None:
    assert "0 of 4 GPUs measured" == render_text(document).splitlines()[-1]


def test_a_mark_stands_above_the_sides_with_what_to_do(marked) -> None:
    lines = render_text(to_json(marked)).splitlines()
    (first, *_) = (n for n, line in enumerate(lines) if line.startswith("  marked "))
    (sides, *_) = (n for n, line in enumerate(lines) if line.startswith("  base main"))
    assert first < sides
    assert lines[first + 2].strip().startswith("harness submit --ref bbbb")


def test_a_mark_from_a_file_stays_on_its_lines(marked) -> None:
    data = to_json(marked)
    forged = [{**data["marks"][0], "detail": "one\nPASS (exit code 0)", "do": "two\nPASS (exit code 0)"}]
    assert not any(line.startswith("PASS") for line in render_text({**data, "marks": forged}).splitlines())


def test_what_is_missing_is_counted_beyond_the_first_rows(document) -> None:
    one = next(f for f in document["findings"] if f["verdict"] == "MISSING" and f["exit_code"])
    many = [{**one, "cell": f"norm/fused/M={m},dtype=bf16@cpu"} for m in range(MISSING_LISTED + 5)]
    rows = {v: render_text({**document, "findings": many}, verbose=v).count(" MISSING  ") for v in (False, True)}
    assert {False: MISSING_LISTED, True: MISSING_LISTED + 5} == rows
    assert "and 5 more MISSING; --verbose lists them all" in render_text({**document, "findings": many})


def test_there_is_no_colour(document) -> None:
    assert "\x1b" not in render_text(document)


def test_cells_that_only_the_interpreter_timed_are_none_of_which_nothing_was_compared() -> None:
    timed = {"device": "cpu", "kind": "latency", "cells": 2, "compared": 0, "others": {"interpreter_only": 2}}
    right = {"device": "cpu", "kind": "correctness", "cells": 4, "compared": 4, "others": {}}
    expected = "correctness 4 of 4 compared; latency not judged (interpreter_only), 2 cells"
    assert [("cpu", expected)] == device_lines([right, timed])
