"""The rules: Rule -> the function that judges two values, and its text. One row adds one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness import metrics
from harness.judge.compare import runtime, same_binary, same_launches, stack
from harness.judge.index import value_of
from harness.judge.model import Judgement, Reason, Verdict
from harness.judge.paired import ABSOLUTE_FLOOR_US, CONFIDENCE, RELATIVE_FLOOR, RESOLUTION, is_paired, judge_paired, judge_proved
from harness.metrics import Rule
from harness.records import Record

GROWTH_LIMIT_PERCENT = 10
ERROR_FACTOR = 2
ERROR_FLOOR = 0.01
"""Of the tolerance: a change of the error below it is rounding."""


@dataclass(frozen=True)
class Pair:
    """Comparable records of one metric of one cell, valid values on both sides.

    Args:
        base: one record a launch.
        limits: base's and head's error tolerance.
        builds: a record of each side that has the cell's binaries.
    """

    metric: str
    base: tuple[Record, ...]
    head: tuple[Record, ...]
    limits: tuple[float | None, float | None]
    builds: tuple[Record, Record] | None

    @property
    def values(self) -> tuple[float, float]:
        """Base's and head's value: the median over launches."""
        base, head = value_of(self.base), value_of(self.head)
        assert base is not None
        assert head is not None
        return base, head


@dataclass(frozen=True)
class RuleJudge:
    """How a rule judges a pair, and what a report quotes of it."""

    text: str
    judge: Callable[[Pair], Judgement]


def judge_error(pair: Pair) -> Judgement:
    """DRIFTED by the exact rule; exact, since inputs and arithmetic repeat to the last bit."""
    base, head = pair.values
    base_limit, head_limit = pair.limits
    if head_limit is None:
        return Judgement(Verdict.INCONCLUSIVE, Reason.NO_TOLERANCE)
    if not head <= head_limit:
        return Judgement(Verdict.DRIFTED, Reason.BEYOND_TOLERANCE, f"the tolerance is {head_limit:g}")
    # A change that loosens its own tolerance is measured by the one it found.
    limit = head_limit if base_limit is None else min(base_limit, head_limit)
    if not head <= limit and base <= limit:
        return Judgement(Verdict.DRIFTED, Reason.TOLERANCE_LOOSENED, f"base's tolerance is {limit:g}, head's is {head_limit:g}")
    floor = ERROR_FLOOR * limit
    if head > ERROR_FACTOR * base and head - base > floor:
        return Judgement(Verdict.DRIFTED, Reason.ERROR_GREW, f"the tolerance is {limit:g}")
    if base_limit is None and head > base:
        return Judgement(Verdict.INCONCLUSIVE, Reason.BASE_TOLERANCE)
    if base > ERROR_FACTOR * head and base - head > floor:
        return Judgement(Verdict.IMPROVED, Reason.ERROR_FELL)
    known = pair.base[0].data_hash is not None and pair.base[0].data_hash == pair.head[0].data_hash
    return Judgement(Verdict.UNCHANGED, Reason.BITWISE_EQUAL if known and base == head else Reason.WITHIN_LIMITS)


def judge_growth(pair: Pair) -> Judgement:
    """REGRESSED or IMPROVED strictly beyond 10 %: 10 -> 11 registers is not flagged."""
    return _judge_size(pair, GROWTH_LIMIT_PERCENT)


def judge_any_growth(pair: Pair) -> Judgement:
    """REGRESSED at any growth, IMPROVED at any shrinking."""
    return _judge_size(pair, 0)


def judge_time(pair: Pair) -> Judgement:
    """UNCHANGED where equal binaries prove it; else by the paired statistic; stored times are not judged.

    Two numbers of separate leases prove nothing, however far apart: launches of one lease agree with each other far
    better than leases do, so their spread is no measure of the difference.
    """
    launches = (*pair.base, *pair.head)
    same = _all_same(pair.builds, launches)
    if same and _one_stack((*(pair.builds or ()), *launches), stack) and _one_stack(launches, runtime):
        return judge_proved(pair.base, pair.head)
    if is_paired(pair.base, pair.head):
        return judge_paired(pair.base, pair.head)
    return Judgement(Verdict.INCONCLUSIVE, Reason.PREDICTED if same else Reason.UNPAIRED)


def _all_same(builds: tuple[Record, Record] | None, launches: tuple[Record, ...]) -> bool:
    """Whether both sides ran the same in every launch that says what it ran: an autotuner may choose anew in each. Where no launch
    runs a binary of Triton's, the code that calls the libraries must be the same.
    """
    if builds is None:
        return all(r.binary_hash == [] and r.launcher_digest for r in launches) and len({r.launcher_digest for r in launches}) == 1
    return same_launches(*builds) and all(same_launches(builds[0], r) for r in launches if r.binary_hash is not None)


def _one_stack(records: tuple[Record, ...], of: Callable[[Record], tuple[Any, ...]]) -> bool:
    stacks = {of(record) for record in records}
    return len(stacks) == 1 and None not in next(iter(stacks))


def _judge_size(pair: Pair, limit_percent: int) -> Judgement:
    if pair.builds and same_binary(*pair.builds):
        return Judgement(Verdict.UNCHANGED, Reason.PROVED if same_launches(*pair.builds) else Reason.SAME_BINARY)
    base, head = pair.values
    # Multiplied out, so that whole numbers compare exactly.
    if (head - base) * 100 > base * limit_percent:
        return Judgement(Verdict.REGRESSED, Reason.GREW)
    if (base - head) * 100 > base * limit_percent:
        return Judgement(Verdict.IMPROVED, Reason.SHRANK)
    return Judgement(Verdict.UNCHANGED, Reason.WITHIN_LIMITS)


RULES: Mapping[Rule, RuleJudge] = {
    Rule.ERROR: RuleJudge(
        f"DRIFTED over its tolerance, or where head's error is over {ERROR_FACTOR}x base's and by more than {ERROR_FLOOR * 100:g} % of the "
        "tolerance; IMPROVED the other way round",
        judge_error,
    ),
    Rule.GROWTH: RuleJudge(f"REGRESSED beyond +{GROWTH_LIMIT_PERCENT} %, IMPROVED beyond -{GROWTH_LIMIT_PERCENT} %", judge_growth),
    Rule.ANY_GROWTH: RuleJudge("REGRESSED at any growth, IMPROVED at any shrinking", judge_any_growth),
    Rule.TIME: RuleJudge(
        "UNCHANGED where equal binaries prove it; else launches paired in one lease are judged by a paired t (uncalibrated): REGRESSED "
        f"or IMPROVED beyond {RELATIVE_FLOOR * 100:g} % and {ABSOLUTE_FLOOR_US:g} us where the {CONFIDENCE * 100:g} % interval leaves out "
        f"no change, UNCHANGED where it lies within {RESOLUTION * 100:g} %",
        judge_time,
    ),
}


def quote(rule: Rule) -> str:
    """A rule with the metrics it holds for, for a report."""
    names = ", ".join(row.name for row in metrics.METRICS.values() if row.rule is rule)
    return f"{names}: {RULES[rule].text}"
