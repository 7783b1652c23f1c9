"""Means stand over cells that are valid on both sides, and say how many; coverage counts the others."""

from __future__ import annotations

import pytest

from harness.judge.diff import judge
from harness.judge.model import Coverage, Mean


def cell(m: int, device: str = "h200") -> str:
    return f"toy/fused/M={m},dtype=bf16@{device}"


def test_a_mean_is_geometric(record, side) -> None:
    base = side("base", record(cell(1), "static", 100), record(cell(2), "static", 100))
    diff = judge(base, side("head", record(cell(1), "static", 50), record(cell(2), "static", 200)))
    assert (Mean("registers", "h200", "growth", 2, 2, pytest.approx(1.0)),) == diff.means


def test_devices_are_never_mixed(record, side) -> None:
    base = side("base", *(record(cell(1, device), "static", 100) for device in ("h200", "b200")))
    diff = judge(base, side("head", record(cell(1, "h200"), "static", 100), record(cell(1, "b200"), "static", 105)))
    assert {"h200": pytest.approx(1.0), "b200": pytest.approx(1.05)} == {m.device: m.ratio for m in diff.means}


def test_a_cell_at_zero_has_no_ratio_and_no_part_in_the_mean(record, side) -> None:
    def at(ref: str, *spills: float):
        return side(ref, *(record(cell(m), "static", v, metric="spill_bytes") for m, v in enumerate(spills)))

    diff = judge(at("base", 0, 8, 8), at("head", 0, 8, 0))
    assert (Mean("spill_bytes", "h200", "any_growth", 1, 3, 1.0),) == diff.means


def test_a_wrong_cell_has_no_part_in_the_mean(record, side) -> None:
    base = side("base", record(cell(1), "correctness", 0.001), record(cell(2), "correctness", 0.001))
    diff = judge(base, side("head", record(cell(1), "correctness", 0.001), record(cell(2), "correctness", 0.5, status="wrong")))
    assert (Mean("rel_l2_error", "h200", "error", 1, 2, 1.0),) == diff.means


def test_stored_times_have_no_mean(record, side) -> None:
    diff = judge(*(side(ref, record(cell(1), "latency", 9.0)) for ref in ("base", "head")))
    assert () == diff.means


def test_coverage_counts_the_others_by_reason(record, side) -> None:
    base = side("base", *(record(cell(m), "correctness", 0.001) for m in range(4)))
    absent = record(cell(2), "correctness", status="no_capacity")
    head = side(
        "head",
        record(cell(0), "correctness", 0.001),
        record(cell(1), "correctness", status="lost"),
        absent,
        expect=((cell(3), "correctness"),),
    )
    assert (Coverage("h200", "correctness", 4, 1, {"lost": 1, "no_capacity": 1, "no_record": 1}),) == judge(base, head).coverage
