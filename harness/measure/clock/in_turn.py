"""Times two programs in turn, so that a unit whose clocks wander, at its power cap say, is the same for both."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from harness.measure.clock.estimate import is_accurate
from harness.measure.clock.program import Program
from harness.measure.clock.session import Batch, ClockSession

WINDOW = 5
"""Samples of one program before it is the other's turn."""
LEAST_TURNS = 4
"""Fewer have no interval."""


def time_in_turn(session: ClockSession, programs: tuple[Program, Program], reset: Callable[[], None]) -> tuple[float, float]:
    """The medians of two programs (us a call), taken until both are known well enough or the budget of two side figures has passed.

    The first turn is warm-up: what the other figures left in the cache is not what these leave to each other.

    Args:
        reset: runs before each window, outside every sample.

    Raises:
        InvalidTiming: negative_time, no_valid_samples or host_clock.
    """
    batches: list[Batch] = []
    samples: tuple[list[float], list[float]] = ([], [])
    end = session.device.now_ns() + round(2 * session.settings.side_budget_s * 1e9)
    for program in programs:
        session.take(program.replays, program.calls, WINDOW, reset, program.between)
    while True:
        for held, program in zip(samples, programs, strict=True):
            batches.append(session.take(program.replays, program.calls, WINDOW, reset, program.between))
            held.extend(batches[-1].samples)
        enough = len(batches) >= 2 * LEAST_TURNS and all(is_accurate(held) for held in samples)
        if enough or session.device.now_ns() > end:
            break
    session.check_host(batches)
    one, other = (statistics.median(held) for held in samples)
    return one, other
