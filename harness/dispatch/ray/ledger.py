"""What became of each job, as the command line sees it: attempts, fences, retries, and what is left. Pure; no I/O.

A job is carried again only when the infrastructure lost it: twice at most, never on a host that failed, and then only the
cells that have no answer. What an earlier attempt still sends is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.dispatch.blocks import Answer, spoils, torn
from harness.dispatch.protocol import CellDone, Event, JobDone, LeftOut, RunContext
from harness.dispatch.ray.messages import BadMessage, cell_from_text
from harness.dispatch.stamp import Place, failure
from harness.plan.jobs import Job, narrowed
from harness.records import Cell, Record, Status

RETRIES = 2


@dataclass(frozen=True)
class Assignment:
    """One attempt at a job.

    Args:
        job: with the cells that are left.
        not_on: names of the nodes that lost it before.
    """

    job: Job
    attempt: int = 1
    not_on: tuple[str, ...] = ()


@dataclass
class _Job:
    now: Assignment
    whole: Job
    answers: dict[Answer, Sequence[Record]] = field(default_factory=dict)
    trouble: str | None = None
    lost: str | None = None
    ended: bool = False


class Ledger:
    """The jobs of one run. `dropped` counts messages of attempts that were given up, `refused` what was no message."""

    def __init__(self, context: RunContext, jobs: Sequence[Job]) -> None:
        self.context = context
        self.dropped = self.refused = 0
        self._jobs = {job.job_id: _Job(Assignment(job), job) for job in jobs}

    @property
    def assignments(self) -> list[Assignment]:
        """The attempt that counts of every job that has not ended."""
        return [one.now for one in self._jobs.values() if not one.ended]

    def take(self, message: Mapping[str, Any]) -> Iterator[Event | Assignment]:
        """What a message of the driver means: cells and jobs that ended, and what is to be tried again."""
        kind = message.get("event")
        one = self._jobs.get(str(message.get("job")))
        if kind not in ("cell", "done", "lost", "failed") or one is None:
            self.refused += 1
        elif one.ended or message.get("attempt") != one.now.attempt:
            self.dropped += 1
        elif kind == "cell":
            yield from self._cell(one, message)
        elif kind == "done":
            if one.trouble:
                yield from self._rest(one, Status.INVALID, one.trouble)
            yield self._end(one)
        elif kind == "lost":
            yield from self._lost(one, str(message.get("reason")), str(message.get("node")))
        else:
            yield from self._failed(one, message)

    def give_up(self, reason: str) -> Iterator[Event]:
        """End every job that is left as infrastructure, for `reason`."""
        for one in self._jobs.values():
            if not one.ended:
                yield from self._rest(one, Status.INFRA, reason)
                yield self._end(one)

    def _cell(self, one: _Job, message: Mapping[str, Any]) -> Iterator[Event]:
        try:
            done = cell_from_text(message.get("records"), self.context, one.now.job, one.now.attempt)
        except BadMessage as error:
            self.refused += 1
            one.trouble = f"bad_message: {error}"
            return
        one.answers[_answer(one, done)] = done.records
        repeats = message.get("repeats")
        yield CellDone(one.whole, done.cell, done.records, repeats=None if repeats is None else str(repeats)[:500])

    def _lost(self, one: _Job, reason: str, node: str) -> Iterator[Event | Assignment]:
        left = _left(one)
        one.lost = reason
        if left.turns and one.now.attempt <= RETRIES:
            one.now = Assignment(left, one.now.attempt + 1, (*one.now.not_on, node))
            yield one.now
            return
        yield from self._rest(one, Status.INFRA, reason)
        yield self._end(one)

    def _failed(self, one: _Job, message: Mapping[str, Any]) -> Iterator[Event]:
        reason, status = str(message.get("reason")), Status.INFRA
        if message.get("status") in (Status.NO_CAPACITY, Status.QUEUE_TIMEOUT):
            status = Status(str(message.get("status")))
        if message.get("status") == Status.CANCELLED and not one.lost:
            one.ended = True
            yield LeftOut(one.whole, reason)
            return
        if one.lost:
            status, reason = Status.INFRA, f"{one.lost}; tried again: {reason}"
        yield from self._rest(one, status, reason)
        yield self._end(one)

    def _rest(self, one: _Job, status: Status, reason: str) -> Iterator[Event]:
        place = Place(attempt=one.now.attempt)
        for turn in _left(one).turns:
            for cell in turn.cells:
                yield CellDone(one.whole, cell, (failure(self.context, one.whole, turn, cell, place, status, reason),))

    def _end(self, one: _Job) -> JobDone:
        one.ended = True
        return JobDone(one.whole)


def _answer(one: _Job, done: CellDone) -> Answer:
    return one.whole.kind, done.cell, done.records[0].arm, done.records[0].position


def _left(one: _Job) -> Job:
    """The job with what must still be measured: a block counts whole, and a cell that failed is not measured again."""
    job, answers = one.whole, dict(one.answers)
    for answer in torn([job], answers):
        del answers[answer]
    spoilt: set[tuple[str, Cell]] = {(arm, cell) for (_, cell, arm, _), records in answers.items() if spoils(records)}
    turns = []
    for turn in job.turns:
        cells = [c for c in turn.cells if (job.kind, c, turn.arm, turn.position) not in answers and (turn.arm, c) not in spoilt]
        turns += [replace(turn, cells=tuple(cells))] if cells else []
    return narrowed(job, turns)
