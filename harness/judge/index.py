"""One side's records by cell and kind: attempts settled, duplicates refused."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness import metrics
from harness.errors import Undecided
from harness.judge.model import Side
from harness.metrics import Rule
from harness.records import Cell, Record, Status

Key = tuple[Cell, str]
"""A cell and a kind: what a plan expects."""

REPLICATED = frozenset(row.kind for row in metrics.METRICS.values() if row.rule is Rule.TIME)
"""Kinds that launch a cell more than once; elsewhere a second value is a mistake."""

COMPILED = frozenset(row.kind for row in metrics.METRICS.values() if row.rule in (Rule.GROWTH, Rule.ANY_GROWTH))
"""Kinds that only compile: that they ended says nothing of whether the GPU was there."""


@dataclass(frozen=True)
class Measured:
    """What one side knows of a cell under one kind.

    Args:
        status: the worst of what speaks for the whole cell.
        reason: the words of the record that has it.
        records: of the attempts that count.
        passed_elsewhere: it crashed or timed out on one unit and ended well on another.
    """

    status: Status
    reason: str | None
    records: tuple[Record, ...]
    passed_elsewhere: bool = False

    def of(self, metric: str) -> tuple[Record, ...]:
        """The records of one metric."""
        return tuple(r for r in self.records if r.metric == metric)

    def names(self) -> list[str]:
        """The metrics that have a record, in the order of the records."""
        return list(dict.fromkeys(r.metric for r in self.records if r.metric is not None))


def value_of(records: Iterable[Record]) -> float | None:
    """The median over launches of the valid values, None where there is none."""
    values = [r.value for r in records if r.value is not None and r.status == Status.OK]
    return statistics.median(values) if values else None


def reached(record: Record) -> bool:
    """Whether the record shows that a unit of its device was there and answered."""
    status = Status(record.status)
    answered = status.failed or status in (Status.OK, Status.INVALID, Status.SKIPPED)
    return record.kind not in COMPILED and answered and not record.simulated


def index(side: Side) -> dict[Key, Measured]:
    """The side's records by cell and kind.

    Raises:
        Undecided: two records answer the same question, or a run's records are of more than one arm, which is of two codes.
    """
    asked = f"one answer for every cell of {side.ref}"
    arms: dict[str, str] = {}
    for record in side.records:
        if record.arm != arms.setdefault(record.run_id, record.arm):
            found = f"records of the arms base, head of run {record.run_id}"
            raise Undecided(asked, found, "give the records of one arm")
    if twice := [key for key, n in Counter(map(_question, side.records)).items() if n > 1]:
        cell, kind, metric = twice[0][:3]
        found = f"{len(twice)} questions have two answers; the first is {cell} {kind} {metric or 'status'}"
        raise Undecided(asked, found, "name one run with run:ID, or remove the copy of its Parquet file")
    ordered = sorted(side.records, key=_key)
    return {key: _settle(kind=key[1], records=tuple(group)) for key, group in itertools.groupby(ordered, key=_key)}


def _key(record: Record) -> Key:
    return record.cell, record.kind


def _question(record: Record) -> tuple[object, ...]:
    if record.kind not in REPLICATED:
        launch: tuple[object, ...] = ()
    elif record.block is None:
        launch = (record.launch, record.position)
    else:  # paired runs of the same two codes are taken together
        launch = (record.run_id, record.launch, record.block, record.position)
    return (str(record.cell), record.kind, record.metric, record.attempt, *launch)


def _settle(kind: str, records: Sequence[Record]) -> Measured:
    """Drop attempts that infrastructure cut short and that were made again; every other attempt counts."""
    last = max(r.attempt for r in records)
    torn = {r.attempt for r in records if Status(r.status).resumable and r.attempt < last}
    kept = tuple(r for r in records if r.attempt not in torn)
    worst = max((r for r in kept if _speaks_for_cell(kind, r)), key=_rank, default=None)
    if worst is None:
        return Measured(Status.OK, None, _latest(kind, kept))
    return Measured(Status(worst.status), worst.reason, _latest(kind, kept), _passed_elsewhere(kept))


def _speaks_for_cell(kind: str, record: Record) -> bool:
    """A failure always does; else one of a side metric speaks for that metric alone."""
    return metrics.speaks_for_cell(kind, record.metric) or Status(record.status).failed


def _rank(record: Record) -> int:
    status = Status(record.status)
    known = {Status.SKIPPED: 0, Status.OK: 1, Status.NO_CAPACITY: 2}
    return known.get(status, 4 if status.failed else 3)


def _latest(kind: str, records: tuple[Record, ...]) -> tuple[Record, ...]:
    """Where a cell has one value, that of its last attempt; its status is the worst of all attempts all the same."""
    if kind in REPLICATED:
        return records
    last = max(r.attempt for r in records)
    return tuple(r for r in records if r.attempt == last)


def _passed_elsewhere(records: Iterable[Record]) -> bool:
    by_attempt: defaultdict[int, list[Record]] = defaultdict(list)
    for record in records:
        by_attempt[record.attempt].append(record)
    died = [a for a in by_attempt.values() if any(r.status in (Status.CRASH, Status.TIMEOUT) for r in a)]
    passed = [a for a in by_attempt.values() if all(r.status == Status.OK for r in a)]
    if not died or not passed or len(died) + len(passed) < len(by_attempt):
        return False
    where_died, where_passed = ({r.unit for attempt in group for r in attempt} for group in (died, passed))
    return None not in where_died | where_passed and not where_died & where_passed
