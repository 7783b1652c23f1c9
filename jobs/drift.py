"""Drift: runs a recurrent kernel's steps beside the fp64 reference and records how far its state has gone from it."""

from harness import Kind
from harness.measure.drift import check_drift
from harness.measure.plugin import Recorder
from harness.measure.subject import Subject
from harness.records import Status

KIND = Kind(
    on="unit",
    applies=lambda kernel, variant, case: kernel.drift is not None and "drift" in case.tags and kernel.variant(variant).cases(case),
    cell_seconds=30.0,
    deadline_s=600.0,
)


def test_drift(subject: Subject, record: Recorder) -> None:
    """Runs one cell's steps; every checkpoint must keep the kernel's drift tolerance."""
    readings = check_drift(subject)
    record(readings)
    bad = [r for r in readings if r.status is not Status.OK]
    failures = "\n".join(dict.fromkeys(f"{(r.metric or '').partition('@')[2]} steps: {r.status}: {r.reason}" for r in bad))
    assert not bad, f"{subject.cell}:\n{failures}"
