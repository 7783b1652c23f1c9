"""The conclusion: a total function of verdicts and policy. 1 over 3 over 0; never a pass where nothing was compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from harness import metrics
from harness.judge.index import COMPILED
from harness.judge.model import INTERPRETER, Finding, Policy, Reason, Side, Verdict
from harness.metrics import Rule
from harness.records import Status

COMPARED = frozenset({Verdict.BROKEN, Verdict.DRIFTED, Verdict.REGRESSED, Verdict.IMPROVED, Verdict.UNCHANGED})
UNDECIDED = frozenset({Verdict.INCONCLUSIVE, Verdict.MISSING, Verdict.INCOMPARABLE})

PROVING = frozenset(row.kind for row in metrics.METRICS.values() if row.rule is Rule.ERROR)
"""Kinds that prove a kernel right."""

INFORMS = frozenset({Reason.ATTRIBUTION, Reason.INTERPRETER_ONLY})
"""Reasons that never count."""
INFORMS_UNLESS_NAMED = frozenset({Reason.UNPAIRED, Reason.PREDICTED})
"""Reasons that count only where the user asked for that metric by name: a diff of stored results cannot judge time,
and must not be undecided for ever because it holds some."""


UNCOMPARED = frozenset({Reason.SKIPPED, Reason.SAME_CODE})
"""Reasons of what is unchanged without two results: both plans leave the cell out, or head's does and its code is base's."""


def compared(finding: Finding) -> bool:
    """Whether the finding rests on results of its cell on both sides."""
    return finding.verdict in COMPARED and finding.reason not in UNCOMPARED


def is_new_and_right(verdict: str, reason: str, kind: str) -> bool:
    """Whether a finding says that what only head has was proved right, within its tolerance."""
    return verdict == Verdict.NEW and reason == Reason.NEW_CELL and kind in PROVING


def effect(finding: Finding, policy: Policy, measured: Collection[tuple[str, str]]) -> int:
    """What one finding makes of the exit code: 0, 1 or 3.

    Args:
        measured: (device, kind) that head's run answered with anything but `no_capacity` and `skipped(simulated)`, and those that are
            expected of a device that it reached. What is missing elsewhere is listed and changes nothing, unless the policy requires
            the device.
    """
    if finding.reason in INFORMS:
        return 0
    if finding.device == INTERPRETER and metrics.metric(finding.metric).rule is Rule.TIME and finding.verdict in UNDECIDED:
        return 0  # the interpreter has no time that could be judged, so none is missing
    if finding.reason in INFORMS_UNLESS_NAMED and finding.metric not in policy.metrics:
        return 0
    if finding.verdict is Verdict.MISSING and not (finding.device in policy.require or (finding.device, finding.kind) in measured):
        return 0
    if finding.verdict in policy.fail_on:
        return 1
    return 3 if finding.verdict in UNDECIDED else 0


def unproved(findings: Sequence[Finding], head: Side) -> tuple[str, ...]:
    """Kernels that head changed, whose results its plan asks for, and of which no result says on any device that they are right.

    A matrix may prove a kernel on GPUs alone; where none of them is there, that it still compiles is no pass.
    """
    asked = {e.cell.kernel for e in head.expected or () if e.kind in PROVING}
    right = {r.kernel for r in head.records if r.kind in PROVING and r.status == Status.OK}
    same = (Reason.PROVED, Reason.SAME_CODE)
    changed = {f.cell.kernel for f in findings if f.kind in COMPILED and f.verdict is not Verdict.REMOVED and f.reason not in same}
    if head.changed is not None:
        changed &= head.changed
    return tuple(sorted(asked & changed - right))


def conclude(
    findings: Sequence[Finding], policy: Policy, wanting: Sequence[str] = (), *, equal: bool = False, only_added: bool = False
) -> tuple[int, tuple[str, ...]]:
    """The exit code, and why, a line each.

    New cells that are right pass where all else that base has is known to be the same code: a kernel that was added has no base. So does
    a change of nothing that a result depends on, such as one of the documentation alone, or of a kernel that was removed.

    Args:
        wanting: kernels of which nothing says that they are right, see `unproved`.
        equal, only_added: as in `Side`.
    """
    failing = [f for f in findings if f.exit_code == 1]
    fails = [f"fails: {_tally(failing)}"] if failing else []
    undecided = [f"undecided: {_tally([f for f in findings if f.exit_code == 3])}"] if any(f.exit_code == 3 for f in findings) else []
    devices = {f.device for f in findings}
    undecided += [f"undecided: {name} is required, and neither plan has a cell on it" for name in sorted(policy.require - devices)]
    if wanting:
        undecided.append(f"undecided: {', '.join(wanting)} changed, and no result says that it is right: submit --kind correctness")
    n = sum(map(compared, findings))
    same = sum(f.reason is Reason.SAME_CODE for f in findings)
    new = sum(is_new_and_right(f.verdict, f.reason, f.kind) for f in findings)
    if not n and not (new and (same or only_added)) and not equal:
        undecided.append("undecided: nothing was compared")
    informs = [f"not compared: {same} cells whose code is equal on both sides"] if same else []
    if unjudged := sum(f.reason in INFORMS_UNLESS_NAMED for f in findings):
        informs.append(f"not judged: {unjudged} stored times; `harness submit --against BASE` measures both sides in one lease")
    if absent := sum(f.verdict is Verdict.MISSING and not f.exit_code for f in findings):
        informs.append(f"not measured: {absent} cells on devices that head's run did not reach")
    if n:
        good = f"{_results(n)} compared, none fails"
    elif new:
        good = f"{_results(new, 'new ')} right, all else is the code of base"
    else:
        good = "nothing that a result depends on differs between the sides, so there is nothing to compare"
    passes = [] if fails or undecided else [f"passes: {good}"]
    return 1 if fails else 3 if undecided else 0, (*fails, *undecided, *passes, *_removed(findings), *informs)


def _removed(findings: Sequence[Finding]) -> list[str]:
    """What base has and head has no more, which passes and is no small thing."""
    gone = Counter(f.cell.kernel for f in findings if f.verdict is Verdict.REMOVED)
    stays = {f.cell.kernel for f in findings if f.verdict is not Verdict.REMOVED}
    whole = [name if name not in stays else f"some of {name}" for name in sorted(gone)]
    return [f"removed: {_results(gone.total())} that base has: {', '.join(whole)}"] if gone else []


def _results(n: int, what: str = "") -> str:
    return f"{n} {what}{'result' if n == 1 else 'results'}"


def _tally(findings: Sequence[Finding]) -> str:
    """`2 BROKEN (crash), 3 MISSING (no_record)`."""
    counts = Counter((f.verdict, f.reason) for f in findings)
    order = list(Verdict)
    return ", ".join(
        f"{n} {verdict} ({reason})" for (verdict, reason), n in sorted(counts.items(), key=lambda i: (order.index(i[0][0]), -i[1]))
    )
