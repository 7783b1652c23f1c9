"""What a calibration makes of the records of its launches."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.dispatch.calibration import carry, counted_records, median_error, numbered, parts_job, spreads
from harness.dispatch.protocol import ArmCode, CellDone, JobDone, RunContext
from harness.dispatch.stamp import Place
from harness.measure.calibration.parts import UNIT_PARTS, Part, cell_of
from harness.records import Cell, Record

CELL = Cell("norm", "fused", "N=4,dtype=fp32", "h200")
CONTEXT = RunContext("run1", {"head": ArmCode("c0", "7ee", False, "d1", Path())}, Path(), Path(), {})


def record(value, launch="l0", cell=CELL, **columns):
    where = {"kernel": cell.kernel, "variant": cell.variant, "case": cell.case, "dtype": cell.dtype, "device": cell.device}
    how = {"kind": "latency", "metric": "latency_us", "value": value, "status": "ok", "launch": launch, "method": "graph_ring/1+ab"}
    return Record(**{**where, **how, "unit": "GPU-1", "lease_id": "a1", "attempt": 1, "environment": {"torch": "2.11"}, **columns})


class Dispatcher:
    """Answers each cell by `answers`, in turn."""

    def __init__(self, *answers):
        self.answers = answers

    def submit(self, context, jobs):
        self.jobs = jobs

    def events(self):
        for cell, records in self.answers:
            yield CellDone(self.jobs[0], cell, records)
        yield JobDone(self.jobs[0])


class TestCarry:
    JOB = parts_job(UNIT_PARTS, "h200")
    FIRST = cell_of(Part.CLOCK, "h200")

    def test_one_launch_measures_all_parts(self):
        assert [cell_of(part, "h200") for part in UNIT_PARTS] == list(self.JOB.cells)
        assert 1 == len(self.JOB.turns)
        assert ("calibration", "unit", "unit") == (self.JOB.kind, self.JOB.on, self.JOB.kernel)

    def test_a_part_that_nothing_came_of_is_lost(self):
        seen = []
        records = carry(Dispatcher((self.FIRST, (record(1.0, cell=self.FIRST),))), CONTEXT, [self.JOB], seen.append)
        assert {"clock": "ok", "graphs": "lost", "memory": "lost", "ring": "lost"} == {r.variant: r.status for r in records}
        assert 2 == len(seen)

    def test_an_answer_that_is_taken_back_does_not_count(self):
        good, bad = record(1.0, cell=self.FIRST), record(None, cell=self.FIRST, status="invalid")
        records = carry(Dispatcher((self.FIRST, (good,)), (self.FIRST, (bad,))), CONTEXT, [self.JOB], lambda event: None)
        assert ["invalid"] == [r.status for r in records if r.variant == "clock"]

    def test_without_jobs_nothing_is_asked(self):
        assert [] == carry(Dispatcher(), CONTEXT, [], lambda event: None)


class TestSpread:
    def test_is_the_deviation_between_launches_and_the_error_within_one(self):
        samples = [9.0, 11.0] * 20
        records = spreads(CONTEXT, [record(us, f"l{i}", samples=samples) for i, us in enumerate((9.9, 10.0, 10.1))])
        found = {r.metric: r.value for r in records}
        assert found == {
            "aa_us": 10.0,
            "aa_between_percent": pytest.approx(1.0),
            "aa_within_percent": pytest.approx(0.0),
        }
        assert [9.9, 10.0, 10.1] == records[0].samples
        assert {("calibration", "norm", "GPU-1", "a1", "run1", "2.11", "graph_ring/1+ab")} == {
            (r.kind, r.kernel, r.unit, r.lease_id, r.run_id, r.environment["torch"], r.method) for r in records
        }

    def test_a_cell_of_which_a_launch_failed_has_none(self):
        assert [] == spreads(CONTEXT, [record(10.0), record(None, "l1", metric=None, status="wrong")])

    def test_a_side_figure_that_failed_does_not_matter(self):
        found = spreads(CONTEXT, [record(10.0), record(10.2, "l1"), record(None, metric="eager_us", status="invalid")])
        assert ["aa_us", "aa_between_percent"] == [r.metric for r in found]

    def test_one_launch_has_no_deviation(self):
        assert ["aa_us"] == [r.metric for r in spreads(CONTEXT, [record(10.0, samples=[10.0] * 5)])]

    def test_the_error_of_a_median_is_that_of_its_batches(self):
        batches = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
        assert median_error([b for b in batches for _ in range(3)]) == pytest.approx(3.02765 / 10**0.5, rel=1e-5)
        assert median_error([1.0] * 19) is None


def test_what_a_profiler_counted_is_recorded_under_the_cell():
    place = Place("GPU-1", "node", 1, "a1", {"torch": "2.11"})
    found = counted_records(CONTEXT, place, CELL, {"ncu_us": 5.0, "counted_bytes": 8.0}, None)
    assert [("ncu_us", 5.0, "us"), ("counted_bytes", 8.0, "B")] == [(r.metric, r.value, r.unit_of_measure) for r in found]
    (missing,) = counted_records(CONTEXT, place, CELL, {}, "OutOfMemoryError")
    assert ("invalid", "OutOfMemoryError", None) == (missing.status, missing.reason, missing.value)


def test_records_are_numbered():
    assert [0, 1] == [r.seq for r in numbered([record(1.0), record(2.0)])]
