"""The figures beside the main one, by which nothing is judged: one replay, warm, serving, chained, eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from harness.authoring.model import Traffic
from harness.measure.clock.estimate import calls_per_sample
from harness.measure.clock.modes import capture_chain, eager_steps, time_eager, time_single
from harness.measure.clock.program import ADVANCE, Bench, Program, Shape
from harness.measure.clock.readings import CHAIN, EAGER, GRAPH1, SERVING, WARM, Cache, Frame, Taken, invalid, skipped
from harness.measure.clock.ring import is_warm
from harness.measure.clock.serving import capture_serving
from harness.measure.clock.session import ClockSession
from harness.measure.clock.validity import InvalidTiming, Reason, check_peak
from harness.measure.clock.verify import verify
from harness.measure.subject import Reading

Captured = Program | Reading | None
"""What is replayed for a figure; the reading that says why where it could not be captured, None where the cell has no such figure."""


@dataclass(frozen=True)
class _Programs:
    """What is replayed for them."""

    single: Captured
    warm: Captured
    serving: Captured
    chain: Captured


@dataclass(frozen=True)
class Beside:
    """The figures of one cell beside its main one.

    Args:
        us: about how long a call takes.
        seed: the first of those by which replays are verified; others have not been drawn in this launch.
    """

    frame: Frame
    us: float
    seed: int

    def readings(self) -> list[Reading]:
        """Take them. A breach spoils that figure alone, and so does a call that fails, unless the clock itself is wrong.

        Raises:
            InvalidTiming: negative_time, or kernel_count.
        """
        if self._bench.cycle:
            return [*self._measure_serving(self._capture_serving()), *self._eager()]
        programs = self._capture()
        found = self._single(programs.single)
        if programs.warm is None:
            found.append(self._skipped("latency_warm_us", Reason.WARM_FOOTPRINT))
        else:
            found += self._replayed("latency_warm_us", programs.warm, WARM, verified=True)
        found += self._measure_serving(programs.serving)
        if programs.chain is not None:
            found += self._replayed("chained_us", programs.chain, CHAIN)
        return found + self._eager()

    @property
    def _bench(self) -> Bench:
        return self.frame.bench

    @property
    def _session(self) -> ClockSession:
        return self.frame.session

    def _capture(self) -> _Programs:
        bench, evictions = self._bench, self.frame.ready.plan.evictions
        passes = 1 if evictions else self._repetitions(bench.slots)
        warm = self._captured("latency_warm_us", lambda: bench.capture((0,), self._repetitions(1))) if self._fits_cache() else None
        chain = self._captured("chained_us", lambda: capture_chain(bench, passes, evictions))
        single = self._captured("graph1_us", lambda: bench.capture((0,))) if self._fillings_empty else None
        return _Programs(single, warm, self._capture_serving(), chain)

    def _captured(self, metric: str, capture: Callable[[], Program | None]) -> Captured:
        try:
            return capture()
        except torch.OutOfMemoryError:
            return self._skipped(metric, Reason.MEMORY)
        except (RuntimeError, TypeError, ValueError) as error:
            why = f"the calls of this figure cannot be captured: {' '.join(str(error).split())[:200]}"
            return invalid(metric, InvalidTiming(Reason.NOT_CAPTURABLE, why), self._bench.subject)

    def _repetitions(self, unit: int) -> int:
        return calls_per_sample(self.us, unit, self._session.least_side_sample_us)

    @property
    def _fillings_empty(self) -> bool:
        """Whether filling the cache displaces what a call left there."""
        return not self.frame.ready.keeps and self._session.filling.displaces

    def _fits_cache(self) -> bool:
        return is_warm(self.frame.ready.plan.touched, self._session.device.limits, self._session.settings.warm_fraction)

    def _capture_serving(self) -> Captured:
        plan, evictions = self.frame.ready.serving, self.frame.ready.plan.evictions
        if plan is None or not plan.slots or (evictions and self._bench.cycle):
            return None
        least_us = self._session.least_side_sample_us
        return self._captured("latency_serving_us", lambda: capture_serving(self._bench, plan, self.us, least_us, evictions))

    def _single(self, program: Captured) -> list[Reading]:
        """One replay of one call, cold where filling the cache empties it."""
        if program is None:
            return [self._skipped("graph1_us", Reason.NOT_COLD)]
        if isinstance(program, Reading):
            return [program]

        def take() -> list[Reading]:
            found = [self.frame.time("graph1_us", time_single(self._session, program, self.frame.ready.plan.growth), GRAPH1, program.shape)]
            verify(self._bench, program, self.seed)
            return found

        return self._guarded("graph1_us", take)

    def _measure_serving(self, program: Captured) -> list[Reading]:
        plan, metric = self.frame.ready.serving, "latency_serving_us"
        if plan is None:
            return []
        if program is None:
            return [self._skipped(metric, Reason.SERVING_CYCLE if plan.slots else plan.why_not)]
        return self._replayed(metric, program, SERVING, plan.cold)

    def _skipped(self, metric: str, reason: Reason) -> Reading:
        return skipped(metric, reason, {"data": self._bench.subject.kernel.data})

    def _replayed(
        self, metric: str, program: Program | Reading, taken: Taken, cold: Traffic | None = None, *, verified: bool = False
    ) -> list[Reading]:
        """A figure by replaying a program.

        Args:
            cold: what a call must read from memory at least; None where that is nothing.
            verified: whether replays are held against eager calls afterwards; that needs a program that keeps what its calls return.
        """
        session, settings = self._session, self._session.settings
        if isinstance(program, Reading):
            return [program]

        def take() -> list[Reading]:
            sampled = session.measure(program, settings.side_budget_s, self._bench.reset, settings.side_window)
            if cold is not None:
                check_peak(sampled.us, cold, session.ceilings, settings.ceiling_margin)
            if verified:
                verify(self._bench, program, self.seed + 1)  # content that no verification has seen, of one slot
            return [self.frame.time(metric, sampled, taken, program.shape)]

        return self._guarded(metric, take)

    def _eager(self) -> list[Reading]:
        def take() -> list[Reading]:
            plan = self.frame.ready.plan
            steps = eager_steps(self._bench, self.us, self._session.settings)
            used = Shape(len(set(steps) - {ADVANCE}), None, 0)
            apart = (used.slots - 1) * plan.touched >= self._session.settings.cache_multiples * plan.cache_bytes
            if not (apart or self._fillings_empty):
                return [self._skipped(metric, Reason.NOT_COLD) for metric in ("eager_us", "enqueue_us")]
            taken = EAGER if apart or self._bench.cycle is None else replace(EAGER, cache=Cache.WARM)
            eager, enqueue = time_eager(self._bench, self._session, steps, plan.growth)
            return [self.frame.time("eager_us", eager, taken, used), self.frame.time("enqueue_us", enqueue, taken, used)]

        return self._guarded("eager_us", take)

    def _guarded(self, metric: str, take: Callable[[], list[Reading]]) -> list[Reading]:
        try:
            return take()
        except InvalidTiming as breach:
            if breach.reason is Reason.NEGATIVE_TIME:
                raise
            return [invalid(metric, breach, self._bench.subject)]
        except torch.OutOfMemoryError:
            return [self._skipped(metric, Reason.MEMORY)]
