"""Whether the unit was fit while it was timed: what its sensors saw makes timing records invalid. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum

from harness.devices.fitness import NEVER
from harness.devices.telemetry import Summary
from harness.metrics import METRICS, Rule
from harness.records import Record, Status

TIMED = frozenset(row.kind for row in METRICS.values() if row.rule is Rule.TIME)
"""Kinds whose figures a slower unit changes."""


class Unfit(StrEnum):
    """Why a unit's times are invalid; the code opens a record's reason. Closed."""

    THROTTLED = "throttled"
    CONTENDED = "contended"
    UNIT_CHANGED = "unit_changed"


UNCLOSED = "not_closed"
"""Code that opens the reason of times whose launch did not come to its end: nothing vouches for the unit meanwhile."""


def unfit(seen: Summary | None) -> str | None:
    """Why nothing that was timed meanwhile may be used: a code and what was seen; None where there is no such reason.

    A power cap is normal in sustained use and other limits are the owner's: they are recorded, and void nothing. Neither
    does what is not known.
    """
    if seen is None:
        return None
    if slowed := sorted(NEVER & set(seen.throttled)):
        return f"{Unfit.THROTTLED}: {', '.join(slowed)} while it was timed"
    if seen.others:
        many = "another process" if seen.others == 1 else f"{seen.others} other processes"
        return f"{Unfit.CONTENDED}: {many} computed on the unit"
    return changed(seen)


def changed(seen: Summary | None) -> str | None:
    """Why nothing of a whole job may be used: the unit it began with is not the one it ended with."""
    return f"{Unfit.UNIT_CHANGED}: {'; '.join(seen.changed)}" if seen and seen.changed else None


def invalidated(records: Iterable[Record], reason: str | None) -> tuple[Record, ...]:
    """The records of a timed cell, of which those that were ok have no value any more where there is a reason."""
    if reason is None:
        return tuple(records)
    return tuple(_void(record, reason) if record.status == Status.OK else record for record in records)


def _void(record: Record, reason: str) -> Record:
    return replace(record, value=None, samples=None, converged=None, status=str(Status.INVALID), reason=reason)
