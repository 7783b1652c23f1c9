"""Which timed cells are worth measuring again in the run they belong to: the machine was at fault, and not the code. Pure.

A rerun until green proves nothing, so a cell of which anything failed, or was refused for what the code does, stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from harness.dispatch.blocks import Answer, spoils, torn
from harness.dispatch.doubts import mixed_stacks
from harness.dispatch.fitness import TIMED
from harness.dispatch.journal import Again, Entry, Key
from harness.metrics import speaks_for_cell
from harness.plan.jobs import Job
from harness.records import HOST_CLOCK, Cell, Record, Status

MEMORY = "memory"
"""Code of a cell that was skipped for want of memory: where other launches had enough, somebody else had taken it."""

Answers = dict[Answer, list[Record]]


@dataclass
class Known:
    """What a journal says.

    Args:
        done: what is answered for good in the last round of each cell.
        rounds: of the cells that were measured again, the answers of each round before the last, the oldest first.
    """

    done: Answers = field(default_factory=dict)
    rounds: dict[Key, list[Answers]] = field(default_factory=dict)

    def begin_again(self, keys: Iterable[Key]) -> None:
        """Put the answers to these cells aside: from here on they are measured anew."""
        for key in keys:
            if before := {answer: self.done.pop(answer) for answer in list(self.done) if answer[:2] == key}:
                self.rounds.setdefault(key, []).append(before)

    def of(self, key: Key) -> Answers:
        """The answers to a cell in its last round."""
        return {answer: records for answer, records in self.done.items() if answer[:2] == key}

    def attempts_before(self, key: Key) -> int:
        """The last attempt at a cell in the rounds before its last."""
        return max((r.attempt for known in self.rounds.get(key, ()) for records in known.values() for r in records), default=0)


def known(entries: Iterable[Entry]) -> Known:
    """What the entries of a journal say, in order."""
    found = Known()
    for entry in entries:
        if isinstance(entry, Again):
            found.begin_again(entry.cells)
        elif _is_for_good(entry):
            found.done[answer_of(entry[0])] = entry
    return found


def remaining(jobs: Sequence[Job], entries: Iterable[Entry]) -> tuple[Known, dict[Key, str]]:
    """What of a journal stands, and what of it is measured again and why; of the rest, launches without an answer are made."""
    found = known(entries)
    again = disturbed(chain.from_iterable(found.done.values()))
    found.begin_again(again)
    for answer in unsettled_blocks(jobs, found.done):
        del found.done[answer]  # a block counts whole, of one lease, or not at all
    return found, again


def answer_of(record: Record) -> Answer:
    """What a journal entry answers: a cell of a kind, in one turn of its job."""
    return record.kind, record.cell, record.arm, record.position


def disturbed(records: Iterable[Record]) -> dict[Key, str]:
    """The cells that are worth measuring again, under every arm, and why."""
    cells: dict[Key, list[Record]] = {}
    for record in records:
        cells.setdefault((record.kind, record.cell), []).append(record)
    found = {key: disturbance(key[0], known) for key, known in cells.items()}
    return {key: why for key, why in found.items() if why is not None}


def disturbance(kind: str, records: Sequence[Record]) -> str | None:
    """Why a cell is worth measuring again; None where it is not.

    Args:
        records: all that is known of it, of every launch and arm.
    """
    if kind not in TIMED or any(Status(record.status).failed for record in records):
        return None
    if any(record.refused_for_code for record in records) or _always_off_the_host(records):
        return None
    invalid = [record for record in records if record.status == Status.INVALID]
    main = [record for record in records if speaks_for_cell(kind, record.metric)]
    skipped = [record for record in main if record.status == Status.SKIPPED]
    timed = [record for record in main if record.status == Status.OK]
    if any(record.reason_code != MEMORY or record.arm not in {other.arm for other in timed} for record in skipped):
        return None
    if invalid:
        return f"{invalid[0].status}: {invalid[0].reason}"
    if skipped:
        return f"{skipped[0].status} in some launches: {skipped[0].reason}"
    mixed = [mixed_stacks([record for record in timed if record.arm == arm]) for arm in sorted({record.arm for record in timed})]
    return next(filter(None, mixed), "not converged" if any(record.converged is False for record in timed) else None)


def _always_off_the_host(records: Sequence[Record]) -> bool:
    """Whether an arm has `host_clock` in every launch: no host stands still that often, so the code is likely to be at fault."""
    launches = {(record.arm, record.position) for record in records}
    off = {(r.arm, r.position) for r in records if r.status == Status.INVALID and r.reason_code == HOST_CLOCK}
    return not {arm for arm, _ in off} <= {arm for arm, _ in launches - off}


def _is_for_good(records: Sequence[Record]) -> bool:
    return not Status(records[0].status).resumable


def spoilt_arms(done: Mapping[Answer, Sequence[Record]]) -> set[tuple[str, Cell, str]]:
    """Kind, cell and arm of which no more launches are made, see `spoils`."""
    return {answer[:3] for answer, records in done.items() if _is_for_good(records) and spoils(records)}


def is_whole(jobs: Sequence[Job], key: Key, done: Mapping[Answer, Sequence[Record]]) -> bool:
    """Whether a cell has come to its end: every launch is answered for good, or its arm's launches have ended for a reason of its own."""
    spoilt = spoilt_arms(done)
    good = {answer for answer, records in done.items() if _is_for_good(records)}
    return all(
        (*key, turn.arm, turn.position) in good or (*key, turn.arm) in spoilt
        for job in jobs
        if job.kind == key[0]
        for turn in job.turns
        if key[1] in turn.cells
    )


def unsettled_blocks(jobs: Sequence[Job], done: Mapping[Answer, Sequence[Record]]) -> list[Answer]:
    """Answers of torn blocks that are made again: not those of a cell that has ended for a reason of its own."""
    ended = {spoilt[:2] for spoilt in spoilt_arms(done)}
    return [answer for answer in torn(jobs, done) if answer[:2] not in ended]
