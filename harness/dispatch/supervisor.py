"""Runs one job on one unit: starts launches, keeps deadlines by the monotonic clock, validates what they send.

A launch that dies or hangs costs the cell in hand; the cells after it run in a fresh launch. So do the cells before it where
they were timed: what a launch timed counts when it has closed, since only its last canary shows whether the unit was the same
throughout. Nothing here imports torch or the code under test.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import selectors
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.devices.telemetry import Summary
from harness.devices.units import Unit
from harness.dispatch.blocks import spoils
from harness.dispatch.fitness import TIMED, UNCLOSED, changed, invalidated, unfit
from harness.dispatch.launcher import ForkServer, Launch, ServerLost
from harness.dispatch.protocol import CellDone, RunContext
from harness.dispatch.stamp import Place, failure, stamped
from harness.measure.environment import with_id
from harness.plan.jobs import Job, Turn
from harness.plan.matrix import INTERPRETER
from harness.records import COLUMNS, Cell, Record, Status
from harness.store.tables import to_table

FIRST_CELL_S = 120.0
"""How long a launch may take to import the kernels and reach its first cell."""
POLL_S = 0.1
RESTARTS = 2
"""How often a turn goes on in a new fork server after losing one."""
REPEATS = 1
"""How often a turn times cells again of which all ended, but whose launch did not close."""
UNVOUCHED = "its launch did not come to its last canary"
DRAIN_S = 1.0
MAX_LINE = 16 << 20
READING = {"metric", "value", "status", "reason", "columns"}


class BadMessage(ValueError):
    """A launch sent something that is no message of the protocol."""


class Telemetry(Protocol):
    """What knows how a unit fared, see `harness.devices.telemetry.TelemetryReader`."""

    def within(self, *stretches: tuple[int, int]) -> Summary | None:
        """The summary from one instant of `time.monotonic_ns` to another; None where nothing was seen."""


@dataclass
class Ending:
    """How a launch ended: by itself, or killed by us for a reason.

    Args:
        unclosed: cells that it had timed, and did not vouch for; they have not been yielded as vouched.
        why: how it came to that.
        blames_none: it ended so after its last cell, and no record tells.
    """

    killed: Status | None = None
    reason: str = ""
    unclosed: tuple[Cell, ...] = ()
    why: str = ""
    blames_none: bool = False


Stretch = tuple[int, int]
"""Two instants of `time.monotonic_ns`."""


class Supervisor:
    """Runs jobs on one unit, one launch at a time.

    Args:
        server: gives the fork server in which its launches start: a new one after a loss.
        unit: the unit, named in the records.
        cancelled: when set, what runs is killed and nothing more starts.
        telemetry: watches the unit; None where it has no sensors.
        node: what records call this host; None for its own name.
        attempt: how often the jobs have been started, this time included.
    """

    def __init__(
        self,
        context: RunContext,
        server: Callable[[], ForkServer],
        unit: Unit,
        cancelled: threading.Event,
        telemetry: Telemetry | None = None,
        *,
        node: str | None = None,
        attempt: int = 1,
    ) -> None:
        self.context, self.server, self.unit, self.cancelled, self.telemetry = context, server, unit, cancelled, telemetry
        self._node = node
        self._place = Place(unit=unit.uuid, node=node, attempt=attempt)

    def run(self, job: Job) -> Iterator[CellDone]:
        """Yield every cell of every turn as it ends; after `cancelled`, those that are left are not yielded.

        One that was timed is yielded twice: as it ends, not vouched for, and when its launch has closed.

        A cell of which nothing was ok in one turn, and not because of the unit, is not measured in the arm's next. One call is one
        lease of the unit: where the unit changed meanwhile, every timed cell is yielded again, without its numbers. Where the caller
        ends the lease before its time, as one beyond its unit's history, nothing that was found out about the unit in it is kept.
        """
        try:
            yield from self._lease(job)
        except GeneratorExit:
            lease_file(self.context, self.unit).unlink(missing_ok=True)
            raise

    def _lease(self, job: Job) -> Iterator[CellDone]:
        spoilt: set[tuple[str, Cell]] = set()
        ended: dict[tuple[Cell, str, int], CellDone] = {}
        began_ns = time.monotonic_ns()
        self._place = dataclasses.replace(self._place, lease=secrets.token_hex(6))
        self._know_unit(job)
        for turn in job.turns:
            for done in self._turn(job, turn, [cell for cell in turn.cells if (turn.arm, cell) not in spoilt]):
                if spoils(done.records):
                    spoilt.add((turn.arm, done.cell))
                ended[done.cell, turn.arm, turn.position] = done
                yield done
        if job.kind in TIMED and (reason := changed(self._summary((began_ns, time.monotonic_ns())))):
            for done in ended.values():
                yield dataclasses.replace(done, records=invalidated(done.records, reason), repeats=None)

    def _know_unit(self, job: Job) -> None:
        """Have what holds for the unit whatever is timed found out in a launch of its own, before each job until a launch has handed it on.

        A launch that did it before its first cell would time that cell after another history than the launches after it. Where this
        fails, or the unit was not fit meanwhile, that is what happens, and that launch says what is wrong.
        """
        found = lease_file(self.context, self.unit)
        if job.kind not in TIMED or job.device == INTERPRETER or found.exists() or self.cancelled.is_set():
            return
        ending, began_ns = Ending(), time.monotonic_ns()
        with suppress(ServerLost):
            for _ in self._launch(job, job.turns[0], f"{job.job_id}-unit", (), ending):
                pass
        if ending.killed:
            found.write_text(json.dumps({}))  # nothing is known, and no other job waits for it as long
        elif unfit(self._summary(*_stretch(began_ns))):
            found.unlink(missing_ok=True)

    def _turn(self, job: Job, turn: Turn, cells: Sequence[Cell]) -> Iterator[CellDone]:
        remaining = list(cells)
        number = lost = unclosed = 0
        repeats: str | None = None
        while remaining and not self.cancelled.is_set():
            number += 1
            name = f"{job.job_id}-{turn.position}-{number}"
            before, ending = len(remaining), Ending()
            try:
                for done in self._launch(job, turn, name, tuple(remaining), ending):
                    if done.vouched and done.cell in remaining:  # a cell that is taken back has ended already
                        remaining.remove(done.cell)
                        done, repeats = dataclasses.replace(done, repeats=repeats), None
                    yield done
            except ServerLost as error:
                lost += 1
                if lost <= RESTARTS:
                    continue
                yield from self._all(job, turn, name, remaining, Status.INFRA, f"worker_lost: {error}")
                return
            repeats = ending.why if ending.blames_none else repeats
            # what a launch timed and did not vouch for comes last: else every cell that crashes has all of it timed once more
            remaining.sort(key=lambda cell: cell in ending.unclosed)
            if len(remaining) < before or self.cancelled.is_set():
                continue
            if not ending.unclosed:
                yield from self._all(job, turn, name, remaining, Status.INFRA, f"launch_failed: {self._log_tail(name)}")
                return
            unclosed += 1
            if unclosed > REPEATS:
                yield from self._all(job, turn, name, ending.unclosed, Status.INVALID, f"{UNCLOSED}: {UNVOUCHED}: {ending.why}")
                remaining = [cell for cell in remaining if cell not in ending.unclosed]

    def _all(self, job: Job, turn: Turn, launch: str, cells: Sequence[Cell], status: Status, reason: str) -> Iterator[CellDone]:
        for cell in cells:
            yield CellDone(job, cell, (self._failure(job, turn, cell, launch, status, reason),))

    def _launch(self, job: Job, turn: Turn, name: str, cells: Sequence[Cell], ending: Ending) -> Iterator[CellDone]:
        server = self.server()
        scratch = self.context.scratch / "launches" / name
        scratch.mkdir(parents=True, exist_ok=True)
        spec = scratch / "spec.json"
        spec.write_text(json.dumps(self._spec(job, turn, cells, server)))
        read, write = os.pipe()
        try:
            with (scratch / "log.txt").open("wb") as log:
                launch = server.launch(name, spec, write, log.fileno())
        except ServerLost:
            os.close(read)
            raise
        finally:
            os.close(write)
        current: Cell | None = None
        last: Cell | None = None  # that ended or was put aside
        began_ns: int | None = None
        ended: list[Cell] = []
        timed: set[Cell] = set()
        held: dict[Cell, CellDone] = {}  # what was timed and is not vouched for yet
        aside: dict[Cell, list[Stretch]] = {}
        try:
            for message in self._messages(launch, read, job, ending):
                kind = message.get("type")
                if kind == "environment":
                    unit = {"driver": self.unit.driver, "partition": self.unit.partition}
                    found, node = with_id({**message["environment"], **unit}), self._node or str(message["node"])
                    self._place = dataclasses.replace(self._place, environment=found, node=node)
                elif kind == "begin":
                    current, began_ns = self._expected(message, cells), time.monotonic_ns()
                elif kind == "aside":  # it has its main figure, and is begun again for the others once all cells have theirs
                    last = self._expected(message, cells)
                    aside[last] = _stretch(began_ns)
                    current = began_ns = None
                elif kind == "end":
                    cell = self._expected(message, cells)
                    summary = self._summary(*aside.pop(cell, []), *_stretch(began_ns))
                    seen = {"telemetry": dataclasses.asdict(summary)} if summary else {}
                    records = tuple(self._records(job, turn, name, message, seen))
                    if job.kind in TIMED:
                        records = invalidated(records, unfit(summary))
                    to_table(records, f"what {name} sent")  # a record that cannot be stored must not reach the journal
                    ended.append(cell)
                    last, current, began_ns = cell, None, None
                    done = CellDone(job, cell, records)
                    held.pop(cell, None)
                    if job.kind in TIMED and any(record.status == Status.OK for record in records):
                        held[cell] = done
                        done = dataclasses.replace(done, vouched=False)
                        timed.add(cell)
                    yield done
                elif kind == "retract":
                    held.clear()
                    if job.kind in TIMED and turn == job.turns[0]:  # what the lease began with may be of the same clock or disturbance
                        lease_file(self.context, self.unit).unlink(missing_ok=True)
                    taken_back = [cell for cell in ended if cell in timed or job.kind not in TIMED]
                    yield from self._all(job, turn, name, taken_back, Status.INVALID, str(message["reason"])[:300])
                elif kind == "closed":
                    yield from held.values()
                    held.clear()
                else:
                    raise BadMessage(f"message of type {kind!r}")
        except Exception as error:  # whatever a launch sends, only its own cell may suffer from it
            words = " ".join(str(error).split()).encode("utf-8", "backslashreplace").decode()
            ending.killed, ending.reason = Status.INVALID, f"bad_message: {words:.300}"
        finally:
            launch.kill()
            launch.ended.wait(5)
            os.close(read)
        is_lost = ending.killed is None and launch.ended.is_set() and launch.status is None and not self.cancelled.is_set()
        ending.unclosed = tuple(held)
        if is_lost and last is not None:  # a launch outlives its server for some ms, and may have ended the cell that killed it
            reason = "worker_lost: the fork server ended in this cell or right after it"
            yield from self._all(job, turn, name, [last], Status.INVALID, reason)
        if is_lost and (last is not None or current is None):
            raise ServerLost("it ended between two cells")
        if current is None:
            begun = [*ended, *aside]
            ahead = next((cell for cell in cells if cell not in begun), None) if ending.killed else None
            # where all have begun, or it ended by itself with something left: what it did last is to blame, unless that cell had ended
            current = ahead or (last if last in aside else None)
        if self.cancelled.is_set() or (current is None and not held):
            return
        status, reason = (ending.killed, ending.reason) if ending.killed else (Status.CRASH, self._death(launch, name))
        ending.why, ending.blames_none = reason, current is None
        if current is not None:
            yield CellDone(job, current, (self._failure(job, turn, current, name, status, reason),))

    def _spec(self, job: Job, turn: Turn, cells: Sequence[Cell], server: ForkServer) -> dict[str, Any]:
        context = self.context
        return {
            "root": str(context.arms[turn.arm].root),
            "jobs_dir": str(context.jobs_dir),
            "kind": job.kind,
            "device": job.device,
            "cells": [str(c) for c in cells],
            "seed": _seed(context.run_id, turn),
            "lease": str(lease_file(context, self.unit)),
            "first": turn == job.turns[0],
            # figures that nothing is judged by are taken once a lease and arm
            "beside": turn.position == min(t.position for t in job.turns if t.arm == turn.arm),
            # binaries compiled by one launch serve the next; arms share none but those of the engine's own kernels
            "environment": {"TRITON_CACHE_DIR": str(context.scratch / "triton" / turn.arm)},
            "engine_cache": str(server.engine_cache),
        }

    def _messages(self, launch: Launch, read: int, job: Job, ending: Ending) -> Iterator[dict[str, Any]]:
        """Messages until the pipe closes; a launch past its deadline is killed and `ending` says so."""
        os.set_blocking(read, False)
        selector = selectors.DefaultSelector()
        selector.register(read, selectors.EVENT_READ)
        deadline, started = time.monotonic() + FIRST_CELL_S, False
        drain_until = float("inf")
        buffer = b""
        while True:
            quiet = not selector.select(POLL_S)
            now = time.monotonic()
            if self.cancelled.is_set() or now > drain_until:
                return
            if quiet:
                if launch.ended.is_set():  # something it left behind holds the pipe open
                    drain_until = min(drain_until, now + DRAIN_S)
                elif now > deadline:
                    limit = job.deadline_s if started else FIRST_CELL_S
                    ending.killed, ending.reason = Status.TIMEOUT, f"no end within {limit:g} s" + ("" if started else " of its start")
                    return
                continue
            data = b""
            with suppress(BlockingIOError):
                data = os.read(read, 1 << 16)
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            if len(buffer) > MAX_LINE:
                raise BadMessage(f"a line of over {MAX_LINE} bytes")
            for line in lines:
                message = _parse(line)
                started, deadline = True, time.monotonic() + job.deadline_s
                yield message

    def _expected(self, message: dict[str, Any], cells: Sequence[Cell]) -> Cell:
        cell = Cell.parse(message["cell"])
        if cell not in cells:
            raise BadMessage(f"cell {cell} is not of this job")
        return cell

    def _summary(self, *stretches: Stretch) -> Summary | None:
        """What the unit's sensors saw in stretches of time; None where they saw nothing."""
        return self.telemetry.within(*stretches) if self.telemetry and stretches else None

    def _records(self, job: Job, turn: Turn, launch: str, message: dict[str, Any], seen: dict[str, Any]) -> Iterator[Record]:
        cell = Cell.parse(message["cell"])
        common = {"started_at": message["started_at"], "duration": message["duration"]}
        if not message["readings"]:
            raise BadMessage(f"no reading of {cell}")
        for reading in message["readings"]:
            if set(reading) != READING or not set(reading["columns"]) <= set(COLUMNS):
                raise BadMessage(f"reading with fields {sorted(reading)}")
            columns = dict(reading["columns"])
            if columns.get("method"):
                columns["method"] = f"{columns['method']}+{self.context.job_digests[job.kind][:12]}"
            told = {name: value for name, value in dict(columns.get("evidence") or {}).items() if name != "telemetry"}
            columns["evidence"] = told | seen
            answer = {name: reading[name] for name in ("metric", "value", "status", "reason")}
            yield stamped(self.context, job, turn, cell, self._place, common | columns | answer, launch)

    def _failure(self, job: Job, turn: Turn, cell: Cell, launch: str, status: Status, reason: str) -> Record:
        return failure(self.context, job, turn, cell, self._place, status, reason, launch)

    def _death(self, launch: Launch, name: str) -> str:
        if launch.status is None:
            return "its fork server ended"
        if os.WIFSIGNALED(launch.status):
            return f"killed by {signal.Signals(os.WTERMSIG(launch.status)).name}"
        return f"exit status {os.waitstatus_to_exitcode(launch.status)}: {self._log_tail(name)}"

    def _log_tail(self, name: str) -> str:
        log = self.context.scratch / "launches" / name / "log.txt"
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
        return " | ".join(lines[-3:])[:500] or "it printed nothing"


def lease_file(context: RunContext, unit: Unit) -> Path:
    """Where launches of a run hand on what they found out about a unit."""
    return context.scratch / f"lease-{unit.uuid}.json"


def _stretch(began_ns: int | None) -> list[Stretch]:
    """The stretch of time from an instant until now; none where nothing has begun."""
    return [] if began_ns is None else [(began_ns, time.monotonic_ns())]


def _seed(run_id: str, turn: Turn) -> int:
    """Seed of a launch's contents: another in every run and pair of launches, the same for both sides of a pair."""
    pair = turn.position if turn.block is None else turn.position // 2
    return zlib.crc32(f"{run_id}/{turn.block}/{pair}".encode())


def _parse(line: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> float:
        raise BadMessage(f"{constant} is no value")

    try:
        message = json.loads(line, parse_constant=refuse)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadMessage(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise BadMessage("not an object")
    return message
