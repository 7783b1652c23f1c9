"""Completeness first: what becomes of a cell that does not have values on both sides. A total function."""

from __future__ import annotations

from dataclasses import dataclass

from harness.judge.index import Measured
from harness.judge.model import Judgement, Reason, Verdict
from harness.records import Status

API_BREAK = "api"
"""Reason of a record whose workspace needs another authoring API."""
DRIFT = "drift"
"""The kind whose wrong answer is a drift."""


@dataclass(frozen=True)
class Known:
    """What one side has of a cell under one kind.

    Args:
        planned: its plan asks for it, or it has a record all the same.
        plans_others: its plan asks this kind of other cells on the same device, or of this one; or its code is known not to have it.
    """

    planned: bool
    plans_others: bool
    measured: Measured | None

    @property
    def status(self) -> Status | None:
        """The cell's status; None where there is no record."""
        return self.measured.status if self.measured else None

    @property
    def words(self) -> str | None:
        """What its record says."""
        return self.measured.reason if self.measured else None

    @property
    def broke_api(self) -> bool:
        """Whether the side could not run for the authoring API."""
        return self.words == API_BREAK


def judge_presence(kind: str, base: Known, head: Known) -> Judgement | None:
    """The verdict on a cell without values on both sides; None where both sides measured it."""
    if head.status is None:
        return _no_record(head)
    if head.broke_api:
        return Judgement(Verdict.INCOMPARABLE, Reason.API)
    if head.status.failed:
        return _failed(kind, base, head, head.status)
    if head.status is Status.SKIPPED:
        return _skipped(base, head)
    if head.status is Status.NO_CAPACITY:
        return Judgement(Verdict.MISSING, Reason.NO_CAPACITY, head.words)
    if head.status is not Status.OK:
        return Judgement(Verdict.INCONCLUSIVE, Reason(str(head.status)), head.words)
    return _measured_at_head(base)


def _no_record(head: Known) -> Judgement:
    if head.planned:
        return Judgement(Verdict.MISSING, Reason.NO_RECORD)
    if head.plans_others:
        return Judgement(Verdict.REMOVED, Reason.NOT_IN_PLAN)
    return Judgement(Verdict.MISSING, Reason.NOT_PLANNED)


def _failed(kind: str, base: Known, head: Known, status: Status) -> Judgement:
    """Correctness is not graded on a curve: a base that fails likewise excuses nothing."""
    if head.measured and head.measured.passed_elsewhere:
        return Judgement(Verdict.INCONCLUSIVE, Reason.PASSED_ELSEWHERE, head.words)
    drifted = kind == DRIFT and status is Status.WRONG
    verdict = Verdict.DRIFTED if drifted else Verdict.BROKEN
    if base.status is status:
        return Judgement(verdict, Reason.ALSO_BROKEN_AT_BASE, head.words)
    return Judgement(verdict, Reason.BEYOND_TOLERANCE if drifted else Reason(str(status)), head.words)


def _skipped(base: Known, head: Known) -> Judgement:
    if base.status is Status.SKIPPED:
        return Judgement(Verdict.UNCHANGED, Reason.SKIPPED, head.words)
    if not base.planned:
        return Judgement(Verdict.NEW, Reason.SKIPPED, head.words)
    return Judgement(Verdict.MISSING, Reason.SKIPPED, head.words)


def _measured_at_head(base: Known) -> Judgement | None:
    if not base.planned:
        return Judgement(Verdict.NEW, Reason.NEW_CELL)
    if base.status is None:
        return Judgement(Verdict.MISSING, Reason.NO_BASELINE, "base has no record of it")
    if base.broke_api:
        return Judgement(Verdict.INCOMPARABLE, Reason.API)
    if base.status is Status.SKIPPED:
        return Judgement(Verdict.NEW, Reason.SKIPPED_AT_BASE, base.words)
    if base.status.failed:
        return Judgement(Verdict.IMPROVED, Reason.FIXED, f"{base.status} at base" + (f": {base.words}" if base.words else ""))
    if base.status is Status.OK:
        return None
    return Judgement(Verdict.MISSING, Reason.NO_BASELINE, f"{base.status} at base" + (f": {base.words}" if base.words else ""))
