"""Times a subject by the clock that its device has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.measure.interpreter import time_in_interpreter
from harness.measure.subject import Reading, Subject


@dataclass(frozen=True)
class Timing:
    """What was read, and the samples (us a call) of the first reading, which pytest-benchmark shows."""

    readings: Sequence[Reading]
    samples_us: Sequence[float]


def time_subject(subject: Subject) -> Timing:
    """Time one cell on the device it runs on."""
    readings = time_in_interpreter(subject)
    return Timing(readings, readings[0].columns["samples"])
