"""One unit at work: its fork servers, its telemetry, and the jobs it runs one after another. Every dispatcher works through it."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Self, cast

from harness.devices.telemetry import TelemetryReader
from harness.devices.units import Unit
from harness.dispatch.fitness import TIMED
from harness.dispatch.history import UnitHistory
from harness.dispatch.launcher import Flavour, ForkServer, clean_environment
from harness.dispatch.lock import unit_lock
from harness.dispatch.protocol import CellDone, RunContext
from harness.dispatch.supervisor import Supervisor, lease_file
from harness.plan.jobs import Job
from harness.plan.matrix import INTERPRETER


def flavour_of(job: Job) -> Flavour:
    """The fork server that a job's launches need."""
    if job.on == "host":
        return Flavour.STATIC
    return Flavour.INTERPRETER if job.device == INTERPRETER else Flavour.GPU


class Servers:
    """The fork servers of this host: one a flavour, and on a GPU one a unit; one that was lost is replaced."""

    def __init__(self) -> None:
        self._all: list[ForkServer] = []
        self._live: dict[tuple[Flavour, str], ForkServer] = {}
        self._lock = threading.Lock()
        # Linux ends a server when the thread that started it ends: this one lasts as long as the object
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-starter")

    def get(self, flavour: Flavour, unit: Unit, scratch: Path) -> ForkServer:
        """The server of a flavour (on a GPU: of the unit), started now where there is none or the last was lost.

        Args:
            scratch: a folder of its own is made in it for a server that starts.
        """
        key = (flavour, unit.uuid if flavour is Flavour.GPU else "")
        with self._lock:
            server = self._live.get(key)
            if server is None or server.lost:
                home = scratch / f"server-{flavour}-{len(self._all)}"
                server = self._live[key] = self._starter.submit(self._start, flavour, home, unit).result()
            return server

    def close(self) -> None:
        """End every server with its launches."""
        with suppress(RuntimeError):  # closed before
            self._starter.submit(lambda: None).result()  # one whose start was interrupted has started now
        for server in self._all:
            server.close()
        self._starter.shutdown()

    def _start(self, flavour: Flavour, home: Path, unit: Unit) -> ForkServer:
        self._all.append(ForkServer(flavour, home, unit.environment, unit.device))
        return self._all[-1]


class UnitWorker:
    """Runs jobs on one unit, which is locked, and whose telemetry is read, inside the `with` block. Enter it from a thread that
    outlives it.

    Args:
        unit: a GPU, or a slot of the interpreter, which compiles, too.
        cancelled: when set, what runs is killed and nothing more starts.
        scratch: folder for the servers' logs (default: that of the context).
        node: what records call this host; None for its own name.
    """

    def __init__(
        self,
        context: RunContext,
        unit: Unit,
        servers: Servers,
        cancelled: threading.Event,
        *,
        scratch: Path | None = None,
        node: str | None = None,
    ) -> None:
        self.context, self.unit, self.servers, self.cancelled, self.node = context, unit, servers, cancelled, node
        self.scratch = scratch or context.scratch
        self._stack = ExitStack()
        self._telemetry: TelemetryReader | None = None
        self._history = UnitHistory(unit.uuid, cancelled)

    def __enter__(self) -> Self:
        if self.unit.device != INTERPRETER:
            self._stack.enter_context(unit_lock(self.unit.uuid, self.cancelled))
            # what was found out when the run held the unit before, perhaps by another engine, need not hold any more
            lease_file(self.context, self.unit).unlink(missing_ok=True)
            self.servers.get(Flavour.GPU, self.unit, self.scratch)  # imports for seconds, on a fleet while others compile
        self._telemetry = self._stack.enter_context(self._watch())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, job: Job, attempt: int = 1) -> Iterator[CellDone]:
        """Yield every cell of a job as it ends; see `Supervisor.run`, and for one that times a GPU `UnitHistory.hold`."""
        server = partial(self.servers.get, flavour_of(job), self.unit, self.scratch)
        supervisor = Supervisor(self.context, server, self.unit, self.cancelled, self._telemetry, node=self.node, attempt=attempt)
        cells = supervisor.run(job)
        if self.unit.device != INTERPRETER and job.kind in TIMED:
            cells = self._history.hold(self.context, job, cast("Generator[CellDone, None, None]", cells))
        yield from (done for done in cells if done.vouched)

    def _watch(self) -> AbstractContextManager[TelemetryReader | None]:
        """The unit's telemetry; None on a slot of the interpreter, which has no sensors."""
        if self.unit.device == INTERPRETER:
            return nullcontext()
        home = self.scratch / f"telemetry-{self.unit.uuid}"
        return closing(TelemetryReader(self.unit.uuid, clean_environment(Flavour.GPU, home, self.unit.environment)))
