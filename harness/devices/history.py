"""What a unit's canaries took in earlier runs, and whether another fits in: pure."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

CANARY_METHOD = "canary/2"
"""What the canaries are and how they are taken. Another kernel, size or number of samples is another method: leases are compared
only within one."""
RECENT = 20
"""Runs that a canary is held against: the last so many. Not leases: one run of a few minutes may take 20 of them, so that a
disturbance of minutes would be what is usual."""
LEAST = 3
"""With fewer there is no history to speak of."""
LEAST_US, MOST_US = 1.0, 1e6
"""A stored canary took between these (us): launching a kernel alone takes over 1 us, and the slowest device copies its canary in some
ms. What is beyond them nobody timed, and in medians and spreads it would outweigh all that was. (One just taken is judged as it is.)"""
LIMIT = 0.05
"""Largest difference from the history's median, relative."""
DO = "see that nothing else uses it and that its clocks are as they were (harness doctor)"
NORMAL = f"a change that lasts is the new normal once most of its last runs, at most {RECENT}, show it"


@dataclass(frozen=True)
class Stack:
    """What must be equal for two canaries to compare.

    Args:
        method: see CANARY_METHOD.
        driver: version of the unit's driver; None where it is not told.
        torch: its version; triton: likewise.
    """

    method: str
    driver: str | None
    torch: str
    triton: str


@dataclass(frozen=True)
class PastLease:
    """A lease of a unit and its first canary.

    Args:
        when: its instant, as `instant` writes it.
        run: the run's id; a run has as many leases of a unit as jobs on it.
        arithmetic_us: time of the fixed arithmetic; copy_us: of the fixed copy.
    """

    when: str
    run: str
    stack: Stack
    arithmetic_us: float
    copy_us: float

    def to_line(self) -> bytes:
        """The lease as a line of JSON."""
        times = {"arithmetic_us": self.arithmetic_us, "copy_us": self.copy_us}
        return json.dumps({"when": self.when, "run": self.run, **asdict(self.stack), **times}, allow_nan=False).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> PastLease | None:
        """Read a line back; None where it is none of a lease: torn, or written by something else."""
        try:
            told: Any = json.loads(line)
            texts = [told[name] for name in ("when", "run", "method", "torch", "triton")]
            times, driver = (told["arithmetic_us"], told["copy_us"]), told["driver"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        if not all(isinstance(text, str) for text in texts) or not isinstance(driver, str | None):
            return None
        if not are_times(times) or not all(LEAST_US <= time <= MOST_US for time in times):
            return None
        when, run, method, torch, triton = texts
        return cls(when, run, Stack(method, driver, torch, triton), *times)


@dataclass(frozen=True)
class Usual:
    """What a canary is held against.

    Args:
        runs: how many, at most RECENT.
        arithmetic_us: the median of their medians; copy_us: likewise.
        arithmetic_spread: (max - min) / median; copy_spread: likewise.
    """

    runs: int
    arithmetic_us: float
    copy_us: float
    arithmetic_spread: float
    copy_spread: float


def instant(when: datetime) -> str:
    """An instant in UTC; later ones sort after it."""
    return when.astimezone(UTC).isoformat(timespec="microseconds")


def are_times(values: Iterable[object]) -> bool:
    """Whether all values are times that a canary can have taken: finite and above 0."""
    return all(isinstance(value, float) and math.isfinite(value) and value > 0 for value in values)


def usual_of(leases: Iterable[PastLease], stack: Stack, now: str, in_hand: str | None = None) -> Usual | None:
    """What is usual for a unit on a stack: of every run the median of its leases is one value. None before its first run.

    Args:
        leases: in any order.
        now: an instant. Leases after it are left out: where the host's clock was once ahead, they would be the last for ever.
        in_hand: id of the run whose lease is held against this: its own leases are left out; None: all have ended.
    """
    runs: dict[str, list[PastLease]] = {}
    for lease in leases:
        if lease.stack == stack and lease.when <= now and lease.run != in_hand:
            runs.setdefault(lease.run, []).append(lease)
    last = sorted(runs, key=lambda run: (max(lease.when for lease in runs[run]), run))[-RECENT:]
    if not last:
        return None
    arithmetic = [statistics.median(lease.arithmetic_us for lease in runs[run]) for run in last]
    copy = [statistics.median(lease.copy_us for lease in runs[run]) for run in last]
    return Usual(len(last), statistics.median(arithmetic), statistics.median(copy), _spread(arithmetic), _spread(copy))


def departure(usual: Usual | None, arithmetic_us: float, copy_us: float) -> str | None:
    """Why a unit is not what it was, with what to do; None where its canaries fit in or nothing is known yet."""
    if usual is None or usual.runs < LEAST:
        return None
    found = [
        f"the {name} canary takes {now:.4g} us, {now / before - 1:+.1%} from {before:.4g} us"
        for name, now, before in (("arithmetic", arithmetic_us, usual.arithmetic_us), ("copy", copy_us, usual.copy_us))
        if not abs(now / before - 1) <= LIMIT
    ]
    if not found:
        return None
    return f"{' and '.join(found)}, the median of this unit's last {usual.runs} runs: {DO}; {NORMAL}"


def _spread(times: list[float]) -> float:
    return (max(times) - min(times)) / statistics.median(times)
