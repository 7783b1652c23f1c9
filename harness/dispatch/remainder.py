"""What a journal leaves to do of a plan: `execute` runs it, and a dry run lists it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from harness.dispatch.blocks import Answer, torn
from harness.dispatch.journal import JOURNAL, read_entries
from harness.plan.jobs import Job, narrowed
from harness.plan.plan import Plan
from harness.records import Record, Status


def answer_of(record: Record) -> Answer:
    """What a journal entry answers: a cell of a kind, in one turn of its job."""
    return record.kind, record.cell, record.arm, record.position


def answers(jobs: Sequence[Job], entries: Iterable[list[Record]]) -> dict[Answer, list[Record]]:
    """What the entries of a journal answer for good: with them, no launch of it is made again."""
    done = {answer_of(entry[0]): entry for entry in entries if not Status(entry[0].status).resumable}
    for answer in torn(jobs, done):
        del done[answer]  # a block counts whole, of one lease, or not at all
    return done


def unfinished(jobs: Iterable[Job], done: Collection[Answer]) -> Iterator[Job]:
    """The jobs that have launches without an answer, with those launches alone."""
    for job in jobs:
        turns = [replace(t, cells=tuple(c for c in t.cells if (job.kind, c, t.arm, t.position) not in done)) for t in job.turns]
        if any(turn.cells for turn in turns):
            yield narrowed(job, turns)


def remainder(plan: Plan, folder: Path) -> Plan:
    """The plan with those cells and launches alone that the journal of a run does not answer; to be shown, not to be run.

    Args:
        folder: the run's folder on this machine; without a journal in it, everything is left.

    Raises:
        HarnessError: a line of the journal cannot be read.
    """
    _, entries = read_entries(folder / JOURNAL)
    jobs = []
    for job in unfinished(plan.jobs, answers(plan.jobs, entries)):
        waiting = {cell for turn in job.turns for cell in turn.cells}
        jobs.append(replace(job, cells=tuple(cell for cell in job.cells if cell in waiting)))
    left = {(job.kind, cell) for job in jobs for cell in job.cells}
    return replace(plan, expected=tuple(one for one in plan.expected if (one.kind, one.cell) in left), jobs=tuple(jobs))
