"""Judges one cell under one kind: presence first, then metric by metric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness import metrics
from harness.errors import UnknownNameError
from harness.judge.choice import Choice, choices
from harness.judge.compare import judge_comparable
from harness.judge.completeness import Known, judge_presence
from harness.judge.index import REPLICATED, Key, Measured, index, value_of
from harness.judge.model import INTERPRETER, Finding, Judgement, Policy, Reason, Side, Verdict
from harness.judge.rules import Pair, RuleJudge
from harness.judge.why import EXPLAINED, build_of, explain, shown_value
from harness.metrics import Metric, Rule
from harness.records import Record, Status


class Sides:
    """Base and head with their records by cell and kind.

    Raises:
        Undecided: one side answers a question twice.
    """

    def __init__(self, base: Side, head: Side) -> None:
        self.base, self.head = base, head
        self.base_index, self.head_index = index(base), index(head)
        self.base_limits, self.head_limits = _limits(base), _limits(head)
        self._head_plans = {(cell.device, kind) for cell, kind in (*self.head_limits, *self.head_index)}

    def keys(self) -> list[Key]:
        """Every cell and kind that either plan asks for or any record answers, in order."""
        return sorted({*self.base_index, *self.head_index, *self.base_limits, *self.head_limits})

    def known(self, key: Key) -> tuple[Known, Known]:
        """What either side has of a cell. Without head's plan, what base had is expected of head."""
        cell, kind = key
        in_base = key in self.base_limits or key in self.base_index
        in_head = key in self.head_limits or key in self.head_index or key in self.head.same_code or self.head.expected is None
        others = in_head or (cell.device, kind) in self._head_plans or key in self.head.removed
        return Known(in_base, in_base, self.base_index.get(key)), Known(in_head, others, self.head_index.get(key))


@dataclass(frozen=True)
class CellJudge:
    """Judges the cells of two sides by a policy's metrics and a table of rules."""

    sides: Sides
    policy: Policy
    rules: Mapping[Rule, RuleJudge]

    def judge(self, key: Key) -> Iterator[Finding]:
        """One finding a judged metric, or one for the whole cell where there are no values on both sides.

        Raises:
            UnknownNameError: the table of metrics does not know the kind or a metric.
        """
        kind = key[1]
        if kind not in metrics.PRIMARY:
            raise UnknownNameError.of("kind", kind, metrics.PRIMARY, "add its metrics to the table in harness/metrics.py")
        if not _asks_of(self.policy, kind):
            return
        base, head = self.sides.known(key)
        judgement = self._same_code(key, base, head) or judge_presence(kind, base, head)
        if judgement and judgement.reason is Reason.NEW_CELL and self._only_interpreted(key, head.measured):
            judgement = Judgement(Verdict.INCONCLUSIVE, Reason.INTERPRETER_ONLY)
        if judgement is None:
            assert base.measured is not None
            assert head.measured is not None
            yield from self._metrics(key, base.measured, head.measured)
        else:
            yield self._whole_cell(key, judgement)

    def _metrics(self, key: Key, base: Measured, head: Measured) -> Iterator[Finding]:
        kind = key[1]
        judged = _judged((*head.names(), *base.names()), kind)
        if not judged:
            interpreted = self._only_interpreted(key, head)
            nothing = (Verdict.INCONCLUSIVE, Reason.INTERPRETER_ONLY) if interpreted else (Verdict.MISSING, Reason.NO_VALUE)
            yield self._whole_cell(key, Judgement(*nothing))
        for name in judged:
            if names(self.policy, name):
                yield self._metric(key, name, base.of(name), head.of(name))

    def _metric(self, key: Key, name: str, base: tuple[Record, ...], head: tuple[Record, ...]) -> Finding:
        rule = _row(name).rule
        judgement = _judge_values(base, head) or judge_comparable(rule, base, head)
        if judgement is None:
            sides = self.sides
            builds = build_of(sides.base_index, *key), build_of(sides.head_index, *key)
            limits = sides.base_limits.get(key), sides.head_limits.get(key)
            both = (builds[0], builds[1]) if builds[0] and builds[1] else None
            judgement = self.rules[rule].judge(Pair(name, base, head, limits, both))
        before, after = value_of(base), value_of(head)
        # What must not be compared gets no ratio either.
        ratio = None if judgement.verdict is Verdict.INCOMPARABLE else judgement.ratio or _ratio(before, after)
        is_time = rule is Rule.TIME and judgement.verdict is not Verdict.INCOMPARABLE
        return self._finding(key, name, judgement, before, after, ratio, choices(base, head) if is_time else ())

    def _same_code(self, key: Key, base: Known, head: Known) -> Judgement | None:
        """Base's result of a cell that head left out is one of head's code too; a bad one excuses nothing."""
        if key not in self.sides.head.same_code or head.status is not None or base.status is None:
            return None
        if base.status.failed:
            return judge_presence(key[1], base, base)
        return Judgement(Verdict.UNCHANGED, Reason.SAME_CODE) if base.status in (Status.OK, Status.SKIPPED) else None

    @staticmethod
    def _only_interpreted(key: Key, head: Measured | None) -> bool:
        """Whether a timed cell has no time but the interpreter's."""
        cell, kind = key
        return kind in REPLICATED and cell.device == INTERPRETER and not _judged(head.names() if head else (), kind)

    def _whole_cell(self, key: Key, judgement: Judgement) -> Finding:
        name = metrics.PRIMARY[key[1]]
        of_head = self.sides.head_index.get(key)
        recorded = _judged(of_head.names(), key[1]) if of_head else []
        if judgement.verdict is Verdict.NEW and recorded and name not in map(metrics.base_name, recorded):
            name = recorded[0]
        before, after = (shown_value(i.get(key), name) for i in (self.sides.base_index, self.sides.head_index))
        return self._finding(key, name, judgement, before, after, None)

    def _finding(
        self,
        key: Key,
        name: str,
        judgement: Judgement,
        base: float | None,
        head: float | None,
        ratio: float | None,
        chosen: Sequence[Choice] = (),
    ) -> Finding:
        cell, kind = key
        row = _row(name)
        sides = self.sides
        explained = judgement.verdict in EXPLAINED or bool(chosen)
        return Finding(
            cell=cell,
            kind=kind,
            metric=name,
            unit=row.unit,
            rule=row.rule,
            verdict=judgement.verdict,
            reason=judgement.reason,
            detail=judgement.detail,
            base=base,
            head=head,
            ratio=ratio,
            interval=judgement.interval,
            why=explain(sides.base_index, sides.head_index, cell, kind, name, sides.head, chosen) if explained else {},
        )


def check_metrics(policy: Policy) -> None:
    """Refuse a policy that names a metric nobody declared.

    Raises:
        UnknownNameError: as said.
    """
    for name in sorted(policy.metrics):
        _row(name)


def names(policy: Policy, metric: str) -> bool:
    """Whether the policy judges a metric."""
    return not policy.metrics or metric in policy.metrics or metrics.base_name(metric) in policy.metrics


def _asks_of(policy: Policy, kind: str) -> bool:
    return not policy.metrics or any(_row(name).kind == kind for name in policy.metrics)


def _judged(names: Iterable[str], kind: str) -> list[str]:
    """The metrics that the kind judges, each once: a latency job that ends wrong records the errors of another kind."""
    return [name for name in dict.fromkeys(names) if (row := _row(name)).rule is not Rule.CONTEXT and row.kind == kind]


def _row(name: str) -> Metric:
    try:
        return metrics.metric(name)
    except KeyError:
        raise UnknownNameError.of("metric", name, metrics.METRICS) from None


def _ratio(base: float | None, head: float | None) -> float | None:
    """Head over base; None where it is no finite number."""
    ratio = head / base if base and head is not None else math.inf
    return ratio if math.isfinite(ratio) else None


def _judge_values(base: tuple[Record, ...], head: tuple[Record, ...]) -> Judgement | None:
    """The verdict on a metric without valid values on both sides; None where there are some."""
    bad = next((r for r in head if r.status != Status.OK), None)
    if bad is not None and bad.status != Status.SKIPPED:
        return Judgement(Verdict.INCONCLUSIVE, Reason(bad.status), bad.reason)
    had = value_of(base) is not None
    if bad is not None:
        return Judgement(Verdict.MISSING if had else Verdict.UNCHANGED, Reason.SKIPPED, bad.reason)
    if value_of(head) is None:
        return Judgement(Verdict.MISSING, Reason.NO_VALUE)
    if not had:
        return (
            Judgement(Verdict.MISSING, Reason.NO_BASELINE, f"{base[0].status} at base")
            if base
            else Judgement(Verdict.NEW, Reason.NEW_METRIC)
        )
    return None


def _limits(side: Side) -> dict[Key, float | None]:
    return {(e.cell, e.kind): e.limit for e in side.expected or ()}
