"""Times a kernel whose cost depends on a phase: whole cycles, and each phase alone with the cursor held still."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.measure.clock.estimate import calls_per_sample
from harness.measure.clock.program import ADVANCE, Bench, Program, Step
from harness.measure.clock.sampling import Sampled
from harness.measure.clock.session import ClockSession
from harness.measure.clock.validity import check_phases


def cycle_steps(bench: Bench) -> tuple[Step, ...]:
    """A whole cycle: in each of its steps a call on every slot, then one move of all cursors."""
    return (*bench.one_pass, ADVANCE) * bench.cycle_length


@dataclass(frozen=True)
class Phases:
    """The phases of a cycle, in the order in which the cursor reaches them.

    Args:
        each: time of a call in each phase (us).
    """

    each: tuple[Sampled, ...]

    @property
    def worst(self) -> int:
        """The most expensive phase."""
        return max(range(len(self.each)), key=lambda i: self.each[i].us)

    @property
    def fold(self) -> Sampled:
        """The most expensive step."""
        return self.each[self.worst]

    @property
    def append(self) -> Sampled | None:
        """The mean of the other steps; None where there are none."""
        others = [sampled for i, sampled in enumerate(self.each) if i != self.worst]
        if not others:
            return None
        means = tuple(statistics.fmean(together) for together in zip(*(s.samples for s in others), strict=False))
        return Sampled(means, all(s.converged for s in others), sum(s.restarts for s in others))


def capture_phase(bench: Bench, session: ClockSession, us: float) -> Program:
    """Passes over the ring without a move of the cursor."""
    return bench.capture(bench.one_pass, calls_per_sample(us, bench.slots, session.least_sample_us))


def time_phases(bench: Bench, session: ClockSession, program: Program, advance: Program) -> Phases:
    """Time each phase alone.

    Args:
        program: passes without a move of the cursor.
        advance: one move of the cursor and no call.
    """

    def at(phase: int) -> Sampled:
        def prepare() -> None:
            bench.reset()
            for _ in range(phase):
                advance.replay()

        return session.measure(program.replays, program.calls, session.settings.side_budget_s, prepare)

    return Phases(tuple(at(phase) for phase in range(bench.cycle_length)))


def reconcile(step_us: float, phases: Sequence[Sampled], tolerance: float) -> None:
    """Hold a step of the whole cycle against its phases.

    Raises:
        InvalidTiming: phases.
    """
    check_phases(step_us, [phase.us for phase in phases], tolerance)
