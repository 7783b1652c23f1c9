"""What a journal leaves to do of a plan: `execute` runs it, and a dry run lists it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.dispatch.again import remaining, spoilt_arms
from harness.dispatch.blocks import Answer, may_pass
from harness.dispatch.journal import JOURNAL, Key, read_entries
from harness.plan.jobs import Job, Turn, narrowed
from harness.plan.plan import Plan
from harness.records import HEAD, Cell, Record


def unfinished(jobs: Iterable[Job], done: Mapping[Answer, Sequence[Record]]) -> Iterator[Job]:
    """The jobs that have launches to make, with those launches alone: without an answer, and of a cell that has not ended."""
    spoilt = spoilt_arms(done)
    for job in jobs:
        turns = [replace(t, cells=tuple(c for c in t.cells if _waits(job.kind, c, t, done, spoilt))) for t in job.turns]
        if any(turn.cells for turn in turns):
            yield narrowed(job, turns)


def _waits(kind: str, cell: Cell, turn: Turn, done: Collection[Answer], spoilt: Collection[tuple[str, Cell, str]]) -> bool:
    return (kind, cell, turn.arm, turn.position) not in done and (kind, cell, turn.arm) not in spoilt


def cut_short(jobs: Iterable[Job], done: Mapping[Answer, Sequence[Record]]) -> set[Key]:
    """The cells of which a part is answered, and a launch that head's answer rests on was not made: its own, or another of its blocks.

    Not those that ended under head for a reason of their own, nor those whose lease may have ended because of the unit: records say so.
    """
    heads = {answer: records for answer, records in done.items() if answer[2] == HEAD}
    told = {answer[:2] for answer, records in heads.items() if any(map(may_pass, records))}
    told |= {spoilt[:2] for spoilt in spoilt_arms(heads)}
    turns = [(job.kind, turn) for job in unfinished(jobs, done) for turn in job.turns if turn.arm == HEAD or turn.block is not None]
    missing = {(kind, cell) for kind, turn in turns for cell in turn.cells}
    return (missing - told) & {answer[:2] for answer in heads}


def remainder(plan: Plan, folder: Path) -> Plan:
    """The plan with those cells and launches alone that are left by the journal of a run; to be shown, not to be run.

    Args:
        folder: the run's folder on this machine; without a journal in it, everything is left.

    Raises:
        HarnessError: a line of the journal cannot be read.
    """
    _, entries = read_entries(folder / JOURNAL)
    jobs = []
    found, _ = remaining(plan.jobs, entries)
    for job in unfinished(plan.jobs, found.done):
        waiting = {cell for turn in job.turns for cell in turn.cells}
        jobs.append(replace(job, cells=tuple(cell for cell in job.cells if cell in waiting)))
    left = {(job.kind, cell) for job in jobs for cell in job.cells}
    return replace(plan, expected=tuple(one for one in plan.expected if (one.kind, one.cell) in left), jobs=tuple(jobs))
