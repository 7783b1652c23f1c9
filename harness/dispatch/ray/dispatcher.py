"""The `ray` dispatcher as the command line sees it. Nothing here, or imported here, imports Ray."""

from __future__ import annotations

import dataclasses
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.dispatch.protocol import Event, RunContext
from harness.dispatch.ray.child import DriverGone, DriverProcess
from harness.dispatch.ray.code import digest, pack
from harness.dispatch.ray.connect import check_address
from harness.dispatch.ray.fleet import FleetNode, capacity
from harness.dispatch.ray.ledger import Assignment, Ledger
from harness.dispatch.ray.messages import Settings, context_to_json, job_to_json
from harness.errors import Undecided
from harness.plan.jobs import Job
from harness.plan.matrix import INTERPRETER

CONNECT_S = 90.0
"""A head that is started for a run takes seconds, on a busy machine many."""
SILENCE_S = 60.0
CANCEL_S = 10.0
TICK_S = 0.5


class RayDispatcher:
    """Carries jobs to the nodes of a Ray cluster.

    Args:
        address: HOST:PORT of a head, or `local` to start one here for the run.
        slots: jobs at a time that need no GPU (default: the cluster's cores).
        max_queue_s: seconds that a job waits while others hold its device; None: for ever.
        head_timeout_s: seconds of the head's silence after which the run is given up, to be resumed.

    Raises:
        HarnessError: the address is none.
    """

    name = "ray"

    def __init__(
        self, address: str, slots: int | None = None, max_queue_s: float | None = None, head_timeout_s: float = Settings.head_timeout_s
    ) -> None:
        check_address(address)
        self.settings = Settings(address, slots, max_queue_s, head_timeout_s)
        self._home = tempfile.TemporaryDirectory(prefix="harness-driver-")
        self._driver: DriverProcess | None = None
        self._nodes: list[dict[str, Any]] = []
        self._ledger: Ledger | None = None
        self._cancelled = threading.Event()

    @property
    def dropped(self) -> int:
        """Messages of attempts that were given up, or that were no messages: none of them counts."""
        return self._ledger.dropped + self._ledger.refused if self._ledger else 0

    def nodes(self) -> list[dict[str, Any]]:
        """The cluster's nodes, as `harness fleet` lists them.

        Raises:
            Undecided: the cluster cannot be reached, or may not be used.
        """
        self._start()
        return self._nodes

    def capacity(self, devices: Sequence[str]) -> Mapping[str, int]:
        """Units of each device in the cluster, busy ones included; of the interpreter, cores, as far as they may be used.

        Raises:
            Undecided: as `nodes`.
        """
        names = [f.name for f in dataclasses.fields(FleetNode)]
        found = capacity([FleetNode(**{name: node[name] for name in names}) for node in self.nodes()], devices)
        slots = self.settings.slots
        return found if slots is None else {d: min(n, slots) if d == INTERPRETER else n for d, n in found.items()}

    def prepare(self, scratch: Path, devices: Collection[str] | None, kinds: Collection[str] | None) -> None:
        """Nothing: which nodes a run gets, and so which servers, is known only when its jobs are given out, and each worker then
        starts its own.
        """

    def submit(self, context: RunContext, jobs: Sequence[Job]) -> None:
        """Send code and jobs to the driver.

        Raises:
            CodeShipError: the code cannot travel.
        """
        driver = self._start()
        self._ledger = Ledger(context, jobs)
        arms, files = {}, {}
        for arm, code in context.arms.items():
            tar = pack(code.root)
            arms[arm] = digest(tar)
            file = Path(self._home.name) / f"{arms[arm]}.tar"
            file.write_bytes(tar)
            files[arms[arm]] = str(file)
        budget = context.allowance.to_json() if context.allowance else None
        driver.send({"op": "run", "context": context_to_json(context, arms), "tars": files, "budget": budget})
        for one in self._ledger.assignments:
            driver.send(_assign(one))

    def events(self) -> Iterator[Event]:
        """Yield events until every job is done or cancelled; a lost driver or head ends those that are left as infrastructure."""
        assert self._driver is not None
        assert self._ledger is not None
        heard, stopped = time.monotonic(), None
        while self._ledger.assignments:
            if self._cancelled.is_set():
                stopped = stopped or time.monotonic()
                if time.monotonic() - stopped > CANCEL_S:
                    return
            try:
                message = self._driver.receive(TICK_S)
            except TimeoutError:
                if time.monotonic() - heard > SILENCE_S:
                    yield from self._ledger.give_up(f"head_lost: the driver said nothing for {SILENCE_S:g} s")
                continue
            except DriverGone as error:
                if not self._cancelled.is_set():
                    yield from self._ledger.give_up(f"head_lost: {error}")
                return
            heard = time.monotonic()
            if message.get("event") == "ended":
                return
            if message.get("event") != "beat":
                yield from self._take(message)

    def cancel(self) -> None:
        """Kill what runs and start nothing more."""
        if not self._cancelled.is_set():
            self._cancelled.set()
            if self._driver is not None:
                self._driver.send({"op": "cancel"})

    def close(self) -> None:
        """End the driver, its workers, and a head that was started for it."""
        if self._driver is not None:
            self._driver.close()
        self._home.cleanup()

    def _take(self, message: Mapping[str, Any]) -> Iterator[Event]:
        assert self._driver is not None
        assert self._ledger is not None
        for found in self._ledger.take(message):
            if not isinstance(found, Assignment):
                yield found
            elif not self._cancelled.is_set():
                self._driver.send(_assign(found))

    def _start(self) -> DriverProcess:
        if self._driver is None:
            self._driver = DriverProcess(self.settings, Path(self._home.name) / "driver")
            asked = f"the Ray cluster at {self.settings.address}"
            try:
                said = self._driver.receive(CONNECT_S)
            except TimeoutError as error:
                raise Undecided(asked, f"no connection within {CONNECT_S:g} s", "see whether `ray status` answers there") from error
            except DriverGone as error:
                raise Undecided(asked, f"the driver ended: {error}", "install harness[fleet], and see the text above") from error
            if said.get("event") != "fleet":
                raise Undecided(*(str(said.get(part)) for part in ("asked", "found", "do")))
            self._nodes = said["nodes"]
        return self._driver


def _assign(one: Assignment) -> dict[str, Any]:
    return {"op": "job", "job": job_to_json(one.job), "attempt": one.attempt, "not_on": list(one.not_on)}
