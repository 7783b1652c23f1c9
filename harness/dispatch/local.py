"""The `local` dispatcher: this machine, no Ray. Jobs that need no GPU run first, several at a time; then the GPUs have
the host to themselves, so that compiling never disturbs a measurement; GPUs of one device share its jobs. All this tier by
tier, where a budget has made several.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from harness.devices.units import Unit, local_units
from harness.dispatch.launcher import Flavour
from harness.dispatch.protocol import Event, JobDone, LeftOut, RunContext
from harness.dispatch.worker import Servers, UnitWorker, flavour_of
from harness.plan.jobs import Job, without_gpu
from harness.plan.matrix import INTERPRETER

COMPILING = "static"
"""The engine's kind whose jobs need no device. That a workspace's own kind needs none is known only when the run is planned."""


class LocalDispatcher:
    """Runs jobs on this machine.

    Args:
        slots: jobs that run at a time where no GPU is needed (default: one a core).
    """

    name = "local"
    dropped = 0

    def __init__(self, slots: int | None = None) -> None:
        self.slots = slots or len(os.sched_getaffinity(0))
        self._cancelled = threading.Event()
        self._events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()
        self._servers = Servers()
        self._units: list[Unit] | None = None

    @property
    def units(self) -> list[Unit]:
        """The GPUs of this machine, asked once."""
        if self._units is None:
            self._units = local_units()
        return self._units

    def capacity(self, devices: Sequence[str]) -> Mapping[str, int]:
        """Units of each device on this machine; of the interpreter, slots."""
        return {d: self.slots if d == INTERPRETER else sum(unit.device == d for unit in self.units) for d in devices}

    def prepare(self, scratch: Path, devices: Collection[str] | None, kinds: Collection[str] | None) -> None:
        """Start the fork servers that jobs of these kinds on these devices would use, so that they import while the run is planned.

        Raises:
            ProbeFailed: the GPUs of this machine cannot be listed.
        """
        for flavour, unit in self._foreseen(devices, kinds):
            self._servers.get(flavour, unit, scratch)

    def submit(self, context: RunContext, jobs: Sequence[Job]) -> None:
        """Start the jobs in the background; a thread feeds `events`."""
        threading.Thread(target=self._run, args=(context, list(jobs)), daemon=True, name="dispatch").start()

    def events(self) -> Iterator[Event]:
        """Yield events until all jobs are done or cancelled."""
        while (event := self._events.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    def cancel(self) -> None:
        """Kill what runs and start nothing more."""
        self._cancelled.set()

    def close(self) -> None:
        """End every fork server."""
        self._cancelled.set()
        self._servers.close()

    def _foreseen(self, devices: Collection[str] | None, kinds: Collection[str] | None) -> Iterator[tuple[Flavour, Unit]]:
        """The servers to prepare, each with a unit that it is for. The interpreter's only where nothing else is asked for: most
        matrices hold little or nothing for it.
        """
        compiles = kinds is None or COMPILING in kinds
        runs = kinds is None or any(kind != COMPILING for kind in kinds)
        if devices is not None and set(devices) <= {INTERPRETER}:
            if runs and devices:
                yield Flavour.INTERPRETER, Unit.interpreter(0)
            return
        if compiles:
            yield Flavour.STATIC, Unit.interpreter(0)
        for unit in self.units if runs else ():
            if unit.device is not None and (devices is None or unit.device in devices):
                yield Flavour.GPU, unit

    def _run(self, context: RunContext, jobs: list[Job]) -> None:
        try:
            for _, tier in itertools.groupby(sorted(jobs, key=lambda job: job.tier), key=lambda job: job.tier):
                self._run_tier(context, list(tier))
        except BaseException as error:
            self._events.put(error)
        self._events.put(None)

    def _run_tier(self, context: RunContext, jobs: Sequence[Job]) -> None:
        on_host = [job for job in jobs if without_gpu(job)]
        on_gpu = [job for job in jobs if not without_gpu(job)]
        for unit in [unit for unit in self.units if any(job.device == unit.device for job in on_gpu)]:
            self._servers.get(Flavour.GPU, unit, context.scratch)  # imports for seconds, while the host compiles
        self._parallel(context, on_host, [Unit.interpreter(slot) for slot in range(self.slots)])
        for device in sorted({job.device for job in on_gpu}):
            self._parallel(context, [j for j in on_gpu if j.device == device], [u for u in self.units if u.device == device])

    def _parallel(self, context: RunContext, jobs: Sequence[Job], units: Sequence[Unit]) -> None:
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        jobs = [job for job in jobs if not self._left_out(context, job)]  # nothing is started, and no unit waited for, in vain
        for job in jobs:
            waiting.put(job)
        for flavour in sorted({flavour_of(job) for job in jobs}):
            self._servers.get(flavour, units[0], context.scratch)  # all at once: importing takes seconds
        workers = [threading.Thread(target=self._work, args=(context, waiting, unit), daemon=True) for unit in units[: len(jobs)]]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def _work(self, context: RunContext, waiting: queue.SimpleQueue[Job], unit: Unit) -> None:
        try:
            with UnitWorker(context, unit, self._servers, self._cancelled) as worker:
                while not self._cancelled.is_set():
                    job = waiting.get_nowait()
                    if self._left_out(context, job):
                        continue
                    for done in worker.run(job):
                        self._events.put(done)
                    if not self._cancelled.is_set():
                        self._events.put(JobDone(job))
        except queue.Empty:
            pass
        except BaseException as error:
            self._events.put(error)

    def _left_out(self, context: RunContext, job: Job) -> bool:
        """Whether the budget has no time for a job any more, which then is said."""
        reason = context.allowance.refusal(job) if context.allowance is not None else None
        if reason is not None:
            self._events.put(LeftOut(job, reason))
        return reason is not None
