"""Small inputs with the right answer, from bugs that other tools had: tests/cases/*.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import Undecided
from harness.judge.diff import judge
from harness.judge.model import Reason, Verdict

FOLDER = Path(__file__).parent.parent / "cases"
CASES = {case["id"]: case for name in ("diff", "measure") for case in map(json.loads, (FOLDER / f"{name}.jsonl").read_text().splitlines())}


def given(case: str) -> Any:
    """The input of a case."""
    return CASES[case]["input"]


def cell(name: object, device: str = "h200") -> str:
    return f"toy/fused/M={name},dtype=bf16@{device}"


def planned(names: Any, kind: str) -> tuple[tuple[str, str], ...]:
    return tuple((cell(name), kind) for name in names)


def sizes(side, record, ref: str, values: dict[Any, float], expect: Any = ()):
    """A side with one code size a cell."""
    records = [record(cell(name), "static", value, metric="code_bytes") for name, value in values.items()]
    return side(ref, *records, expect=planned(expect, "static"))


def test_d01_a_mean_says_over_how_many_cells_and_the_others_are_missing(record, side) -> None:
    case = given("d01")
    diff = judge(sizes(side, record, "base", case["base"]), sizes(side, record, "head", case["head"], case["base"]))
    (mean,) = diff.means
    assert (1.0, 1, 2) == (mean.ratio, mean.n, mean.of)
    assert [cell("B")] == [str(f.cell) for f in diff.findings if f.verdict is Verdict.MISSING]


def test_d02_means_are_over_the_cells_of_both_sides(record, side) -> None:
    case = given("d02")
    names = range(case["base_cells"])
    # The cells that head lacks are far from the others, so that a mean over unequal sets would show.
    base = sizes(side, record, "base", {n: 100 if n < case["head_cells"] else 1e6 for n in names})
    diff = judge(base, sizes(side, record, "head", dict.fromkeys(range(case["head_cells"]), 100), names))
    ((mean,), (coverage,)) = diff.means, diff.coverage
    assert (pytest.approx(1.0), 7, 10) == (mean.ratio, mean.n, mean.of)
    assert (7, 10, {"no_record": 3}) == (coverage.compared, coverage.cells, coverage.others)


def test_d11_another_model_is_incomparable_and_no_usage_error(record, side) -> None:
    case = given("d11")
    models = case["baseline_unit"], case["run_on"]
    sides = [side(m, record(cell(1), "latency", 9.0, environment={"gpu_model": m})) for m in models]
    (finding,) = judge(*sides).findings
    assert (Verdict.INCOMPARABLE, Reason.MODEL, 3) == (finding.verdict, finding.reason, finding.exit_code)


def test_d12_a_run_is_not_its_own_baseline(record, side) -> None:
    assert "the current run itself" == given("d12")["baseline"]
    one = record(cell(1), "static", 32, run_id="r1")
    with pytest.raises(Undecided, match="both sides are records of run r1"):
        judge(side("base", one), side("head", one))


def test_d20_an_improvement_beyond_the_margin_passes(record, side) -> None:
    percent = float(given("d20")["head"].rstrip(" %"))
    diff = judge(sizes(side, record, "base", {1: 100}), sizes(side, record, "head", {1: 100 + percent}))
    assert (Verdict.IMPROVED, 0) == (diff.findings[0].verdict, diff.exit_code)


def test_d22_one_cell_over_the_limit_is_enough(record, side) -> None:
    deltas = given("d22")["deltas"]
    base = sizes(side, record, "base", dict.fromkeys(range(len(deltas)), 100))
    diff = judge(base, sizes(side, record, "head", {n: 100 + delta for n, delta in enumerate(deltas)}))
    assert ([cell(0)], 1) == ([str(f.cell) for f in diff.findings if f.verdict is Verdict.REGRESSED], diff.exit_code)


def test_d23_an_error_that_is_not_a_number_is_broken(record, side) -> None:
    error = float(given("d23")["error"])
    with pytest.raises(ValueError, match="not finite"):
        record(cell(1), "correctness", error)
    diff = judge(
        side("base", record(cell(1), "correctness", 0.001)), side("head", record(cell(1), "correctness", status="wrong", reason=f"{error}"))
    )
    assert (Verdict.BROKEN, "nan", 1) == (diff.findings[0].verdict, diff.findings[0].detail, diff.exit_code)


def test_d32_an_empty_result_is_undecided(side) -> None:
    assert "empty parse" == given("d32")["results"]
    assert 3 == judge(side("base"), side("head")).exit_code


def test_d33_an_equal_binary_proves_the_time_and_measures_the_noise(record, side) -> None:
    moved = 1 + float(given("d33")["delta"].rstrip(" %")) / 100
    build = {"binary_hash": ["b"], "grid": ["8"], "config": ["{}"], "launcher_digest": "l"}
    sides = [side(ref, record(cell(1), "latency", us, **build)) for ref, us in (("base", 100.0), ("head", 100.0 * moved))]
    diff = judge(*sides)
    (finding,) = diff.findings
    assert (Verdict.UNCHANGED, Reason.PROVED) == (finding.verdict, finding.reason)
    assert (1, pytest.approx(1.06)) == (diff.noise.n, diff.noise.highest)


def test_m04_two_timers_do_not_meet(record, side) -> None:
    case = given("m04")
    sides = [side(ref, record(cell(1), "latency", case[ref]["us"], method=case[ref]["method"])) for ref in ("base", "head")]
    (finding,) = judge(*sides).findings
    assert (Verdict.INCOMPARABLE, Reason.METHOD) == (finding.verdict, finding.reason)


def test_m10_one_launch_a_side_proves_nothing(record, side) -> None:
    case = given("m10")
    sides = [side(ref, *(record(cell(1), "latency", us) for us in case[f"launches_{ref}_us"])) for ref in ("base", "head")]
    assert 0 == judge(*sides).counts[Verdict.REGRESSED]


def test_d14_launches_of_separate_leases_are_not_flagged(record, side) -> None:
    (base, _), (head, _) = given("d14")["launches"]
    diff = judge(side("base", record(cell(1), "latency", base)), side("head", record(cell(1), "latency", head)))
    assert 0 == diff.counts[Verdict.REGRESSED] == diff.counts[Verdict.IMPROVED]


def test_m15_cases_that_head_left_out_are_missing(record, side) -> None:
    case = given("m15")
    names = range(case["base_cases"])
    fast = int(case["head_cases"].split()[0])
    diff = judge(
        sizes(side, record, "base", dict.fromkeys(names, 100)), sizes(side, record, "head", dict.fromkeys(range(fast), 100), names)
    )
    assert (2, 3) == (diff.counts[Verdict.MISSING], diff.exit_code)
    assert [3] == [m.n for m in diff.means]
