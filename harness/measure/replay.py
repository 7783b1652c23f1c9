"""Shows measured times through pytest-benchmark: a timer that stands still until a sample is replayed.

The sampler has measured already; `pedantic` then calls a function that advances this clock by one sample a round, so
that pytest-benchmark's table, JSON and histogram show device time. It never judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ReplayClock:
    """A timer, in seconds, for pytest-benchmark."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        """The time in seconds; it moves only while samples are replayed."""
        return self._now

    def replay(self, benchmark: Any, samples_us: Sequence[float]) -> None:
        """Let pytest-benchmark take `samples_us` (us a call) as its rounds; without any it is told nothing.

        Args:
            benchmark: pytest-benchmark's fixture, whose timer must be this clock.
        """
        if not samples_us:
            return
        remaining = iter(samples_us)

        def one_round() -> None:
            self._now += next(remaining) * 1e-6

        benchmark.pedantic(one_round, rounds=len(samples_us), iterations=1, warmup_rounds=0)
