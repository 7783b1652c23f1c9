"""Records of two sides to findings, one for every expected cell and judged metric, and their conclusion."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.errors import Undecided
from harness.judge.alarm import marks
from harness.judge.cell import CellJudge, Sides, check_metrics
from harness.judge.conclude import conclude, effect, unproved
from harness.judge.index import reached
from harness.judge.model import INTERPRETER, Diff, Finding, Policy, Reason, Side, Verdict
from harness.judge.rules import RULES, RuleJudge
from harness.judge.summary import coverage, geometric_means, noise
from harness.metrics import Rule
from harness.records import Status

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

_SETTLED = frozenset({Verdict.REGRESSED, Verdict.IMPROVED, Verdict.UNCHANGED})
_MOVED = frozenset({Verdict.REGRESSED, Verdict.IMPROVED})
_SIZE_RULES = frozenset({Rule.GROWTH, Rule.ANY_GROWTH})


def judge(base: Side, head: Side, policy: Policy | None = None, rules: Mapping[Rule, RuleJudge] = RULES) -> Diff:
    """Judge head against base.

    Expected are the cells of both plans and those of any record, so that no result is passed over in silence.

    Args:
        rules: how each rule judges two values.

    Raises:
        Undecided: both sides are the same records, or one side answers a question twice.
        UnknownNameError: a kind or metric that the table of metrics does not have.
    """
    policy = policy or Policy()
    check_metrics(policy)
    _check_apart(base, head)
    sides = Sides(base, head)
    keys = sides.keys()
    cells = CellJudge(sides, policy, rules)
    arrived = {r.device for r in head.records if reached(r)}
    measured = {(r.device, r.kind) for r in head.records if r.status != Status.NO_CAPACITY and not r.simulated}
    asked = keys if head.expected is None else sides.head_limits
    measured |= {(cell.device, kind) for cell, kind in asked if cell.device in arrived}
    related = _relate([finding for key in keys for finding in cells.judge(key)])
    findings = sorted((replace(f, exit_code=effect(f, policy, measured)) for f in related), key=_worst_first)
    exit_code, lines = conclude(
        findings, policy, () if policy.metrics else unproved(findings, head), equal=head.equal, only_added=head.only_added
    )
    counts = Counter(f.verdict for f in findings)
    return Diff(
        base=base,
        head=head,
        findings=tuple(findings),
        counts={verdict: counts[verdict] for verdict in Verdict},
        coverage=coverage(findings),
        means=geometric_means(findings),
        noise=noise(findings),
        marks=marks(findings, base, head),
        gpus={device: device in arrived for device in sorted({cell.device for cell, _ in keys} - {INTERPRETER})},
        exit_code=exit_code,
        conclusion=lines,
    )


def _check_apart(base: Side, head: Side) -> None:
    """A run is never its own baseline."""
    shared = {(r.run_id, r.arm) for r in base.records} & {(r.run_id, r.arm) for r in head.records}
    if runs := sorted(run for run, _ in shared if run):
        raise Undecided(
            f"a diff of {base.ref} and {head.ref}",
            f"both sides are records of run {runs[0]}, of the code {head.code_digest[:12]}",
            "compare refs whose code differs, or name another run with run:ID",
        )


def _relate(findings: list[Finding]) -> Iterator[Finding]:
    """Where a cell's time is judged, time decides: sizes that moved explain it, and a drift that bought speed is a trade."""
    timed = {f.cell for f in findings if f.rule == Rule.TIME and f.verdict in _SETTLED}
    faster = {f.cell for f in findings if f.rule == Rule.TIME and f.verdict is Verdict.IMPROVED}
    for finding in findings:
        if finding.rule in _SIZE_RULES and finding.verdict in _MOVED and finding.reason is not Reason.FIXED and finding.cell in timed:
            yield replace(finding, reason=Reason.ATTRIBUTION)
        elif finding.verdict is Verdict.DRIFTED and finding.reason is Reason.ERROR_GREW and finding.cell in faster:
            yield replace(finding, reason=Reason.TRADE)
        else:
            yield finding


def _worst_first(finding: Finding) -> tuple[object, ...]:
    moved = abs(math.log(finding.ratio)) if finding.ratio and finding.ratio > 0 else 0.0
    return SEVERITY.index(finding.verdict), finding.exit_code == 0, -moved, finding.cell, finding.kind, finding.metric
