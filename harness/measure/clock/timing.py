"""Times one cell: sets up its ring, proves that replays compute, measures every figure, and proves it again."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from harness.authoring.model import Inputs, Traffic
from harness.measure.clock.content import dense_bytes, group
from harness.measure.clock.cycles import Phases, time_phases
from harness.measure.clock.estimate import calls_per_sample
from harness.measure.clock.facts import RingProof
from harness.measure.clock.floors import ONE_PROGRAM
from harness.measure.clock.modes import capture_chain, time_eager, time_single
from harness.measure.clock.program import ADVANCE, Bench, Program, make_bench
from harness.measure.clock.readings import CHAIN, CYCLE, EAGER, GRAPH1, PHASE, RING, SERVING, WARM, Frame, Taken, invalid, skipped
from harness.measure.clock.ring import Footprint, RingPlan, estimate_bytes, footprint, is_warm, plan_ring
from harness.measure.clock.sampling import Sampled
from harness.measure.clock.serving import ServingPlan, capture_serving, plan_serving
from harness.measure.clock.session import ClockSession
from harness.measure.clock.validity import InvalidTiming, Reason, check_costs, check_doubling, check_peak, check_phases
from harness.measure.clock.verify import verify, verify_cursor
from harness.measure.data import Generator
from harness.measure.subject import Reading, Subject

MAIN = "latency_us"
Figures = TypeVar("Figures")
PROGRAMS = 2
"""Programs over all allocated slots whose outputs may be in memory at a time: the main one, and those beside it together."""
FIRST_BATCHES, FIRST_SAMPLES = 3, 3
FIRST_TOLERANCE = 0.75
"""Batches that short may be disturbed: only a clock that is off by a factor is refused by them."""
VERIFIED_BEFORE, VERIFIED_AFTER = 1_000_003, 2_000_003
"""Added to a launch's seed for the contents of verification: far from those that are timed."""


def time_cell(subject: Subject, session: ClockSession, *, beside: bool = True) -> list[Reading]:
    """Measure a cell that passed its correctness gate in this launch.

    Args:
        beside: take the figures that nothing is judged by too: warm, serving, chained, one replay, eager.

    Returns:
        `latency_us` first: invalid or skipped and alone, or valid with every other figure that the cell has. A number
        that failed a check is in no reading.
    """
    if session.fault is not None:
        return [invalid(MAIN, session.fault, subject)]
    try:
        return _time_cell(subject, session, beside)
    except InvalidTiming as breach:
        if breach.reason is Reason.NEGATIVE_TIME:
            # The clock itself is wrong: nothing that it said in this launch can be used.
            session.fault = InvalidTiming(breach.reason, breach.detail)
        return [invalid(MAIN, breach, subject)]
    finally:
        session.device.release_memory()


def _time_cell(subject: Subject, session: ClockSession, beside: bool) -> list[Reading]:
    timing = _set_up(subject, session, beside)
    if timing is None:
        return [skipped(MAIN, Reason.MEMORY, {"data": subject.kernel.data})]
    try:
        return timing.readings()
    finally:
        timing.bench.release()


def footprint_of(subject: Subject) -> Footprint:
    """Bytes of one call, from the layout of its inputs alone: nothing is allocated."""
    inputs = _layout(subject)
    allocated = sum(of.pitch for of in group(inputs, "meta"))
    mutated = dense_bytes(inputs, "meta", subject.variant.mutates or ())
    return footprint(allocated, dense_bytes(inputs, "meta"), mutated, subject.kernel.traffic(subject.case))


def _layout(subject: Subject) -> Inputs:
    return subject.kernel.make_inputs(subject.case, Generator(0, "meta"))


def _set_up(subject: Subject, session: ClockSession, beside: bool) -> _Timing | None:
    """Allocate the ring, twice as large where the cell's ring is not proved yet; None where there is no room for it."""
    device, settings = session.device, session.settings
    one = footprint_of(subject)
    plan = plan_ring(one.touched, device.limits, settings.cache_multiples)
    room = min(device.limits.usable_memory_bytes, device.free_bytes())
    if estimate_bytes(one, plan.slots, PROGRAMS) > room:
        return None
    is_proved = str(subject.cell) in session.facts.rings
    doubles = not is_proved and estimate_bytes(one, 2 * plan.slots, PROGRAMS) <= room
    serving = plan_serving(subject, one, _layout(subject), device.limits, settings, room) if beside else None
    allocated = max(2 * plan.slots if doubles else plan.slots, serving.slots if serving else 0)
    spare = room - estimate_bytes(one, allocated, PROGRAMS)
    bench = make_bench(subject, device, plan.slots, session.seed, settings.contents, allocated=allocated, spare_bytes=spare)
    return _Timing(session, bench, plan, proves=not is_proved, beside=beside, serving=serving)


@dataclass(frozen=True)
class _Beside:
    """Programs of the figures beside the cold one; None where the cell has none."""

    single: Program
    warm: Program | None
    serving: Program | None
    chain: Program | None


@dataclass
class _Timing:
    """The figures of one cell. Everything is captured first, so that the device does not cool down between them.

    Args:
        proves: whether doubling the ring is tried.
        beside: whether the figures that nothing is judged by are taken.
        serving: the ring whose calls share their activations; None where none are declared, or nothing is taken beside.
    """

    session: ClockSession
    bench: Bench
    plan: RingPlan
    proves: bool
    beside: bool
    serving: ServingPlan | None

    def readings(self) -> list[Reading]:
        """Take every figure."""
        bench, session = self.bench, self.session
        bench.prepare()
        self._check_costs()
        frame = Frame(bench, session, session.floors([grid for grid in bench.grids if grid] or [ONE_PROGRAM]))
        first = bench.capture(bench.one_pass)
        us = self._first_look(first)
        return self._cycle(frame, first, us) if bench.cycle else self._calls(frame, first, us)

    def _check_costs(self) -> None:
        """Hold the kernel's compulsory bytes against the tensors of its default variant, whose bytes they are.

        Raises:
            InvalidTiming: cost_model.
        """
        subject, inputs = self.bench.subject, self.bench.scratch.inputs(0)
        if subject.variant_name != subject.kernel.default:
            return
        device, mutated = subject.torch_device, subject.variant.mutates or ()
        every, changed = dense_bytes(inputs, device), dense_bytes(inputs, device, mutated)
        check_costs(subject.kernel.traffic(subject.case), every, self.bench.output_bytes, changed, self.session.settings.cost_tolerance)

    def _first_look(self, first: Program) -> float:
        """About how long a call takes (us). Samples are sized by it, so a clock that is far off must be found here.

        Raises:
            InvalidTiming: host_clock, negative_time or no_valid_samples.
        """
        session = self.session
        batches = [session.take(first.replays, first.calls, FIRST_SAMPLES, self.bench.reset) for _ in range(FIRST_BATCHES)]
        quickest = min(batches, key=lambda batch: batch.wall_us)
        session.check_host([quickest], FIRST_TOLERANCE)
        return statistics.median(us for batch in batches for us in batch.samples)

    def _calls(self, frame: Frame, first: Program, us: float) -> list[Reading]:
        """A kernel whose calls are all alike."""
        bench, session = self.bench, self.session
        main = self._lengthened(first, us)
        beside = self._capture_beside(us) if self.beside else None
        doubled = self._capture_doubled(us)
        verify(bench, main, session.seed + VERIFIED_BEFORE)
        sampled = self._settled(partial(self._cold_call, main, doubled))
        found = [frame.time(MAIN, sampled, RING, main), *frame.bandwidth(sampled.us, RING, main)]
        if beside is not None:
            found += self._measure_beside(beside, frame)
            found += self._eager(frame, sampled.us)
        verify(bench, main, session.seed + VERIFIED_AFTER)
        return found

    def _capture_beside(self, us: float) -> _Beside:
        bench = self.bench
        warm = bench.capture((0,), self._repetitions(us, 1)) if self._fits_cache() else None
        chain = capture_chain(bench, self._repetitions(us, bench.slots))
        return _Beside(bench.capture((0,)), warm, self._capture_serving(us), chain)

    def _capture_serving(self, us: float) -> Program | None:
        plan = self.serving
        return capture_serving(self.bench, plan, us, self.session.least_sample_us) if plan is not None and plan.slots else None

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
        plan, metric = self.serving, "latency_serving_us"
        if plan is None:
            return []
        if program is None:
            return [skipped(metric, plan.why_not, {"data": self.bench.subject.kernel.data})]
        return self._replayed(metric, program, SERVING, frame, plan.cold)

    def _cycle(self, frame: Frame, first: Program, us: float) -> list[Reading]:
        """A kernel whose cost depends on the phase of a cycle."""
        bench, session = self.bench, self.session
        main = bench.capture(bench.pass_over(bench.slots), self._repetitions(us, bench.slots * bench.cycle_length))
        advance = bench.capture((ADVANCE,))
        phase = self._lengthened(first, us)
        serving = self._capture_serving(us)
        doubled = self._capture_doubled(us)
        verify_cursor(bench, advance)
        verify(bench, main, session.seed + VERIFIED_BEFORE)
        sampled, phases = self._settled(partial(self._cold_cycle, main, phase, advance, doubled))
        found = [frame.time(MAIN, sampled, CYCLE, main), *frame.bandwidth(sampled.us, CYCLE, main)]
        found += [frame.time(metric, part, PHASE, phase) for metric, part in phases.figures().items()]
        if self.beside:
            found += self._measure_serving(serving, frame)
            found += self._eager(frame, sampled.us)
        verify(bench, main, session.seed + VERIFIED_AFTER)
        return found

    def _cold_call(self, main: Program, doubled: Program | None) -> Sampled:
        sampled = self._measure_main(main)
        self._prove_cold(doubled, sampled.us)
        return sampled

    def _cold_cycle(self, main: Program, phase: Program, advance: Program, doubled: Program | None) -> tuple[Sampled, Phases]:
        sampled = self._measure_main(main)
        phases = time_phases(self.bench, self.session, phase, advance)
        self._reconcile(main, sampled.us, [each.us for each in phases.each])
        self._prove_cold(doubled, phases.each[0].us)
        return sampled, phases

    @staticmethod
    def _settled(measure: Callable[[], Figures]) -> Figures:
        """Measure; where doubling the ring gave another time, once more: the ring is not cold, or the unit's level has shifted, at
        its power cap say, and what came before a shift is warm-up.

        Raises:
            InvalidTiming: not_cold, or what measuring raises.
        """
        try:
            return measure()
        except InvalidTiming as breach:
            if breach.reason is not Reason.NOT_COLD:
                raise
            return measure()

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
            check_phases([us, self._aside(main)], phase_us, tolerance)

    def _repetitions(self, us: float, unit: int) -> int:
        return calls_per_sample(us, unit, self.session.least_sample_us)

    def _lengthened(self, first: Program, us: float) -> Program:
        """Passes over the ring that last for a sample: `first` itself where one pass does."""
        repetitions = self._repetitions(us, self.bench.slots)
        if repetitions == 1:
            return first
        first.release()
        return self.bench.capture(self.bench.one_pass, repetitions)

    def _fits_cache(self) -> bool:
        return is_warm(self.plan.touched, self.session.device.limits, self.session.settings.warm_fraction)

    def _measure_main(self, main: Program) -> Sampled:
        """The cold figure, refused where it cannot be one.

        Raises:
            InvalidTiming: not_cold, over_peak, or what measuring raises.
        """
        bench, settings = self.bench, self.session.settings
        if not self.plan.is_cold(len(main.slots), settings.cache_multiples):
            between = self.plan.reuse_bytes(len(main.slots))
            found = f"{len(main.slots)} of {self.plan.slots} buffers are touched, {between} bytes between two uses of one"
            raise InvalidTiming(Reason.NOT_COLD, found)
        sampled = self.session.measure(main.replays, main.calls, settings.budget_s, bench.reset)
        check_peak(sampled.us, bench.subject.kernel.traffic(bench.subject.case), self.session.ceilings, settings.ceiling_margin)
        return sampled

    def _capture_doubled(self, us: float) -> Program | None:
        """Passes over twice the ring; None where that is proved already or does not fit."""
        bench = self.bench
        if not self.proves or bench.ring.slots < 2 * bench.slots:
            return None
        return bench.capture(tuple(range(bench.ring.slots)), self._repetitions(us, bench.ring.slots))

    def _prove_cold(self, doubled: Program | None, us: float) -> None:
        """Note for this lease what doubling the ring does to the time.

        Raises:
            InvalidTiming: not_cold, or what measuring raises.
        """
        if not self.proves:
            return
        proof = RingProof(us, None, None)
        if doubled is not None:
            twice = self._aside(doubled)
            proof = RingProof(us, twice, check_doubling(us, twice, self.session.settings.doubling_limit))
            doubled.release()
        self.session.facts.rings[str(self.bench.subject.cell)] = proof

    def _aside(self, program: Program) -> float:
        """A call's time by a program, known as well as that of a figure beside the main one (us)."""
        session = self.session
        return session.measure(program.replays, program.calls, session.settings.side_budget_s, self.bench.reset).us

    def _replayed(self, metric: str, program: Program, taken: Taken, frame: Frame, cold: Traffic | None = None) -> list[Reading]:
        """A figure beside the cold one, by replaying a program.

        Args:
            cold: what a call must read from memory at least; None where that is nothing.
        """
        session, settings = self.session, self.session.settings

        def take() -> list[Reading]:
            sampled = session.measure(program.replays, program.calls, settings.side_budget_s, self.bench.reset)
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
