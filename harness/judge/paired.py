"""The paired statistic: base and head launched in turn in one lease of one unit, a pair being two neighbours of a block.

A plain paired t over the differences of log times, launches being the replicates: iterations of one launch agree with each
other far better than launches do. It knows nothing yet of the cell's calibrated variance: "uncalibrated".
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from harness.judge.model import Judgement, Reason, Verdict
from harness.records import Record, Status

CONFIDENCE = 0.99
RELATIVE_FLOOR = 0.003
ABSOLUTE_FLOOR_US = 0.03
"""The larger of the two is the smallest change of a device time that is called one."""
RESOLUTION = 0.01
"""The change that a time must be known to, to be called unchanged; the floor where that is larger."""
LEAST_PAIRS = 4


@dataclass(frozen=True)
class Effect:
    """Head's time over base's: the geometric mean over pairs and its interval."""

    ratio: float
    interval: tuple[float, float]
    pairs: int

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * (self.ratio - 1):+.2f} % [{100 * (low - 1):+.2f}, {100 * (high - 1):+.2f}] over {self.pairs} pairs"


class Direction(IntEnum):
    """Where a time went."""

    FASTER = -1
    STOOD = 0
    SLOWER = 1


def floor_of(base_us: float) -> float:
    """The smallest change that is called one, of a time of `base_us`: relative."""
    return max(RELATIVE_FLOOR, ABSOLUTE_FLOOR_US / base_us)


def direction(ratio: float, interval: tuple[float, float], floor: float) -> Direction:
    """Where head's time went: beyond the floor, with an interval that leaves out no change; else it stood."""
    low, high = interval
    if low > 1 and ratio - 1 > floor:
        return Direction.SLOWER
    if high < 1 and 1 - ratio > floor:
        return Direction.FASTER
    return Direction.STOOD


def is_paired(base: Iterable[Record], head: Iterable[Record]) -> bool:
    """Whether both sides are launches of blocks."""
    return all(record.block is not None for side in (base, head) for record in side)


def pairs_of(base: Iterable[Record], head: Iterable[Record]) -> list[tuple[Record, Record]]:
    """Base's and head's record of every pair: neighbours of one block, on one lease, both valid."""
    sides: list[dict[tuple[object, ...], Record]] = [
        {(r.run_id, r.lease_id, r.unit, r.block, (r.position or 0) // 2): r for r in side if is_valid(r)} for side in (base, head)
    ]
    return [(sides[0][key], sides[1][key]) for key in sorted(set(sides[0]) & set(sides[1]), key=str)]


def is_valid(record: Record) -> bool:
    """Whether the record has a time that may be compared."""
    return record.value is not None and record.value > 0 and record.status == Status.OK


def pair_up(base: Iterable[Record], head: Iterable[Record]) -> list[tuple[float, float]]:
    """Base's and head's value of every pair."""
    return [(before.value, after.value) for before, after in pairs_of(base, head) if before.value and after.value]


def estimate(pairs: list[tuple[float, float]]) -> Effect:
    """The effect over at least two pairs."""
    from scipy.stats import t

    differences = [math.log(head / base) for base, head in pairs]
    mean, n = statistics.fmean(differences), len(differences)
    half = float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * statistics.stdev(differences) / math.sqrt(n)
    return Effect(math.exp(mean), (math.exp(mean - half), math.exp(mean + half)), n)


def judge_paired(base: tuple[Record, ...], head: tuple[Record, ...]) -> Judgement:
    """REGRESSED or IMPROVED where the change passes the floor and its interval leaves out 1; UNCHANGED where the interval
    lies within the resolution; else INCONCLUSIVE.
    """
    pairs = pair_up(base, head)
    if len(pairs) < LEAST_PAIRS:
        return Judgement(Verdict.INCONCLUSIVE, Reason.TOO_FEW_PAIRS, f"{len(pairs)} of at least {LEAST_PAIRS}")
    effect = estimate(pairs)
    low, high = effect.interval
    floor = floor_of(statistics.median(value for value, _ in pairs))
    limit = max(RESOLUTION, floor)
    moved = direction(effect.ratio, effect.interval, floor)
    detail = f"{effect}; changes under {100 * floor:.2g} % are not called"
    if not all(record.converged for record in (*base, *head)):
        verdict, reason = Verdict.INCONCLUSIVE, Reason.NOT_CONVERGED
    elif moved is Direction.SLOWER:
        verdict, reason = Verdict.REGRESSED, Reason.SLOWER
    elif moved is Direction.FASTER:
        verdict, reason = Verdict.IMPROVED, Reason.FASTER
    elif 1 - limit <= low and high <= 1 + limit:
        verdict, reason = Verdict.UNCHANGED, Reason.WITHIN_LIMITS
    else:
        verdict, reason = Verdict.INCONCLUSIVE, Reason.NOISY
    return Judgement(verdict, reason, detail, effect.ratio, effect.interval)


def judge_proved(base: tuple[Record, ...], head: tuple[Record, ...]) -> Judgement:
    """UNCHANGED (proved), with what the pairs say all the same, where there are enough of them and all converged.

    They judge nothing: a cell that cannot have changed is a control of the unit.
    """
    pairs = pair_up(base, head)
    if not is_paired(base, head) or len(pairs) < LEAST_PAIRS or not all(record.converged for record in (*base, *head)):
        return Judgement(Verdict.UNCHANGED, Reason.PROVED)
    effect = estimate(pairs)
    return Judgement(Verdict.UNCHANGED, Reason.PROVED, f"measured all the same: {effect}", effect.ratio, effect.interval)
