"""What runs on a node: one actor a unit, which supervises launches and keeps what they said until it is fetched.

It is a plain class, so that it can be tried without Ray; Ray makes an actor of it, with several threads, so that `cancel` and
`poll` are answered while a job runs. What it returns is JSON, as bytes.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import harness
from harness.authoring.workspace import bundled_jobs
from harness.devices.units import Unit, local_units
from harness.dispatch.protocol import CellDone, RunContext
from harness.dispatch.ray.code import Shipped, engine_digest, unpack
from harness.dispatch.ray.folder import NodeFolder
from harness.dispatch.ray.messages import BadMessage, cell_to_text, context_from_json, job_from_json
from harness.dispatch.stamp import Place, failure
from harness.dispatch.worker import Servers, UnitWorker
from harness.errors import HarnessError
from harness.plan.jobs import Job, Turn, without_gpu
from harness.plan.matrix import INTERPRETER
from harness.records import Cell, Status

ABANDONED_S = 60.0
"""After this long without a question, whoever asked is gone: the worker ends itself."""
POLL_BYTES = 4 << 20
"""An answer to `poll` ends with the line that passes this."""


class Station:
    """One unit of a node.

    Args:
        device: the device that the node is labelled with; None for a core, which compiles and interprets.
        index: number of this worker, distinct on its node.
        simulated: the node only stands for the device.
    """

    def __init__(self, device: str | None, index: int, simulated: bool = False) -> None:
        self.device, self.index, self.simulated = device, index, simulated
        self.cancelled = threading.Event()
        self._servers = Servers()
        self._unit: Unit | None = None
        self._worker: UnitWorker | None = None
        self._folder: NodeFolder | None = None
        self._arms: dict[str, Shipped] = {}
        self._ship: tuple[dict[str, Any], dict[str, bytes], str] | None = None
        # one thread of its own: no two jobs at a time, and it outlives the processes that it starts
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="station")
        self._lines: deque[dict[str, Any]] = deque()
        self._first = 0
        self._said = threading.Condition()
        self._asked = time.monotonic()
        threading.Thread(target=self._end_when_abandoned, daemon=True, name="abandoned").start()

    def hello(self) -> bytes:
        """Who answers: node, engine, unit; `problem` says why it must be given no work."""
        self._asked = time.monotonic()
        problem = None
        try:
            self._unit = self._probe()
        except HarnessError as error:
            problem = f"wrong_unit: {error.asked}: {error.found}"
        found = {"harness": harness.__version__, "engine": engine_digest(), "pid": os.getpid(), "problem": problem}
        return json.dumps({**found, "unit": self._unit.uuid if self._unit else None}).encode()

    def prepare(self, context: bytes, node: str, digests: Sequence[str], *tars: bytes) -> bytes:
        """Take the run's context and its code; the answer says what is wrong with it, or nothing.

        Args:
            context: as `messages.context_to_json` makes it.
            node: what records call this node.
            digests: of the tars, which hold the code of every arm.
        """
        self._asked = time.monotonic()
        try:
            said = json.loads(context)
            self._folder = NodeFolder(said["run_id"], node)
            self._ship = (said, dict(zip(digests, tars, strict=True)), node)
            self._thread.submit(self._unpack).result()
        except HarnessError as error:
            return json.dumps({"problem": f"code_ship: {error.asked}: {error.found}"}).encode()
        except (OSError, ValueError, TypeError, KeyError) as error:
            return json.dumps({"problem": f"code_ship: {error!r}"}).encode()
        return json.dumps({"problem": None}).encode()

    def start(self, job: bytes, attempt: int) -> None:
        """Begin a job; what comes of it is fetched by `poll`. A second one waits for the first."""
        self._asked = time.monotonic()
        self._thread.submit(self._run, job_from_json(json.loads(job)), attempt)

    def poll(self, after: int, wait_s: float) -> bytes:
        """What was said from line `after` on, as soon as there is something, or nothing after `wait_s`.

        Lines before `after` have arrived and are forgotten; asking twice gives the same twice.
        """
        self._asked = time.monotonic()
        with self._said:
            while self._lines and self._first < after:
                self._lines.popleft()
                self._first += 1
            if not self._lines:
                self._said.wait(wait_s)
            lines, size = [], 0
            for line in self._lines:
                lines.append(line)
                size += len(line.get("records", ""))
                if size > POLL_BYTES:
                    break
        self._asked = time.monotonic()
        return json.dumps({"first": self._first, "lines": lines}).encode()

    def cancel(self) -> None:
        """Kill what runs and start nothing more."""
        self.cancelled.set()

    def close(self) -> None:
        """End every process that was started, and leave the node's folder."""
        self.cancelled.set()
        self._thread.submit(self._leave).result()
        self._thread.shutdown()

    def _probe(self) -> Unit:
        if self.device is None or self.simulated:
            plain = Unit.interpreter(self.index)
            return plain if self.device is None else replace(plain, uuid=f"simulated:{self.device}:{self.index}", device=self.device)
        units = local_units()
        if len(units) != 1 or units[0].device != self.device:
            seen = ", ".join(f"{u.model} ({u.device or 'no row of devices.toml'})" for u in units) or "no GPU"
            raise HarnessError(f"a unit of {self.device}", seen, "correct the node's label, or its GPU mask")
        return units[0]

    def _unpack(self) -> None:
        """Write the code where it is not here, and open the worker on it; on the thread that runs the jobs."""
        assert self._ship is not None
        assert self._folder is not None
        assert self._unit is not None
        said, tars, node = self._ship
        shipped = {digest: unpack(data, digest, self._folder.path / "code") for digest, data in tars.items()}
        self._arms = {arm: shipped[code["root"]] for arm, code in said["arms"].items()}
        roots = {digest: one.root for digest, one in shipped.items()}
        context = context_from_json(said, roots, bundled_jobs(), self._folder.path)
        if self._worker is None:
            scratch = self._folder.path / f"worker-{os.getpid()}"
            self._worker = UnitWorker(context, self._unit, self._servers, self.cancelled, scratch=scratch, node=node)
            if not self.simulated:
                self._worker.__enter__()

    def _run(self, job: Job, attempt: int) -> None:
        ended = {"type": "done", "job": job.job_id, "attempt": attempt}
        try:
            for done in self._cells(job, attempt):
                told = {"records": cell_to_text(done), "repeats": done.repeats}
                self._say({"type": "cell", "job": job.job_id, "attempt": attempt, **told})
        except (HarnessError, BadMessage, OSError) as error:
            ended["problem"] = " ".join(str(error).split())
        except BaseException as error:
            ended["problem"] = f"a defect of the worker: {error!r}"
        self._say({**ended, "cancelled": self.cancelled.is_set()})

    def _cells(self, job: Job, attempt: int) -> Iterator[CellDone]:
        self._unpack()  # code that a job changed must not be the next one's
        worker = self._worker
        assert worker is not None
        place = Place(worker.unit.uuid, worker.node, attempt)
        if self.simulated and not without_gpu(job):
            yield from _skipped(worker.context, job, place)
            return
        ended: list[tuple[Turn, Cell]] = []
        for done in worker.run(job, attempt):
            turn = next(t for t in job.turns if t.position == done.records[0].position)
            ended.append((turn, done.cell))
            yield done
        changed = sorted({name for arm in {turn.arm for turn, _ in ended} for name in self._arms[arm].changed_files()})
        reason = f"tree_changed: {', '.join(changed[:3])} is not what was sent"
        for turn, cell in ended if changed else []:
            yield CellDone(job, cell, (failure(worker.context, job, turn, cell, place, Status.INVALID, reason),))

    def _say(self, line: dict[str, Any]) -> None:
        with self._said:
            self._lines.append(line)
            self._said.notify_all()

    def _leave(self) -> None:
        if self._worker is not None:
            self._worker.__exit__()
        self._servers.close()
        if self._folder is not None:
            self._folder.close()

    def _end_when_abandoned(self) -> None:
        while time.monotonic() - self._asked < ABANDONED_S:
            time.sleep(1)
        self.cancelled.set()
        time.sleep(2)
        os._exit(1)


def _skipped(context: RunContext, job: Job, place: Place) -> Iterator[CellDone]:
    """What a simulated node says of cells that need the device: one answer a cell and arm."""
    reason = f"simulated: no {job.device} is here" if job.device != INTERPRETER else "simulated"
    answered = set()
    for turn in job.turns:
        for cell in turn.cells:
            if (turn.arm, cell) not in answered:
                answered.add((turn.arm, cell))
                yield CellDone(job, cell, (failure(context, job, turn, cell, place, Status.SKIPPED, reason),))
