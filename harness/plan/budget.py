"""A budget of time: what comes first, which jobs may still start, and what will probably be left out."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from harness.errors import HarnessError
from harness.plan.affected import Change
from harness.plan.describe import Description
from harness.plan.jobs import JOB_SECONDS, Job, without_gpu
from harness.plan.matrix import INTERPRETER
from harness.records import OVER_BUDGET, Expected

HEADLINE = "headline"
"""Tag of the cases that a kernel is judged by first."""
SHARE = 10
"""A job is expected to take no more than this part of the budget, so that little is left unused at its end."""
SHORTEST_S = 30.0
"""Jobs are not made shorter than that for a budget: a launch itself takes seconds."""
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


class Tier(IntEnum):
    """What is measured before what."""

    AFFECTED_HEADLINE = 0
    AFFECTED = 1
    HEADLINE = 2
    REST = 3

    @property
    def affected(self) -> bool:
        """Whether the change may have changed the answer."""
        return self in (Tier.AFFECTED_HEADLINE, Tier.AFFECTED)


@dataclass(frozen=True)
class Allowance:
    """The time in which jobs may start. One that has started is never cut short: what counts is what it is expected to take.

    Args:
        seconds: the budget, wall time.
        began: instant from which it counts, by the monotonic clock.
    """

    seconds: float
    began: float

    @classmethod
    def starting_now(cls, seconds: float) -> Allowance:
        """A budget that counts from now."""
        return cls(seconds, time.monotonic())

    @property
    def left_s(self) -> float:
        """Seconds that are left; none is 0."""
        return max(0.0, self.seconds - (time.monotonic() - self.began))

    def refusal(self, job: Job) -> str | None:
        """Why a job may not start now; None where it may."""
        left = self.left_s
        if 0 < left >= job.expected_s:
            return None
        return f"{OVER_BUDGET}: about {job.expected_s:.0f} s by the plan, {int(left)} s of {duration_text(self.seconds)} left"

    def to_json(self) -> dict[str, float]:
        """For another process, whose clock may be another."""
        return {"seconds": self.seconds, "left_s": self.left_s}

    @classmethod
    def from_json(cls, data: Mapping[str, float]) -> Allowance:
        """Read it back, as soon as it is received."""
        return cls(data["seconds"], time.monotonic() + data["left_s"] - data["seconds"])


@dataclass(frozen=True)
class Forecast:
    """When a job would start.

    Args:
        start_s: seconds from the start of the run; None where it would not start within the budget.
    """

    job: Job
    start_s: float | None


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `10m` or `1h30m`.

    Raises:
        HarnessError: not of that form, or no time at all.
    """
    match = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text)
    do = "give a time with its unit, such as 90s, 10m or 1h30m"
    if match is None or not text:
        raise HarnessError(f"--budget {text}", f"{text!r} is no duration", do)
    seconds = sum(float(number or 0) * unit for number, unit in zip(match.groups(), _UNITS.values(), strict=True))
    if seconds <= 0:
        raise HarnessError(f"--budget {text}", "no time at all", do)
    return seconds


def duration_text(seconds: float) -> str:
    """Seconds as `parse_duration` reads them: 5400 -> `1h30m`."""
    parts, rest = [], round(seconds, 3)
    for name, unit in _UNITS.items():
        number, rest = (rest, 0.0) if name == "s" else divmod(rest, unit)
        parts += [f"{number:g}{name}"] if number else []
    return "".join(parts) or "0s"


def longest_job(budget_s: float) -> float:
    """Expected seconds that a job may take under a budget."""
    return min(JOB_SECONDS, max(budget_s / SHARE, min(SHORTEST_S, budget_s / 2)))


def tiers(what: Description, change: Change | None) -> Callable[[Expected], Tier]:
    """What says of a cell when it is measured.

    Args:
        change: what head changes; every cell is affected where it is not known.
    """
    tags = what.tags

    def tier(one: Expected) -> Tier:
        affected = change is None or change.affects(one)
        headline = HEADLINE in tags[one.cell.kernel, one.cell.case]
        return Tier(2 * (not affected) + (not headline))

    return tier


def forecast(jobs: Iterable[Job], units: Mapping[str, int], slots: int, budget_s: float, *, at_once: bool) -> list[Forecast]:
    """When each job would start, were every job to take what the plan expects; in the order of the jobs.

    Args:
        units: device -> units in hand; jobs of a device without any are left out of the answer.
        slots: jobs at a time that need no GPU.
        at_once: different devices work at the same time, as those of a fleet do; else one after another, as on one machine.
    """
    found: list[Forecast] = []
    clock: dict[str, list[float]] = {}
    reached = 0.0
    for lane, group in _lanes([job for job in jobs if job.on == "host" or units.get(job.device, 0)]):
        free = clock.setdefault(lane, [0.0] * (slots if lane == INTERPRETER else units[lane]))
        if not at_once:
            free[:] = [max(instant, reached) for instant in free]
        for job in group:
            start = min(free)
            fits = start + job.expected_s <= budget_s
            found.append(Forecast(job, start if fits else None))
            if fits:
                free[free.index(start)] = start + job.expected_s
        reached = max(reached, *(instant for instant in free))
    return found


def _lanes(jobs: Sequence[Job]) -> Iterator[tuple[str, list[Job]]]:
    """The jobs of each tier by what carries them: first those that need no GPU, then each device's."""
    for _, tier in itertools.groupby(sorted(jobs, key=lambda job: job.tier), key=lambda job: job.tier):
        lanes: dict[str, list[Job]] = {}
        for job in tier:
            lanes.setdefault(INTERPRETER if without_gpu(job) else job.device, []).append(job)
        yield from sorted(lanes.items(), key=lambda lane: (lane[0] != INTERPRETER, lane[0]))
