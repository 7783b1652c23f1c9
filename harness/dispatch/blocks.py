"""ABBA blocks of a paired run: which answers count, since a block counts whole or not at all. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.plan.jobs import Job
from harness.records import Cell, Record, Status

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
