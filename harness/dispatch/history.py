"""Holds a lease's first canary against its unit's history, and ends a lease whose unit is not what it was."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

from harness.devices.history import CANARY_METHOD, PastLease, Stack, Usual, are_times, departure, instant, usual_of
from harness.devices.history_file import append_lease, history_file, read_leases
from harness.dispatch.fitness import Unfit, invalidated
from harness.dispatch.protocol import CellDone, RunContext
from harness.dispatch.stamp import Place, failure
from harness.plan.jobs import Job
from harness.records import Cell, Record, Status

DO = "make it readable and writable for every user, or remove it"


class UnitHistory:
    """The history of one unit, to which every lease adds its first canary. It is held against runs before its own.

    A lease that is refused adds its own as well, so that a lasting change becomes the new normal.

    Args:
        uuid: of the unit.
        cancelled: when set, cells that are left are not answered.
    """

    def __init__(self, uuid: str, cancelled: threading.Event) -> None:
        self.uuid, self.cancelled = uuid, cancelled
        self._told: set[str] = set()

    def hold(self, context: RunContext, job: Job, cells: Generator[CellDone, None, None]) -> Iterator[CellDone]:
        """Pass on the cells of a lease. Where its first canary is beyond the unit's history the lease ends: no cell has a time, and
        those that are left get a record that says why.

        Args:
            cells: of one lease, as they end; the first record with canaries in its evidence has the lease's first at their head.
        """
        ended: set[tuple[str, Cell]] = set()
        reason: str | None = None
        known = False
        with closing(cells):  # ends the launch that runs
            for done in cells:
                record = next((r for r in done.records if first_canary(r)), done.records[0])
                if not known and (canary := first_canary(record)):
                    known, reason = True, self._judge(context.run_id, record.environment, *canary)
                if done.vouched or reason is not None:
                    ended.add((record.arm, done.cell))
                if reason is not None:
                    yield replace(done, records=invalidated(done.records, reason), vouched=True)
                    break
                yield done
        if reason is not None:
            yield from self._left(context, job, record, reason, ended)

    def _left(self, context: RunContext, job: Job, record: Record, reason: str, ended: set[tuple[str, Cell]]) -> Iterator[CellDone]:
        """The cells that have not ended, once an arm, stamped like `record`."""
        place = Place(record.unit, record.node, record.attempt, record.lease_id, record.environment)
        for turn in job.turns:
            for cell in turn.cells:
                if self.cancelled.is_set():
                    return
                if (turn.arm, cell) not in ended:
                    ended.add((turn.arm, cell))
                    yield CellDone(job, cell, (failure(context, job, turn, cell, place, Status.INVALID, reason),))

    def _judge(self, run: str, environment: Mapping[str, object], arithmetic_us: float, copy_us: float) -> str | None:
        """Why no time of the lease may be used, None where there is no such reason; the canary enters the history."""
        driver = environment.get("driver")
        stack = Stack(CANARY_METHOD, None if driver is None else str(driver), str(environment.get("torch")), str(environment.get("triton")))
        now = instant(datetime.now(UTC))
        usual: Usual | None = None
        try:
            usual = usual_of(read_leases(self.uuid), stack, now, run)
        except OSError as error:
            self._warn("cannot be read, so that no canary is held against it", error)
        try:
            append_lease(self.uuid, PastLease(now, run, stack, arithmetic_us, copy_us))
        except OSError as error:
            self._warn("cannot be written, so that this lease is not part of it", error)
        moved = departure(usual, arithmetic_us, copy_us)
        return None if moved is None else f"{Unfit.CONTENDED}: {moved}"

    def _warn(self, what: str, error: OSError) -> None:
        if what not in self._told:
            self._told.add(what)
            file = history_file(self.uuid)
            logging.getLogger(__name__).warning("the history of unit %s, %s, %s (%s): %s", self.uuid, file, what, error.strerror, DO)


def first_canary(record: Record) -> tuple[float, float] | None:
    """The lease's first canary by a record's evidence: its arithmetic and its copy, in us; None where it tells none."""
    told: object = (record.evidence or {}).get("canaries")
    if not isinstance(told, Iterable):
        return None
    values = list(told)[:2]
    return (values[0], values[1]) if len(values) == 2 and are_times(values) else None
