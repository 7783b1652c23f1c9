"""Correctness: proves a cell right against its reference, with poisoned memory and guard bytes around every tensor."""

from harness import Kind
from harness.measure.correctness import check_correctness
from harness.measure.plugin import Recorder
from harness.measure.subject import Subject
from harness.records import Status

KIND = Kind(
    on="unit",
    applies=lambda kernel, variant, case: kernel.variant(variant).cases(case),
    cell_seconds=5.0,
    deadline_s=240.0,
)


def test_correctness(subject: Subject, record: Recorder) -> None:
    """Compares one cell with the reference; see `harness.measure.checks.CHECKS` for what it is asked."""
    readings = check_correctness(subject)
    record(readings)
    bad = [r for r in readings if r.status is not Status.OK]
    assert not bad, f"{subject.cell}: {bad[0].status}: {bad[0].reason}"
