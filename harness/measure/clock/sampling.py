"""When to begin sampling and when to stop: warm-up until stationary, then looks at growing numbers of samples."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from harness.measure.clock.estimate import half_width, has_shifted, is_accurate, windows_agree
from harness.measure.clock.settings import ClockSettings

Take = Callable[[int], Sequence[float]]
"""Takes that many consecutive samples: us a call."""


@dataclass(frozen=True)
class Sampled:
    """The samples of one figure, in the order they were taken.

    Args:
        samples: us a call.
        converged: they show no shift of level, and their median is known well enough.
        restarts: how often the level shifted while sampling, so that what came before became warm-up.
    """

    samples: tuple[float, ...]
    converged: bool
    restarts: int = 0

    @property
    def us(self) -> float:
        """The estimate: the median."""
        return statistics.median(self.samples)

    def unsettled(self) -> Sampled:
        """These samples, where something else showed that the level shifts."""
        return replace(self, converged=False)

    @property
    def half_width_us(self) -> float:
        """Half width of the median's 95 % interval."""
        return half_width(self.samples)


@dataclass
class Sampler:
    """Takes samples of one figure.

    Args:
        take: takes consecutive samples.
        calls: calls in a sample.
        now_s: a monotonic clock.
        enough: whether samples say well enough what they are taken for.
        window: samples in each window of settling; the protocol's by default.
    """

    take: Take
    calls: int
    now_s: Callable[[], float]
    settings: ClockSettings = field(default_factory=ClockSettings)
    enough: Callable[[Sequence[float]], bool] = is_accurate
    window: int | None = None

    def settle(self, budget_s: float) -> float:
        """Run until `settle_calls` calls were made and three windows in a row agree, or until the budget has passed.

        Returns:
            Seconds that one sample takes.
        """
        begin, calls, windows = self.now_s(), 0, list[Sequence[float]]()
        window = self.window or self.settings.settle_window
        while True:
            windows.append(self.take(window))
            calls += window * self.calls
            late = self.now_s() - begin > budget_s
            if calls >= self.settings.settle_calls and (windows_agree(windows) or late):
                return statistics.median(windows[-1]) * self.calls * 1e-6

    def sample(self, budget_s: float) -> Sampled:
        """Settle, then take samples until a look finds their median known well enough, or until the looks or the budget end.

        What came before a shift of level belongs to the warm-up: sampling begins again. No sample is dropped otherwise.
        """
        sample_s = self.settle(min(budget_s, self.settings.settle_s))
        end = self.now_s() + budget_s
        samples: list[float] = []
        restarts, looks = 0, iter(self.settings.looks)
        while (look := next(looks, None)) is not None:
            self._fill(samples, look, end, sample_s)
            if len(samples) < look:
                break
            if has_shifted(samples):
                samples, restarts, looks = [], restarts + 1, iter(self.settings.looks)
            elif self.enough(samples):
                return Sampled(tuple(samples), True, restarts)
        return Sampled(tuple(samples), False, restarts)

    def _fill(self, samples: list[float], wanted: int, end: float, sample_s: float) -> None:
        """Take samples up to `wanted`, or fewer where time runs out first, but at least one."""
        while len(samples) < wanted:
            left = end - self.now_s()
            if left <= 0 and samples:
                return
            affordable = int(left / sample_s) if sample_s > 0 else wanted
            samples.extend(self.take(max(1, min(self.settings.chunk, wanted - len(samples), affordable))))
