"""The process that holds the Ray connection: it seats workers, hands them jobs, and passes on what they say.

    python -m harness.dispatch.ray.driver FD SETTINGS

FD is one end of a Unix socket pair to the command line, SETTINGS a JSON object (see `messages.Settings`). It decides nothing: which
attempt counts and what is tried again is the command line's. When the other end closes, it ends everything and itself.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import harness
from harness.dispatch.ray.code import engine_digest
from harness.dispatch.ray.connect import Connection, connect
from harness.dispatch.ray.fleet import FleetNode, read_nodes, resource_of, units_of
from harness.dispatch.ray.ledger import Assignment
from harness.dispatch.ray.messages import Settings, job_from_json, line, read_line
from harness.dispatch.ray.schedule import Seat, give, hopeless, wanted
from harness.errors import HarnessError
from harness.plan.budget import Allowance
from harness.plan.jobs import without_gpu
from harness.records import Status

TICK_S = 0.1
NODES_EVERY_S = 0.5
BEAT_S = 1.0
CANCEL_S = 5.0
RAY_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
RAY_PATIENCE_S = 15
"""Seconds by which our own word of a lost head comes before Ray ends this process."""


class HeadLost(Exception):
    """The head has not answered for too long."""


class Driver:
    """Carries the jobs of one run, from the inbox to the pool's workers."""

    def __init__(self, channel: socket.socket, settings: Settings) -> None:
        self.channel, self.settings = channel, settings
        self.nodes: list[FleetNode] = []
        self.waiting: list[Assignment] = []
        self.ever: list[Seat] = []
        self.pool: Any = None
        self._inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._seen = self._looked = self._beaten = time.monotonic()
        self._dying: list[tuple[Seat, str, float]] = []
        self._idle_since: dict[str | None, float] = {}
        self._cancelled: float | None = None
        self._allowance: Allowance | None = None

    def run(self) -> None:
        """Work until the command line closes its end.

        Raises:
            HeadLost: the cluster's head is gone.
        """
        self._look()
        self._send({"event": "fleet", "harness": harness.__version__, "nodes": self._listed()})
        for work in (self._read, self._watch):
            threading.Thread(target=work, daemon=True, name=work.__name__).start()
        ended = False
        while self._obey():
            if time.monotonic() - self._seen > self.settings.head_timeout_s:
                raise HeadLost(f"the head has not answered for {self.settings.head_timeout_s:g} s")
            if self._cancelled is None:
                self._seat()
            self._hear()
            self._beat()
            if not ended and self._cancelled is not None and (self._at_rest() or time.monotonic() - self._cancelled > CANCEL_S):
                self._send({"event": "ended"})
                ended = True

    def close(self) -> None:
        """End every worker."""
        if self.pool is not None:
            self.pool.cancel()
            self.pool.close()

    def _obey(self) -> bool:
        """Do what the command line says; False where it has closed its end."""
        with suppress(queue.Empty):
            while (message := self._inbox.get_nowait()) is not None:
                if message["op"] == "run":
                    self._begin(message)
                elif message["op"] == "job":
                    self.waiting.append(Assignment(job_from_json(message["job"]), message["attempt"], tuple(message["not_on"])))
                elif message["op"] == "cancel" and self._cancelled is None:
                    self._cancelled = time.monotonic()
                    self.waiting.clear()
                    self.pool.cancel() if self.pool is not None else None
            return False
        return True

    def _begin(self, message: dict[str, Any]) -> None:
        import ray

        from harness.dispatch.ray.pool import Code, Pool

        tars = {digest: ray.put(Path(file).read_bytes()) for digest, file in message["tars"].items()}
        self.pool = Pool(Code(json.dumps(message["context"]).encode(), tars))
        if message["budget"] is not None:
            self._allowance = Allowance.from_json(message["budget"])

    def _seat(self) -> None:
        """Give out work, open seats for what waits, and say what waits in vain."""
        if self.pool is None:
            return
        self._refuse()
        for one, seat in list(give(self.waiting, self.pool.seats, self.nodes)):
            self.waiting.remove(one)
            self.pool.give(next(hand for hand in self.pool.hands if hand.seat is seat), one)
        limit = self.settings.slots or sum(n.cpus for n in self.nodes)
        for seat in wanted(self.waiting, self.ever, self.nodes, limit):
            self.ever.append(seat)
            self.pool.open(seat, bool(seat.device) and all(n.simulated for n in units_of(str(seat.device), self.nodes)))
        for one in list(self.waiting):
            if found := hopeless(one, self.ever, self.nodes):
                self._fail(one, *found)
        self._expire()

    def _refuse(self) -> None:
        """Let jobs go that the run's budget has no time for any more."""
        for one in list(self.waiting):
            if self._allowance is not None and (reason := self._allowance.refusal(one.job)):
                self._fail(one, Status.CANCELLED, reason)

    def _expire(self) -> None:
        """Let jobs go whose device has done nothing for this run for too long: somebody else holds it."""
        now = time.monotonic()
        at_work = {seat.device for seat in self.pool.seats if seat.ready and seat.bad is None}
        for one in list(self.waiting):
            key = None if without_gpu(one.job) else one.job.device
            if key in at_work:
                self._idle_since.pop(key, None)
            elif self.settings.max_queue_s is not None and now - self._idle_since.setdefault(key, now) > self.settings.max_queue_s:
                what = f"no unit of {key}" if key else "no core"
                self._fail(one, Status.QUEUE_TIMEOUT, f"{what} came free within {self.settings.max_queue_s:g} s")

    def _fail(self, one: Assignment, status: Status, reason: str) -> None:
        self.waiting.remove(one)
        self._send({"event": "failed", "job": one.job.job_id, "attempt": one.attempt, "status": str(status), "reason": reason})

    def _hear(self) -> None:
        """Take what workers say; fence those that died or fell silent."""
        from harness.dispatch.ray.pool import Stage, lines_of

        if self.pool is None:
            time.sleep(TICK_S)
            return
        for hand, answer in self.pool.collect(TICK_S):
            if not isinstance(answer, dict):
                self._lose(hand, " ".join(str(answer).split()))
            elif hand.stage is Stage.HELLO:
                self._welcome(hand, answer)
            elif hand.stage is Stage.PREPARE:
                if answer["problem"]:
                    self._reject(hand, answer["problem"])
                else:
                    hand.seat.ready = True
                    self.pool.poll(hand)
            else:
                for said in lines_of(hand, answer):
                    self._pass_on(hand, said)
                if hand in self.pool.hands:
                    self.pool.poll(hand)
        for hand, why in self.pool.overdue():
            self._lose(hand, why)
        self._bury()

    def _welcome(self, hand: Any, answer: dict[str, Any]) -> None:
        node = next((n for n in self.nodes if n.node_id == answer["node_id"]), None)
        hand.seat.node = node or hand.seat.node
        ours, theirs = (harness.__version__, engine_digest()), (answer["harness"], answer["engine"])
        if node is None:
            self._lose(hand, "its node is gone")
        elif ours != theirs:
            words = [f"harness {version} ({digest[:12]})" for version, digest in (theirs, ours)]
            self._reject(hand, f"version_skew: {node.name} has {words[0]}, this is {words[1]}")
        elif answer["problem"]:
            self._reject(hand, f"{answer['problem']} (on {node.name})")
        else:
            self.pool.prepare(hand, node)

    def _pass_on(self, hand: Any, said: dict[str, Any]) -> None:
        event = {"event": said["type"], "job": said["job"], "attempt": said["attempt"]}
        if said["type"] == "cell":
            self._send({**event, "records": said["records"], "repeats": said["repeats"]})
            return
        now, hand.seat.now = hand.seat.now, None
        if said["cancelled"]:
            return
        if said.get("problem") and now is not None:
            self._send({**event, "event": "lost", "node": hand.seat.node.name, "reason": f"worker_lost: {said['problem']:.500}"})
        else:
            self._send(event)

    def _reject(self, hand: Any, reason: str) -> None:
        """Give a worker no work: another like it would be no better."""
        hand.seat.bad = reason
        self.pool.fence(hand)

    def _lose(self, hand: Any, why: str) -> None:
        """Give a worker up at once; whether its node died, too, the next look at the nodes says."""
        self.pool.fence(hand)
        hand.seat.bad = why
        self._dying.append((hand.seat, why, time.monotonic()))

    def _bury(self) -> None:
        """Say of lost workers what was lost."""
        due = [entry for entry in self._dying if entry[2] < self._looked]
        self._dying = [entry for entry in self._dying if entry not in due]
        for seat, why, _ in due:
            name = seat.node.name if seat.node else "a node"
            if "ModuleNotFoundError" in why or "No module named" in why:
                seat.bad = f"version_skew: harness cannot be imported on {name}: {why[-300:]}"
                continue
            alive = seat.node is None or any(n.alive for n in self.nodes if n.node_id == seat.node.node_id)
            seat.bad, seat.lost = f"{'worker_lost' if alive else 'node_lost'}: {name}: {why:.300}", True
            if seat.now is not None:
                event = {"event": "lost", "job": seat.now.job.job_id, "attempt": seat.now.attempt}
                self._send({**event, "node": name, "reason": seat.bad})
                seat.now = None

    def _at_rest(self) -> bool:
        return self.pool is None or all(seat.now is None for seat in self.pool.seats)

    def _listed(self) -> list[dict[str, Any]]:
        """The nodes for people: what each has, and what of it is free."""
        import ray

        free = ray._private.state.available_resources_per_node()
        listed = []
        for n in self.nodes:
            has = free.get(n.node_id, {})
            units = int(has.get(resource_of(n.device), 0)) if n.device else 0
            listed.append({**asdict(n), "free_units": min(units, n.units), "free_cpus": int(has.get("CPU", 0)), "problem": n.problem})
        return listed

    def _look(self) -> None:
        import ray

        began = time.monotonic()
        self.nodes = read_nodes(ray.nodes())
        self._looked, self._seen = began, time.monotonic()

    def _watch(self) -> None:
        while True:
            time.sleep(NODES_EVERY_S)
            with suppress(Exception):  # a head that is gone is told by its silence
                self._look()

    def _beat(self) -> None:
        if time.monotonic() - self._beaten > BEAT_S:
            self._beaten = time.monotonic()
            self._send({"event": "beat"})

    def _read(self) -> None:
        with self.channel.makefile("rb") as stream:
            for data in stream:
                self._inbox.put(read_line(data))
        self._inbox.put(None)

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionError):
            self.channel.sendall(line(message))


def main() -> None:
    """Connect, say what is there, and carry jobs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the parent's to handle
    channel = socket.socket(fileno=int(sys.argv[1]))
    settings = Settings(**json.loads(sys.argv[2]))
    os.environ[RAY_PATIENCE] = str(int(settings.head_timeout_s) + RAY_PATIENCE_S)
    connection: Connection | None = None
    driver = Driver(channel, settings)
    try:
        connection = connect(settings.address, settings.slots)
        driver.run()
    except HarnessError as error:
        channel.sendall(line({"event": "refused", "asked": error.asked, "found": error.found, "do": error.do}))
    except HeadLost as error:
        sys.stderr.write(f"{error}\n")
        driver.pool.cancel() if driver.pool is not None else None  # workers are reached without the head
        time.sleep(1)
        sys.stderr.flush()
        os._exit(1)
    finally:
        driver.close()
        if connection is not None:
            connection.close()


if __name__ == "__main__":
    main()
