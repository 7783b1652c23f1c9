"""Latency: proves a cell right, then times it, and shows the samples through pytest-benchmark.

On `cpu` the clock is the interpreter's, under a metric of its own that gates nothing.
"""

from typing import Any

from harness import Kind
from harness.measure.correctness import check_correctness
from harness.measure.plugin import Recorder
from harness.measure.replay import ReplayClock
from harness.measure.subject import Subject
from harness.measure.timing import Timer
from harness.records import Status

KIND = Kind(
    on="unit",
    applies=lambda kernel, variant, case: kernel.variant(variant).cases(case),
    cell_seconds=4.0,
    deadline_s=120.0,
    replicates=True,
)


def test_latency(subject: Subject, record: Recorder, timer: Timer, clock: ReplayClock, benchmark: Any) -> None:
    """Times one cell; nothing is timed that failed its correctness gate in this launch."""
    wrong = [r for r in check_correctness(subject) if r.status is not Status.OK]
    if wrong:
        record(wrong)
    assert not wrong, f"{subject.cell} is not timed: {wrong[0].status}: {wrong[0].reason}"
    timing = timer(subject)
    record(timing.readings)
    clock.replay(benchmark, timing.samples_us)
    bad = [r for r in timing.readings if r.status is not Status.OK]
    assert not bad, f"{subject.cell}: {bad[0].metric} {bad[0].status}: {bad[0].reason}"
