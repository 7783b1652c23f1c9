"""Why a timed cell is undecided although no record of it says so: its launches do not add up to an answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.dispatch.fitness import TIMED
from harness.metrics import speaks_for_cell
from harness.records import Record, Status

STACK = ("driver", "runtime", "torch", "triton", "compiler", "python", "lock_digest")
"""What of a record's environment is the software that a time rests on; `lock_digest` is that of all installed packages."""


def doubt(kind: str, launches: int, records: Sequence[Record]) -> str | None:
    """Why a cell's times are no answer, in words; None where they are one, or where its records say themselves what became of it.

    Only the main figure counts: those beside it are refused and unsettled often enough, and nothing is judged by them.

    Args:
        launches: that the plan asks for.
        records: of the cell, under one arm.
    """
    main = [record for record in records if speaks_for_cell(kind, record.metric)]
    timed = {record.position for record in main if record.status == Status.OK}
    if kind not in TIMED or not timed:
        return None
    if skipped := [record for record in main if record.status == Status.SKIPPED]:
        return f"skipped in {len({r.position for r in skipped})} of {launches} launches: {skipped[0].reason or 'no reason was given'}"
    if len(timed) < launches:
        return f"timed in {len(timed)} of {launches} launches"
    if mixed := mixed_stacks(main):
        return mixed
    if unsettled := {record.position for record in main if record.converged is False}:
        return f"not converged in {len(unsettled)} of {launches} launches"
    return None


def mixed_stacks(records: Sequence[Record]) -> str | None:
    """Of which stacks the times of an arm are, in words; None where they are of one.

    A run that is resumed may find another driver or another Triton, or be carried to another host: such times make no median.
    """
    timed = [record.environment for record in records if record.status == Status.OK]
    found = {name: sorted({str(environment.get(name)) for environment in timed}) for name in STACK}
    differ = [f"{name} {' and '.join(values)}" for name, values in found.items() if len(values) > 1]
    return f"timed under more than one stack: {', '.join(differ)}" if differ else None
