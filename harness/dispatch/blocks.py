"""ABBA blocks of a paired run: which answers count, since a block counts whole or not at all. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.dispatch.fitness import Unfit
from harness.plan.jobs import Job
from harness.records import HOST_CLOCK, INCOMPLETE_BLOCK, Cell, Record, Status

Answer = tuple[str, Cell, str, int | None]
"""A kind, a cell, an arm and the position of a launch: what a journal entry answers."""


def torn(jobs: Sequence[Job], done: Mapping[Answer, Sequence[Record]]) -> list[Answer]:
    """The answers of blocks of which another launch is missing or of another lease; a block counts whole or not at all.

    A cell that failed under either arm has no pairs, and what is known of it is kept.
    """
    found = []
    for job in jobs:
        for cell in job.cells:
            blocks: dict[int, list[Answer]] = {}
            for turn in job.turns:
                if turn.block is not None and cell in turn.cells:
                    blocks.setdefault(turn.block, []).append((job.kind, cell, turn.arm, turn.position))
            paired = [block for block in blocks.values() if len({arm for _, _, arm, _ in block}) > 1]
            answered = [[answer for answer in block if answer in done] for block in paired]
            if any(Status(r.status).failed for block in answered for answer in block for r in done[answer]):
                continue
            for block, has in zip(paired, answered, strict=True):
                if len(has) < len(block) or len({done[answer][0].lease_id for answer in has}) > 1:
                    found += has
    return found


def why_torn(torn_answer: Answer, done: Mapping[Answer, Sequence[Record]]) -> str:
    """Why an answer of a torn block does not count: the first launch of its cell, under either arm, that did not end well in this
    block, or that ended the cell for its arm.
    """
    kind, cell, _, _ = torn_answer
    block = done[torn_answer][0].block
    for answer in sorted((a for a in done if a[:2] == (kind, cell)), key=lambda a: a[3] or 0):
        bad = next((r for r in done[answer] if r.status != Status.OK), None)
        if bad is not None and (bad.block == block or spoils(done[answer])):
            ended = f"{bad.status}: {bad.reason}" if bad.reason else bad.status
            return f"{INCOMPLETE_BLOCK}: launch {answer[3]}, of {answer[2]}, ended {ended}"
    return f"{INCOMPLETE_BLOCK}: not every launch of its ABBA block was made, or not in one lease"


def spoils(records: Sequence[Record]) -> bool:
    """Whether an answer ends the cell for its arm, so that the arm's later launches leave it out: nothing of it was ok, and not
    because of the unit or the host, which the next launch may find fit.
    """
    return not any(r.status == Status.OK for r in records) and not all(map(may_pass, records))


def may_pass(record: Record) -> bool:
    """Whether the unit or the host spoilt what was timed, which the next launch may find fit."""
    return record.status == Status.INVALID and record.reason_code in {*Unfit, HOST_CLOCK}
