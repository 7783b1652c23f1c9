"""How well a run used its units."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from harness.records import Cell, Record
from harness.report.shares import unit_lines

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def timed(begin_s: float, seconds: float | None, **columns) -> Record:
    cell = Cell.parse(columns.pop("cell", "norm/fused/M=1,dtype=bf16@h200"))
    where = {name: getattr(cell, name) for name in ("kernel", "variant", "case", "dtype", "device")}
    told = {"kind": "latency", "unit": "GPU-1", "launch": "a-0", "metric": "latency_us", "value": 9.0, "status": "ok", **columns}
    return Record(**where, started_at=(NOON + timedelta(seconds=begin_s)).isoformat(), duration=seconds, **told)


def test_what_lies_between_cells_is_not_in_them():
    records = [timed(0, 6.0), timed(10, 3.0, launch="a-1")]
    assert ["h200 GPU-1  2 launches, 2 times taken in 13 s, 69 % of it in cells"] == unit_lines(records)


def test_the_metrics_of_a_cell_are_one_time():
    records = [timed(0, 5.0, metric=metric) for metric in ("latency_us", "gbps", "chained_us")]
    assert ["h200 GPU-1  1 launch, 1 time taken in 5 s, 100 % of it in cells"] == unit_lines(records)


def test_both_arms_count_and_each_unit_has_its_own_line():
    records = [timed(0, 5.0, arm="base"), timed(5, 5.0, arm="head"), timed(0, 1.0, unit="GPU-02")]
    assert [
        "h200 GPU-02  1 launch, 1 time taken in 1 s, 100 % of it in cells",
        "h200 GPU-1   1 launch, 2 times taken in 10 s, 100 % of it in cells",
    ] == unit_lines(records)


def test_a_pause_between_a_run_and_its_resumption_is_no_part_of_it():
    records = [timed(0, 5.0), timed(3600, 5.0, launch="b-0")]
    assert ["h200 GPU-1  2 launches, 2 times taken in 10 s, 100 % of it in cells"] == unit_lines(records)


@pytest.mark.parametrize(
    "record",
    [
        timed(0, 5.0, kind="static"),
        timed(0, 5.0, unit=None),
        timed(0, None),
        timed(0, 5.0, cell="norm/fused/M=1,dtype=bf16@cpu"),
    ],
    ids=["compiled", "no unit", "never started", "the interpreter"],
)
def test_what_is_not_timed_on_a_unit_has_no_line(record):
    assert [] == unit_lines([record])
