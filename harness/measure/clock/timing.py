"""Times one cell: sets up its ring, proves that replays compute, measures every figure, and proves it again."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from harness.measure.clock.content import dense_bytes, group
from harness.measure.clock.cycles import Phases, capture_phase, cycle_steps, time_phases
from harness.measure.clock.estimate import calls_per_sample
from harness.measure.clock.facts import RingProof
from harness.measure.clock.floors import ONE_PROGRAM
from harness.measure.clock.modes import capture_chain, capture_warm, chain_of, time_eager, time_graph1
from harness.measure.clock.program import ADVANCE, Bench, Program, make_bench
from harness.measure.clock.readings import CHAIN, CYCLE, EAGER, GRAPH1, PHASE, RING, WARM, Frame, invalid, skipped
from harness.measure.clock.ring import Footprint, RingPlan, estimate_bytes, footprint, is_warm, plan_ring
from harness.measure.clock.session import ClockSession
from harness.measure.clock.validity import InvalidTiming, Reason, check_doubling, check_peak, check_phases
from harness.measure.clock.verify import verify, verify_cursor
from harness.measure.data import Generator
from harness.measure.subject import Reading, Subject

MAIN = "latency_us"
PROGRAMS = 3
"""Programs over the ring whose outputs are in memory at a time: the main one, one beside it and that of twice the ring."""
FIRST_SAMPLES = 3
VERIFIED_BEFORE, VERIFIED_AFTER = 1_000_003, 2_000_003
"""Added to a launch's seed for the contents of verification: far from those that are timed."""


def time_cell(subject: Subject, session: ClockSession) -> list[Reading]:
    """Measure a cell that passed its correctness gate in this launch.

    Returns:
        `latency_us` first: invalid or skipped and alone, or valid with every other figure that the cell has. A number
        that failed a check is in no reading.
    """
    if session.fault is not None:
        return [invalid(MAIN, session.fault, subject)]
    try:
        timing = _set_up(subject, session)
        return timing.readings() if timing else [skipped(MAIN, Reason.MEMORY, {"data": subject.kernel.data})]
    except InvalidTiming as breach:
        if breach.reason is Reason.NEGATIVE_TIME:
            session.fault = breach  # the clock itself is wrong: nothing that it said in this launch can be used
        return [invalid(MAIN, breach, subject)]
    finally:
        session.device.release_memory()


def footprint_of(subject: Subject) -> Footprint:
    """Bytes of one call, from the layout of its inputs alone: nothing is allocated."""
    inputs = subject.kernel.make_inputs(subject.case, Generator(0, "meta"))
    allocated = sum(of.pitch for of in group(inputs, "meta"))
    mutated = dense_bytes(inputs, "meta", subject.variant.mutates or ())
    return footprint(allocated, dense_bytes(inputs, "meta"), mutated, subject.kernel.traffic(subject.case))


def _set_up(subject: Subject, session: ClockSession) -> _Timing | None:
    """Allocate the ring, twice as large where the cell's ring is not proved yet; None where there is no room for it."""
    device, settings = session.device, session.settings
    one = footprint_of(subject)
    plan = plan_ring(one.touched, device.limits, settings.cache_multiples)
    room = min(device.limits.usable_memory_bytes, device.free_bytes())
    if estimate_bytes(one, plan.slots, PROGRAMS) > room:
        return None
    is_proved = str(subject.cell) in session.facts.rings
    doubles = not is_proved and estimate_bytes(one, 2 * plan.slots, PROGRAMS) <= room
    allocated = 2 * plan.slots if doubles else plan.slots
    bench = make_bench(subject, device, plan.slots, session.seed, settings.contents, allocated=allocated)
    return _Timing(session, bench, plan, proves=not is_proved)


@dataclass
class _Timing:
    """The figures of one cell. Everything is captured first, so that the device does not cool down between them."""

    session: ClockSession
    bench: Bench
    plan: RingPlan
    proves: bool

    def readings(self) -> list[Reading]:
        """Take every figure."""
        bench, session = self.bench, self.session
        bench.prepare()
        frame = Frame(bench, session, session.floors([grid for grid in bench.grids if grid] or [ONE_PROGRAM]))
        first, us = self._first_look()
        main = self._capture_main(first, us)
        side = _CyclePrograms.of(self, us) if bench.cycle else _CallPrograms.of(self, us)
        verify(bench, main, session.seed + VERIFIED_BEFORE)

        sampled = session.measure(main.replays, main.calls, session.settings.budget_s, bench.reset)
        check_peak(sampled.us, bench.subject.kernel.traffic(bench.subject.case), session.ceilings, session.settings.ceiling_margin)
        beside, cold_us = side.take(frame, sampled.us)
        if self.proves:
            self._prove_cold(us if cold_us is None else cold_us)
        found = [frame.time(MAIN, sampled, side.main, main), *frame.bandwidth(sampled.us, side.main, main), *beside]
        verify(bench, main, session.seed + VERIFIED_AFTER)
        return found
