"""A kernel whose cost depends on a phase: the steps of a whole cycle, and each phase alone with the cursor held still."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from harness.measure.clock.program import ADVANCE, Bench, Program, Step
from harness.measure.clock.sampling import Sampled
from harness.measure.clock.session import ClockSession


def cycle_steps(bench: Bench) -> tuple[Step, ...]:
    """A whole cycle: in each of its steps a call on every slot, then one move of all cursors.

    The move is one operation for the whole ring, so that a call carries only its small share of it.
    """
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

    def figures(self) -> dict[str, Sampled]:
        """The most expensive step as `worst_step_us` and `fold_us`, the mean of the others, where there are any, as `append_us`."""
        fold = self.each[self.worst]
        found = {"worst_step_us": fold, "fold_us": fold}
        if others := [sampled for i, sampled in enumerate(self.each) if i != self.worst]:
            means = tuple(statistics.fmean(together) for together in zip(*(s.samples for s in others), strict=False))
            found["append_us"] = Sampled(means, all(s.converged for s in others), sum(s.restarts for s in others))
        return found


def time_phases(bench: Bench, session: ClockSession, program: Program, advance: Program) -> Phases:
    """Time each phase alone.

    Args:
        program: passes over the ring without a move of the cursor.
        advance: one move of all cursors and no call.
    """

    def at(phase: int) -> Sampled:
        def prepare() -> None:
            bench.reset()
            for _ in range(phase):
                advance.replay()

        return session.measure(program.replays, program.calls, session.settings.side_budget_s, prepare)

    return Phases(tuple(at(phase) for phase in range(bench.cycle_length)))
