"""The figures of one cell that is set up: proves that replays compute, measures every figure, and proves it again."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from harness.authoring.model import Traffic
from harness.measure.clock.cycles import Cycled, time_phases
from harness.measure.clock.estimate import calls_per_sample
from harness.measure.clock.facts import RingProof
from harness.measure.clock.floors import ONE_PROGRAM
from harness.measure.clock.in_turn import time_in_turn
from harness.measure.clock.modes import capture_chain, time_eager, time_single
from harness.measure.clock.program import ADVANCE, Bench, Program
from harness.measure.clock.readings import CHAIN, CYCLE, EAGER, GRAPH1, PHASE, RING, SERVING, WARM, Frame, Taken, invalid, skipped
from harness.measure.clock.ring import is_warm
from harness.measure.clock.sampling import Sampled
from harness.measure.clock.serving import capture_serving
from harness.measure.clock.session import ClockSession
from harness.measure.clock.set_up import SetUp
from harness.measure.clock.validity import InvalidTiming, Reason, check_doubling, check_peak, check_phases
from harness.measure.clock.verify import verify, verify_cursor
from harness.measure.costs import cost_breach
from harness.measure.subject import Reading

MAIN = "latency_us"
Figure = TypeVar("Figure", Sampled, Cycled)
FIRST_BATCHES, FIRST_SAMPLES = 3, 3
FIRST_SLOTS = 256
"""Slots of a first pass where the ring is too long for one."""
FIRST_TOLERANCE = 0.75
"""Batches that short may be disturbed: only a clock that is off by a factor is refused by them."""
VERIFIED_BEFORE, VERIFIED_AFTER = 1_000_003, 2_000_003
"""Added to a launch's seed for the contents of verification: far from those that are timed."""
AGAIN = 1_500_001
"""Added to those once for each time that the cell has been set up in this launch before."""


@dataclass(frozen=True)
class Main:
    """The main figure of a cell: of calls that are all alike, or of a cycle.

    Args:
        us: about how long a call takes, by which its programs were sized.
    """

    figure: Sampled | Cycled
    us: float


@dataclass(frozen=True)
class _Beside:
    """Programs of the figures beside the cold one; None where the cell has none."""

    single: Program
    warm: Program | None
    serving: Program | None
    chain: Program | None


@dataclass(frozen=True)
class _Cycle:
    """Programs of a kernel with a cycle: whole cycles, a pass in which the cursor is held still, and one move of it."""

    main: Program
    phase: Program
    advance: Program


@dataclass
class Figures:
    """The figures of one cell. The main one comes before anything that only some launches need.

    Args:
        beside: whether the figures that nothing is judged by are taken.
        main: the main figure, where it was taken before.
        attempt: how often the cell has been set up in this launch before.
    """

    ready: SetUp
    session: ClockSession
    bench: Bench
    beside: bool
    main: Main | None = None
    attempt: int = 0

    def readings(self) -> list[Reading]:
        """Take every figure."""
        first, us = self._begin()
        return self._cycle(first, us) if self.bench.cycle else self._calls(first, us)

    def main_alone(self) -> Main:
        """Take the main figure."""
        first, us = self._begin()
        figure: Sampled | Cycled
        if self.bench.cycle:
            cycle = self._capture_cycle(first, us)
            main, figure = cycle.main, self._measure_cycle(cycle)
        else:
            main = self._capture_calls(first, us)
            figure = self._measure_main(main)
        verify(self.bench, main, self._seed + VERIFIED_AFTER)
        return Main(figure, us)

    def _begin(self) -> tuple[Program, float]:
        """A first pass over the ring, and about how long a call takes (us)."""
        self.session.note_busy()  # the ring was filled
        self.bench.prepare()
        self.session.note_busy()
        self._check_costs()
        self._shorten()
        first = self.bench.capture(self.bench.one_pass[: FIRST_SLOTS if self._evictions else None], evictions=self._evictions)
        us = self._first_look(first) if self.main is None else self.main.us
        if self._evictions:
            self._use(calls_per_sample(us, 1, self.session.least_sample_us))
        return first, us

    @property
    def _evictions(self) -> int:
        """How often the cache is filled between two samples."""
        return self.ready.plan.evictions

    def _shorten(self) -> None:
        """Fill the cache between samples where a pass over the ring has too many nodes, or where other code of the cell had."""
        known, most = self.session.facts.ring(str(self.bench.subject.cell)), self.session.settings.most_nodes
        if known.evicts if known else self.bench.slots * self.bench.nodes > most:
            self._use(most // 2)

    def _use(self, slots: int) -> None:
        """Go by at most so many slots, with the cache filled between samples."""
        plan = self.ready.plan.evicted(slots)
        self.ready = replace(self.ready, plan=plan)
        self.bench.slots = plan.slots

    @property
    def _seed(self) -> int:
        return self.session.seed + AGAIN * self.attempt

    def _frame(self) -> Frame:
        return Frame(self.ready, self.session.floors([grid for grid in self.bench.grids if grid] or [ONE_PROGRAM]))

    def _check_costs(self) -> None:
        """Hold compulsory bytes against the tensors of the variant whose bytes they are: the kernel's against its default variant's.

        Raises:
            InvalidTiming: cost_model.
        """
        breach = cost_breach(self.bench.subject, self.bench.scratch.inputs(0), self.bench.output_bytes)
        if breach is not None:
            raise InvalidTiming(Reason.COST_MODEL, breach)

    def _first_look(self, first: Program) -> float:
        """About how long a call takes (us). Samples are sized by it, so a clock that is far off must be found here.

        Raises:
            InvalidTiming: host_clock, negative_time or no_valid_samples.
        """
        session = self.session
        batches = [session.take(first.replays, first.calls, FIRST_SAMPLES, self.bench.reset, first.between) for _ in range(FIRST_BATCHES)]
        quickest = min(batches, key=lambda batch: batch.wall_us)
        session.check_host([quickest], FIRST_TOLERANCE)
        return statistics.median(us for batch in batches for us in batch.samples)

    def _calls(self, first: Program, us: float) -> list[Reading]:
        """A kernel whose calls are all alike."""
        bench = self.bench
        main = self._capture_calls(first, us)
        known = self.main.figure if self.main else None
        assert not isinstance(known, Cycled)
        sampled = self._proved(known, partial(self._measure_main, main), lambda sampled: sampled.us, main, us)
        frame = self._frame()
        found = [frame.time(MAIN, sampled, RING, main), *frame.bandwidth(sampled.us, RING, main)]
        if self.beside:
            found += self._measure_beside(self._capture_beside(us), frame)
            found += self._eager(frame, sampled.us)
        verify(bench, main, self._seed + VERIFIED_AFTER)
        return found

    def _capture_calls(self, first: Program, us: float) -> Program:
        main = self._lengthened(first, us)
        verify(self.bench, main, self._seed + VERIFIED_BEFORE)
        return main

    def _capture_beside(self, us: float) -> _Beside:
        bench = self.bench
        warm = bench.capture((0,), self._repetitions(us, 1)) if self._fits_cache() else None
        chain = capture_chain(bench, self._passes(us, bench.slots), self._evictions)
        return _Beside(bench.capture((0,)), warm, self._capture_serving(us), chain)

    def _capture_serving(self, us: float) -> Program | None:
        plan = self.ready.serving
        return capture_serving(self.bench, plan, us) if plan is not None and plan.slots else None

    def _measure_beside(self, programs: _Beside, frame: Frame) -> list[Reading]:
        single, session = programs.single, self.session
        found = self._guarded("graph1_us", lambda: [frame.time("graph1_us", time_single(session, single), GRAPH1, single)])
        if programs.warm is None:
            found.append(skipped("latency_warm_us", Reason.WARM_FOOTPRINT, {"data": self.bench.subject.kernel.data}))
        else:
            found += self._replayed("latency_warm_us", programs.warm, WARM, frame)
        found += self._measure_serving(programs.serving, frame)
        if programs.chain is not None:
            found += self._replayed("chained_us", programs.chain, CHAIN, frame)
        return found

    def _measure_serving(self, program: Program | None, frame: Frame) -> list[Reading]:
        plan, metric = self.ready.serving, "latency_serving_us"
        if plan is None:
            return []
        if program is None:
            return [skipped(metric, plan.why_not, {"data": self.bench.subject.kernel.data})]
        return self._replayed(metric, program, SERVING, frame, plan.cold)

    def _cycle(self, first: Program, us: float) -> list[Reading]:
        """A kernel whose cost depends on the phase of a cycle."""
        bench = self.bench
        programs = self._capture_cycle(first, us)
        main, phase = programs.main, programs.phase
        known = self.main.figure if self.main else None
        assert not isinstance(known, Sampled)
        cycle = self._proved(known, partial(self._measure_cycle, programs), lambda cycle: cycle.phases.each[0].us, phase, us)
        sampled, phases = cycle.step, cycle.phases
        frame = self._frame()
        found = [frame.time(MAIN, sampled, CYCLE, main), *frame.bandwidth(sampled.us, CYCLE, main)]
        found += [frame.time(metric, part, PHASE, phase) for metric, part in phases.figures().items()]
        if self.beside:
            found += self._measure_serving(self._capture_serving(us), frame)
            found += self._eager(frame, sampled.us)
        verify(bench, main, self._seed + VERIFIED_AFTER)
        return found

    def _capture_cycle(self, first: Program, us: float) -> _Cycle:
        bench = self.bench
        phase: Program | None = None
        if self._evictions:  # within a cycle the slots are used again
            main = phase = self._lengthened(first, us)
        else:
            main = bench.capture(bench.pass_over(bench.slots), self._repetitions(us, bench.slots * bench.cycle_length))
        advance = bench.capture((ADVANCE,))
        phase = phase or self._lengthened(first, us)
        verify_cursor(bench, advance)
        verify(bench, main, self._seed + VERIFIED_BEFORE)
        return _Cycle(main, phase, advance)

    def _proved(
        self, known: Figure | None, measure: Callable[[], Figure], us_of: Callable[[Figure], float], once: Program, us: float
    ) -> Figure:
        """A cold figure; taken again where the proof that it is cold finds another time: what came before a shift is warm-up.

        Args:
            known: the figure, where it was taken before.
            us_of: the time of a call in the figure that the program `once` takes; `us` is about that.
        """
        figure = measure() if known is None else known
        if not self.ready.proves:
            return figure
        doubled = self._capture_doubled(us)
        if not self._prove_cold(once, us_of(figure), doubled):
            figure = measure()
            if not self._prove_cold(once, us_of(figure), doubled):
                figure = figure.unsettled()
        if doubled is not None:
            doubled.release()
        return figure

    def _measure_cycle(self, programs: _Cycle) -> Cycled:
        """A step of the cycle, and its phases; where the cache is filled between samples, the step is the phases' mean."""
        if self._evictions:
            self._check_cold(programs.phase)
            cycle = time_phases(self.bench, self.session, programs.phase, programs.advance)
            self._check_peak(cycle.step)
            return cycle
        step = self._measure_main(programs.main)
        phases = time_phases(self.bench, self.session, programs.phase, programs.advance).phases
        self._reconcile(programs.main, step.us, [each.us for each in phases.each])
        return Cycled(step, phases)

    def _reconcile(self, main: Program, us: float, phase_us: list[float]) -> None:
        """Hold the phases against the cycle; where they disagree, once more with the cycle as it is now: a unit that has come to
        its power cap meanwhile is slower in both.

        Raises:
            InvalidTiming: phases, or what measuring raises.
        """
        tolerance = self.session.settings.phase_tolerance
        try:
            check_phases([us], phase_us, tolerance)
        except InvalidTiming:
            now = self._replay_aside(main)
            check_phases([us, now.us], phase_us, tolerance)

    def _repetitions(self, us: float, unit: int) -> int:
        return calls_per_sample(us, unit, self.session.least_sample_us)

    def _passes(self, us: float, slots: int) -> int:
        """How many passes over so many slots make a sample: one where the cache is filled between samples."""
        return 1 if self._evictions else self._repetitions(us, slots)

    def _lengthened(self, first: Program, us: float) -> Program:
        """Passes over the ring that last for a sample: `first` itself where one pass does."""
        passes = self._passes(us, self.bench.slots)
        if passes * self.bench.slots == len(first.steps):
            return first
        first.release()
        return self.bench.capture(self.bench.one_pass, passes, evictions=self._evictions)

    def _fits_cache(self) -> bool:
        return is_warm(self.ready.plan.touched, self.session.device.limits, self.session.settings.warm_fraction)

    def _measure_main(self, main: Program) -> Sampled:
        """The cold figure, refused where it cannot be one.

        Raises:
            InvalidTiming: not_cold, over_peak, or what measuring raises.
        """
        self._check_cold(main)
        sampled = self._replay(main, self.session.settings.budget_s, self.session.settings.settle_window)
        self._check_peak(sampled)
        return sampled

    def _check_cold(self, main: Program) -> None:
        if not self.ready.plan.is_cold(len(main.slots), main.calls, len(main.between), self.session.settings.cache_multiples):
            reuse = self.ready.plan.reuse_bytes(len(main.slots))
            uses = f"{len(main.slots)} of {self.ready.plan.slots} buffers are touched by {main.calls} calls"
            between = f"{reuse} bytes between two uses of one, the cache filled {len(main.between)} times between samples"
            raise InvalidTiming(Reason.NOT_COLD, f"{uses}, {between}")

    def _check_peak(self, cold: Sampled) -> None:
        check_peak(cold.us, self.bench.subject.traffic, self.session.ceilings, self.session.settings.ceiling_margin)

    def _replay_aside(self, program: Program) -> Sampled:
        return self._replay(program, self.session.settings.side_budget_s, self.session.settings.side_window)

    def _replay(self, program: Program, budget_s: float, window: int) -> Sampled:
        return self.session.measure(program.replays, program.calls, budget_s, self.bench.reset, program.between, window)

    def _capture_doubled(self, us: float) -> Program | None:
        """Passes over twice the ring, with twice as much between them where the cache is filled; None where that does not fit."""
        bench = self.bench
        if bench.ring.slots < 2 * bench.slots:
            return None
        slots = 2 * bench.slots if self._evictions else bench.ring.slots
        return bench.capture(tuple(range(slots)), self._passes(us, slots), evictions=2 * self._evictions)

    def _prove_cold(self, once: Program, us: float, doubled: Program | None) -> bool:
        """Note for this lease what doubling the ring does to the time, the ring and twice the ring in turn.

        Args:
            us: what a call took with the ring, by the program `once`.
            doubled: passes over twice the ring; None where there is no room for it.

        Returns:
            Whether the ring still takes that time.

        Raises:
            InvalidTiming: what measuring raises, or RingTooSmall.
        """
        limit, now, twice, change = self.session.settings.doubling_limit, us, None, None
        if doubled is not None:
            now, twice = time_in_turn(self.session, (once, doubled), self.bench.reset)
            change = check_doubling(now, twice, limit)
        proofs = self.session.facts.rings.setdefault(str(self.bench.subject.cell), {})
        proofs[self.ready.code] = RingProof(self.ready.plan.growth, bool(self._evictions), now, twice, change)
        return abs(now / us - 1) < limit

    def _replayed(self, metric: str, program: Program, taken: Taken, frame: Frame, cold: Traffic | None = None) -> list[Reading]:
        """A figure beside the cold one, by replaying a program.

        Args:
            cold: what a call must read from memory at least; None where that is nothing.
        """
        session, settings = self.session, self.session.settings

        def take() -> list[Reading]:
            sampled = self._replay_aside(program)
            if cold is not None:
                check_peak(sampled.us, cold, session.ceilings, settings.ceiling_margin)
            return [frame.time(metric, sampled, taken, program)]

        return self._guarded(metric, take)

    def _eager(self, frame: Frame, us: float) -> list[Reading]:
        def take() -> list[Reading]:
            eager, enqueue = time_eager(self.bench, self.session, us)
            return [frame.time("eager_us", eager, EAGER), frame.time("enqueue_us", enqueue, EAGER)]

        return self._guarded("eager_us", take)

    def _guarded(self, metric: str, take: Callable[[], list[Reading]]) -> list[Reading]:
        """A breach beside the main figure spoils that figure alone, unless the clock itself is wrong."""
        try:
            return take()
        except InvalidTiming as breach:
            if breach.reason is Reason.NEGATIVE_TIME:
                raise
            return [invalid(metric, breach, self.bench.subject)]
