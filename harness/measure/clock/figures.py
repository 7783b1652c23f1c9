"""The figures of one cell that is set up: proves that replays compute, measures every figure, and proves it again."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace

from harness.measure.clock.beside import Beside
from harness.measure.clock.cycles import Cycled, time_phases
from harness.measure.clock.estimate import calls_lasting, calls_per_sample, is_representative
from harness.measure.clock.facts import RingProof
from harness.measure.clock.floors import ONE_PROGRAM
from harness.measure.clock.in_turn import time_in_turn
from harness.measure.clock.program import ADVANCE, Bench, Program, Shape
from harness.measure.clock.readings import CYCLE, PHASE, RING, Frame
from harness.measure.clock.ring import RingPlan
from harness.measure.clock.sampling import Sampled
from harness.measure.clock.session import ClockSession
from harness.measure.clock.set_up import SetUp
from harness.measure.clock.validity import InvalidTiming, Reason, check_doubling, check_peak, check_phases
from harness.measure.clock.verify import verify, verify_cursor
from harness.measure.costs import cost_breach
from harness.measure.subject import Reading

MAIN = "latency_us"
FIRST_BATCHES, FIRST_SAMPLES = 3, 3
FIRST_NODES = 512
"""Nodes of a first pass where the ring is too long for one."""
FIRST_TOLERANCE = 0.75
"""Batches that short may be disturbed: only a clock that is off by a factor is refused by them."""
VERIFIED_BEFORE, VERIFIED_AFTER, VERIFIED_LAST, VERIFIED_BESIDE = 1_000_003, 2_000_003, 3_000_017, 3_500_017
"""Added to a launch's seed for the contents of verification: far from those that are timed."""
AGAIN, RETAKEN = 1_500_001, 40_000_003
"""Added to those once for each time that the cell has been set up in this launch before, and where the main figure is taken again."""


@dataclass(frozen=True)
class Main:
    """The main figure of a cell.

    Args:
        figure: of calls that are all alike, or of a cycle.
        us: about how long a call takes, by which its programs were sized.
        shape: of what was replayed for it.
        phase: of what was replayed for the phases of a cycle.
    """

    figure: Sampled | Cycled
    us: float
    shape: Shape
    phase: Shape | None = None

    @property
    def pass_us(self) -> float:
        """The time of a call in a pass without a move of the cursor."""
        return self.figure.us if isinstance(self.figure, Sampled) else self.figure.phases.each[0].us


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
    _ring: RingPlan = field(init=False)
    """As it was set up."""
    _retaken: bool = False

    def __post_init__(self) -> None:
        self._ring = self.ready.plan

    def readings(self) -> list[Reading]:
        """Take every figure."""
        if self.main is None:
            first, us = self._begin()
            main, once = self._take(first, us)
        else:
            main, us = self.main, self.main.us
            once = self._pass_of(self.session.least_side_sample_us)
        main = self._proved(main, once)
        frame = Frame(self.ready, self.session.floors([grid or ONE_PROGRAM for grid in self.bench.grids] or [ONE_PROGRAM]))
        found = _told(main, frame)
        if self.beside:
            found += Beside(frame, us, self._seed + VERIFIED_BESIDE).readings()
        if self.beside or self.ready.proves:
            verify(self.bench, once, self._seed + VERIFIED_LAST)
        return found

    def main_alone(self) -> Main:
        """Take the main figure."""
        main, _ = self._take(*self._begin())
        return main

    def _begin(self) -> tuple[Program, float]:
        """A first pass over the ring, and about how long a call takes (us)."""
        self._prepare()
        few = max(1, FIRST_NODES // self.bench.nodes) if self._evictions else None
        first = self.bench.capture(self.bench.one_pass[:few], evictions=self._evictions)
        return first, self._first_look(first)

    def _pass_of(self, least_us: float) -> Program:
        """Verified passes over the ring that last so long, of a cell whose main figure is known."""
        assert self.main is not None
        self._prepare()
        if self._evictions:
            self._use(calls_lasting(least_us, self.main.us))
        once = self._lengthened(None, self.main.us, least_us)
        verify(self.bench, once, self._seed + VERIFIED_BEFORE)
        return once

    def _prepare(self) -> None:
        self.session.note_busy()  # the ring was filled
        self.bench.prepare()
        self.session.note_busy()
        self._check_costs()
        self._shorten()

    @property
    def _evictions(self) -> int:
        """How often the cache is filled between two samples."""
        return self.ready.plan.evictions

    def _shorten(self) -> None:
        """Fill the cache between samples where a pass over the ring has too many nodes."""
        most, ready = self.session.settings.most_nodes, self.ready
        if not (ready.known or ready.keeps) and self.bench.slots * self.bench.nodes > most:
            self._use(most)

    def _use(self, slots: int) -> None:
        """Go by at most so many slots, with the cache filled between samples."""
        plan = self._ring.evicted(slots)
        self.ready = replace(self.ready, plan=plan)
        self.bench.slots = plan.slots

    @property
    def _seed(self) -> int:
        return self.session.seed + AGAIN * self.attempt + RETAKEN * self._retaken

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

    def _take(self, first: Program | None, us: float) -> tuple[Main, Program]:
        """The main figure, verified before and after, and passes over the ring that last for a sample."""
        if self._evictions:
            self._use(self.ready.known.evicted if self.ready.known else calls_lasting(self.session.least_sample_us, us))
        take = self._take_cycle if self.bench.cycle else self._take_calls
        return take(first, us)

    def _take_calls(self, first: Program | None, us: float) -> tuple[Main, Program]:
        """Of a kernel whose calls are all alike."""
        main = self._lengthened(first, us, self.session.least_sample_us)
        verify(self.bench, main, self._seed + VERIFIED_BEFORE)
        sampled = self._measure_cold(main)
        verify(self.bench, main, self._seed + VERIFIED_AFTER)
        return Main(sampled, us, main.shape), main

    def _take_cycle(self, first: Program | None, us: float) -> tuple[Main, Program]:
        """Of a kernel whose cost depends on the phase of a cycle: of its step, and of its phases alone. Where the cache is filled
        between samples, the step is the phases' mean: within a cycle the slots are used again."""
        bench, least_us = self.bench, self.session.least_sample_us
        whole = None
        if not self._evictions:
            whole = bench.capture(bench.pass_over(bench.slots), calls_per_sample(us, bench.slots * bench.cycle_length, least_us))
        advance = bench.capture((ADVANCE,))
        phase = self._lengthened(first, us, least_us)
        verify_cursor(bench, advance)
        verify(bench, whole or phase, self._seed + VERIFIED_BEFORE)
        cycle = self._measure_phases(phase, advance) if whole is None else self._measure_cycle(whole, phase, advance)
        verify(bench, whole or phase, self._seed + VERIFIED_AFTER)
        return Main(cycle, us, (whole or phase).shape, phase.shape), phase

    def _measure_phases(self, phase: Program, advance: Program) -> Cycled:
        self._check_cold(phase)
        cycle = time_phases(self.bench, self.session, phase, advance)
        self._check_peak(cycle.step)
        return cycle

    def _measure_cycle(self, whole: Program, phase: Program, advance: Program) -> Cycled:
        step = self._measure_cold(whole)
        phases = time_phases(self.bench, self.session, phase, advance).phases
        self._reconcile(whole, step.us, [each.us for each in phases.each])
        return Cycled(step, phases)

    def _reconcile(self, whole: Program, us: float, phase_us: list[float]) -> None:
        """Hold the phases against the cycle; where they disagree, once more with the cycle as it is now: a unit that has come to
        its power cap meanwhile is slower in both.

        Raises:
            InvalidTiming: phases, or what measuring raises.
        """
        settings = self.session.settings
        try:
            check_phases([us], phase_us, settings.phase_tolerance)
        except InvalidTiming:
            now = self.session.measure(whole, settings.side_budget_s, self.bench.reset, settings.side_window)
            check_phases([us, now.us], phase_us, settings.phase_tolerance)

    def _lengthened(self, first: Program | None, us: float, least_us: float) -> Program:
        """Passes over the ring that last so long, one where the cache is filled between samples: `first` itself where it is that."""
        passes = self._passes(us, self.bench.slots, least_us)
        if first is not None:
            if passes * self.bench.slots == len(first.steps):
                return first
            first.release()
        return self.bench.capture(self.bench.one_pass, passes, evictions=self._evictions)

    def _passes(self, us: float, slots: int, least_us: float) -> int:
        """How many passes over so many slots make a sample: one where the cache is filled between samples."""
        return 1 if self._evictions else calls_per_sample(us, slots, least_us)

    def _measure_cold(self, main: Program) -> Sampled:
        """The cold figure, refused where it cannot be one.

        Raises:
            InvalidTiming: not_cold, over_peak, or what measuring raises.
        """
        self._check_cold(main)
        settings = self.session.settings
        sampled = self.session.measure(main, settings.budget_s, self.bench.reset, enough=is_representative)
        self._check_peak(sampled)
        return sampled

    def _check_cold(self, main: Program) -> None:
        if not self.ready.plan.is_cold(len(main.slots), main.calls, len(main.between), self.session.settings.cache_multiples):
            reuse = self.ready.plan.reuse_bytes(len(main.slots))
            uses = f"{len(main.slots)} of {self.ready.plan.slots} buffers are touched by {main.calls} calls"
            between = f"{reuse} bytes between two uses of one, the cache filled {len(main.between)} times between samples"
            raise InvalidTiming(Reason.NOT_COLD, f"{uses}, {between}")
        if self._evictions:
            self.session.filling.check()

    def _check_peak(self, cold: Sampled) -> None:
        check_peak(cold.us, self.bench.subject.traffic, self.session.ceilings, self.session.settings.ceiling_margin)

    def _proved(self, main: Main, once: Program) -> Main:
        """A cold figure. One that was taken in this set-up is taken again where the proof that it is cold finds another time: what came
        before a shift is warm-up. One that was taken before stays: in no launch does anything else come before it, and a ring that is
        set up once more may have another time for good.

        Args:
            once: passes over the ring.
        """
        if not self.ready.proves:
            return main
        doubled = self._doubled(once, main.us)
        if not self._prove_cold(once, main, doubled) and self.main is None:
            self._retaken = True
            main, _ = self._take(None, main.us)
            if not self._prove_cold(once, main, doubled):
                main = replace(main, figure=main.figure.unsettled())
        if doubled is not None and doubled.graphs != once.graphs:
            doubled.release()
        return main

    def _doubled(self, once: Program, us: float) -> Program | None:
        """Passes over twice the ring, or the same calls with the cache filled twice as often; None where that does not fit."""
        bench = self.bench
        if self._evictions:
            return replace(once, between=self.session.evictions(2 * self._evictions))
        if bench.ring.slots < 2 * bench.slots:
            return None
        least_us = self.session.least_side_sample_us
        return bench.capture(tuple(range(bench.ring.slots)), self._passes(us, bench.ring.slots, least_us))

    def _prove_cold(self, once: Program, main: Main, doubled: Program | None) -> bool:
        """Note for this lease what doubling the ring does to the time, the ring and twice the ring in turn.

        Args:
            main: the figure that was taken with the ring.
            doubled: passes over twice the ring; None where there is no room for it.

        Returns:
            Whether the ring still takes that time.

        Raises:
            InvalidTiming: what measuring raises, or RingTooSmall.
        """
        limit, now, twice, change = self.session.settings.doubling_limit, main.pass_us, None, None
        if doubled is not None:
            now, twice = time_in_turn(self.session, (once, doubled), self.bench.reset)
            change = check_doubling(now, twice, limit)
        proofs = self.session.facts.rings.setdefault(str(self.bench.subject.cell), {})
        proofs[self.ready.code] = RingProof(self.ready.plan.growth, main.shape.slots if self._evictions else 0, now, twice, change)
        return abs(now / main.pass_us - 1) < limit


def _told(main: Main, frame: Frame) -> list[Reading]:
    """The readings of a main figure."""
    figure, shape = main.figure, main.shape
    if isinstance(figure, Sampled):
        return [frame.time(MAIN, figure, RING, shape), *frame.bandwidth(figure.us, RING, shape)]
    found = [frame.time(MAIN, figure.step, CYCLE, shape), *frame.bandwidth(figure.step.us, CYCLE, shape)]
    return found + [frame.time(metric, part, PHASE, main.phase) for metric, part in figure.phases.figures().items()]
