"""Stamps an answer with all that a record says beside it: which run and job, whose code, where it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness import metrics
from harness.dispatch.protocol import RunContext
from harness.plan.jobs import Job, Turn
from harness.records import Cell, Record, Status


@dataclass(frozen=True)
class Place:
    """Where and how a job is carried, as far as it is known.

    Args:
        unit: UUID of the unit.
        node: name of its host.
        attempt: 1 for the first time that the job is carried.
        lease: one stretch of work on the unit.
        environment: the environment struct.
    """

    unit: str | None = None
    node: str | None = None
    attempt: int = 1
    lease: str | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)


def stamped(
    context: RunContext, job: Job, turn: Turn, cell: Cell, place: Place, columns: Mapping[str, Any], launch: str | None = None
) -> Record:
    """The record of one answer.

    Args:
        columns: what the launch says: `metric`, `value`, `status`, `reason` and further columns; it cannot say what is stamped.
        launch: name of the launch; None where nothing was launched.

    Raises:
        KeyError: a metric that the table does not have.
        TypeError: a column that no record has.
        ValueError: an unknown status, or a value that is not finite.
    """
    row = metrics.metric(columns["metric"]) if columns["metric"] else None
    code = context.arms[turn.arm]
    stamps: dict[str, Any] = {
        "run_id": context.run_id,
        "job_id": job.job_id,
        "attempt": place.attempt,
        "lease_id": place.lease,
        "arm": turn.arm,
        "block": turn.block,
        "position": turn.position,
        "launch": launch,
        "commit": code.commit,
        "tree": code.tree,
        "dirty": code.dirty,
        "code_digest": code.code_digest,
        "kernel": cell.kernel,
        "variant": cell.variant,
        "case": cell.case,
        "dtype": cell.dtype,
        "device": cell.device,
        "unit": place.unit,
        "node": place.node,
        "kind": job.kind,
        "unit_of_measure": row.unit if row else None,
        "better": row.better if row else None,
        "environment": dict(place.environment),
    }
    return Record(**{**columns, **stamps})


def failure(
    context: RunContext, job: Job, turn: Turn, cell: Cell, place: Place, status: Status, reason: str, launch: str | None = None
) -> Record:
    """The record of a cell that has no value, and why."""
    columns = {"metric": None, "value": None, "status": str(status), "reason": reason}
    return stamped(context, job, turn, cell, place, columns, launch)
