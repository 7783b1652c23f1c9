"""Records of two sides to findings, one for every expected cell and judged metric, and their conclusion."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness import metrics
from harness.errors import HarnessError, Undecided, UnknownNameError
from harness.judge.compare import judge_comparable
from harness.judge.completeness import Known, judge_presence
from harness.judge.conclude import conclude, effect
from harness.judge.index import REPLICATED, Key, Measured, index, reached, value_of
from harness.judge.model import INTERPRETER, Diff, Finding, Judgement, Policy, Reason, Side, Verdict
from harness.judge.rules import RULES, Pair, RuleJudge
from harness.judge.summary import coverage, geometric_means, noise
from harness.judge.why import EXPLAINED, build_of, explain, shown_value
from harness.metrics import Metric, Rule
from harness.records import Cell, Status

SEVERITY = (
    Verdict.BROKEN,
    Verdict.DRIFTED,
    Verdict.REGRESSED,
    Verdict.INCOMPARABLE,
    Verdict.MISSING,
    Verdict.INCONCLUSIVE,
    Verdict.REMOVED,
    Verdict.NEW,
    Verdict.IMPROVED,
    Verdict.UNCHANGED,
)
"""Verdicts, the worst first."""

_SETTLED_TIME = frozenset({Verdict.REGRESSED, Verdict.IMPROVED, Verdict.UNCHANGED})
_SIZE_RULES = frozenset({Rule.GROWTH, Rule.ANY_GROWTH})


def judge(base: Side, head: Side, policy: Policy | None = None, rules: Mapping[Rule, RuleJudge] = RULES) -> Diff:
    """Judge head against base.

    Expected are the cells of both plans and those of any record, so that no result is passed over in silence.

    Args:
        rules: how each rule judges two values.

    Raises:
        Undecided: both sides are the same records, or one side answers a question twice.
        UnknownNameError: a kind or metric that no row of the table of metrics has.
        HarnessError: the policy names a metric that is never judged.
    """
    policy = policy or Policy()
    _check_metrics(policy)
    _check_apart(base, head)
    sides = _Sides(base, head, index(base), index(head), _limits(base), _limits(head))
    found = [f for key in sorted(sides.keys()) if _asked(key[1], policy) for f in _judge_cell(sides, key, policy, rules)]
    measured = {(r.device, r.kind) for r in head.records if r.status != Status.NO_CAPACITY}
    found = [replace(f, exit_code=effect(f, policy, measured)) for f in _relate(found)]
    found.sort(key=_worst_first)
    exit_code, lines = conclude(found, policy)
    counts = Counter(f.verdict for f in found)
    arrived = {r.device for r in head.records if reached(r)}
    gpus = {d: d in arrived for d in sorted({cell.device for cell, _ in sides.keys()} - {INTERPRETER})}
    return Diff(
        base=base,
        head=head,
        findings=tuple(found),
        counts={verdict: counts[verdict] for verdict in Verdict},
        coverage=coverage(found),
        means=geometric_means(found),
        noise=noise(found),
        gpus=gpus,
        exit_code=exit_code,
        conclusion=lines,
    )


@dataclass(frozen=True)
class _Sides:
    base: Side
    head: Side
    base_index: Mapping[Key, Measured]
    head_index: Mapping[Key, Measured]
    base_limits: Mapping[Key, float | None]
    head_limits: Mapping[Key, float | None]

    def keys(self) -> set[Key]:
        """Every expected cell and kind."""
        return {*self.base_index, *self.head_index, *self.base_limits, *self.head_limits}

    def known(self, key: Key) -> tuple[Known, Known]:
        """What either side has of a cell. Without head's plan, what base had is expected of head."""
        cell, kind = key
        in_base = key in self.base_limits or key in self.base_index
        in_head = key in self.head_limits or key in self.head_index or self.head.expected is None
        others = in_head or any(c.device == cell.device and k == kind for c, k in (*self.head_limits, *self.head_index))
        return Known(in_base, in_base, self.base_index.get(key)), Known(in_head, others, self.head_index.get(key))


def _limits(side: Side) -> dict[Key, float | None]:
    return {(e.cell, e.kind): e.limit for e in side.expected or ()}


def _judge_cell(sides: _Sides, key: Key, policy: Policy, rules: Mapping[Rule, RuleJudge]) -> Iterator[Finding]:
    cell, kind = key
    primary = _row(metrics.PRIMARY[kind]) if kind in metrics.PRIMARY else None
    if primary is None:
        raise UnknownNameError.of("kind", kind, metrics.PRIMARY, "add its metrics to the table in harness/metrics.py")
    before, after = sides.known(key)
    judgement = judge_presence(kind, before, after)
    if judgement is not None or before.measured is None or after.measured is None:
        assert judgement is not None
        yield _whole_cell(sides, key, primary, judgement)
        return
    judged = [n for n in dict.fromkeys((*after.measured.names(), *before.measured.names())) if _is_judged(n, kind)]
    if not judged:
        timed_by_interpreter = kind in REPLICATED and cell.device == INTERPRETER
        nothing = (Verdict.INCONCLUSIVE, Reason.INTERPRETER_ONLY) if timed_by_interpreter else (Verdict.MISSING, Reason.NO_VALUE)
        yield _whole_cell(sides, key, primary, Judgement(*nothing))
    for name in judged:
        if _named(name, policy):
            yield _judge_metric(sides, key, name, before.measured, after.measured, rules)


def _judge_metric(
    sides: _Sides, key: Key, name: str, base: Measured, head: Measured, rules: Mapping[Rule, RuleJudge]
) -> Finding:
    cell, kind = key
    row = _row(name)
    before, after = base.of(name), head.of(name)
    values = value_of(before), value_of(after)
    judgement = _no_value(before, after, values)
    if judgement is None:
        judgement = judge_comparable(row.rule, before, after)
    if judgement is None:
        builds = build_of(sides.base_index, cell, kind), build_of(sides.head_index, cell, kind)
        limits = sides.base_limits.get(key), sides.head_limits.get(key)
        judgement = rules[row.rule].judge(Pair(name, before, after, limits, builds if builds[0] and builds[1] else None))
    return _finding(sides, key, row, name, judgement, values)
