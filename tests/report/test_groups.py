"""What is the same in many rows is said once, with the class of cases it holds for."""

from __future__ import annotations

import pytest

from harness.report.groups import group_lines, listed, shape_class

KNOWN = ["M=1,N=64,dtype=bf16", "M=1,N=128,dtype=bf16", "M=2,N=64,dtype=bf16", "M=2,N=64,dtype=fp32"]


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        (KNOWN, "all 4 cases"),
        (KNOWN[:2], "all M=1 cases"),
        (KNOWN[3:], "all dtype=fp32 cases"),
        ([KNOWN[0], KNOWN[2]], "2 of 4 cases"),
        ([KNOWN[0]], "1 of 4 cases"),
    ],
)
def test_shape_class(cases, expected) -> None:
    assert expected == shape_class(cases, KNOWN)


def finding(case: str, device: str, ratio: float | None = 2.0, **changed):
    base = {"kind": "static", "metric": "registers", "rule": "growth", "verdict": "REGRESSED", "reason": "grew", "exit_code": 1, "why": {}}
    return {**base, "cell": f"toy/fused/{case}@{device}", "ratio": ratio, "base": 32, "head": 64, **changed}


def test_equal_findings_on_several_devices_are_one_line() -> None:
    found = [finding(case, device) for device in ("b200", "a10g") for case in KNOWN[:2]]
    others = [finding(case, "a10g", verdict="UNCHANGED") for case in KNOWN[2:]]
    expected = ["toy/fused: registers +100.0 % on a10g, b200 (2 cells each); all M=1 cases: REGRESSED (grew)"]
    assert expected == group_lines([*found, *others], found)


def test_devices_with_other_numbers_of_cells_are_counted_apart() -> None:
    found = [finding(KNOWN[0], "a10g"), finding(KNOWN[0], "b200", 1.5), finding(KNOWN[1], "b200", 1.2)]
    expected = ["toy/fused: registers +20.0 % to +100.0 % on a10g (1 cell), b200 (2 cells); all 2 cases: REGRESSED (grew)"]
    assert expected == group_lines(found, found)


def test_growth_from_nothing_shows_its_values() -> None:
    found = [finding(case, "a10g", None, metric="spill_bytes", base=0, head=8) for case in KNOWN]
    assert ["toy/fused: spill_bytes 0 -> 8 on a10g (4 cells); all 4 cases: REGRESSED (grew)"] == group_lines(found, found)


def test_one_finding_is_no_group() -> None:
    assert [] == group_lines([finding(KNOWN[0], "a10g")], [finding(KNOWN[0], "a10g")])


@pytest.mark.parametrize(
    ("verdict", "exit_code", "expected"),
    [
        ("UNCHANGED", 0, False),
        ("MISSING", 0, False),
        ("MISSING", 3, True),
        ("INCONCLUSIVE", 0, False),
        ("NEW", 0, True),
        ("REGRESSED", 0, True),
    ],
)
def test_rows(verdict, exit_code, expected) -> None:
    one = finding(KNOWN[0], "a10g", verdict=verdict, exit_code=exit_code)
    assert expected == bool(listed([one]))
    assert [one] == listed([one], verbose=True)


def test_a_cell_that_chose_another_configuration_has_a_row_though_its_time_stood() -> None:
    one = finding(KNOWN[0], "a10g", verdict="UNCHANGED", exit_code=0, why={"same_configuration": [{"config": ["A"]}]})
    assert [one] == listed([one])
