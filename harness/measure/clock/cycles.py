"""A kernel whose cost depends on a phase: the steps of a whole cycle, and each phase alone with the cursor held still."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.measure.clock.estimate import is_accurate
from harness.measure.clock.program import Bench, Program
from harness.measure.clock.sampling import Sampled
from harness.measure.clock.session import Batch, ClockSession


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


@dataclass(frozen=True)
class Cycled:
    """A whole cycle, and its phases timed alone.

    Args:
        step: time of a step of the cycle.
    """

    step: Sampled
    phases: Phases

    @property
    def samples(self) -> tuple[float, ...]:
        """Those of a step of the cycle: us a call."""
        return self.step.samples

    def unsettled(self) -> Cycled:
        """These samples, where something else showed that the level shifts."""
        return Cycled(self.step.unsettled(), Phases(tuple(each.unsettled() for each in self.phases.each)))


def time_phases(bench: Bench, session: ClockSession, program: Program, advance: Program) -> Cycled:
    """Time every phase with the cursor held still for a sample, the phases in turn; the step is the mean over a round of them.

    A round is a sample of each phase, and moves the cursor after each. So the unit meets the phases in the proportion in
    which a cycle does: one phase for hundreds of milliseconds, at the power cap say, would run at clocks of its own, and the
    phases would not add up to the cycle.

    Args:
        program: passes over the ring without a move of the cursor.
        advance: one move of all cursors and no call.

    Raises:
        InvalidTiming: negative_time, no_valid_samples or host_clock.
    """
    length, batches = bench.cycle_length, list[Batch]()
    rounds: list[tuple[float, ...]] = []
    between = (*advance.graphs, *program.between)

    def take(count: int) -> list[float]:
        batches.append(session.take(program.replays, program.calls, count * length, bench.reset, between))
        taken = batches[-1].samples
        # The sample before the first is of phase 0, so the first is of phase 1.
        found = [(each[-1], *each[:-1]) for each in (taken[i : i + length] for i in range(0, len(taken), length))]
        rounds.extend(found)
        return [statistics.fmean(each) for each in found]

    def of_each(count: int) -> list[tuple[float, ...]]:
        return list(zip(*rounds[-count:], strict=True))

    def enough(means: Sequence[float]) -> bool:
        return all(is_accurate(samples) for samples in of_each(len(means)))

    rounds_a_window = -(-session.settings.settle_window // length)
    sampled = session.sample(take, program.calls * length, session.settings.side_budget_s * length, enough, rounds_a_window)
    session.check_host(batches)
    each = of_each(len(sampled.samples))
    return Cycled(sampled, Phases(tuple(Sampled(samples, sampled.converged, sampled.restarts) for samples in each)))
