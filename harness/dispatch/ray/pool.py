"""The actors of a run: opened for seats, asked without end for what their jobs said, fenced when they fall silent."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness.dispatch.ray.actor import RayStation
from harness.dispatch.ray.fleet import DEVICE_LABEL, SIMULATED_LABEL, FleetNode, resource_of
from harness.dispatch.ray.ledger import Assignment
from harness.dispatch.ray.messages import job_to_json
from harness.dispatch.ray.schedule import Seat
from harness.dispatch.supervisor import FIRST_CELL_S

HEARTBEAT_S = 15.0
"""Silence after which a worker that has answered before is fenced."""
PREPARE_S = 120.0
POLL_WAIT_S = 2.0
CLOSE_S = 3.0


class Stage(StrEnum):
    """How far a worker is: which answer is awaited."""

    HELLO = "hello"
    PREPARE = "prepare"
    POLL = "poll"


@dataclass(eq=False)
class Hand:
    """The actor behind a seat.

    Args:
        asked: the answer that is awaited.
        after: number of the line that comes next.
        heard: instant of the last answer, by the monotonic clock.
        began: instant at which its job was given.
    """

    seat: Seat
    actor: Any
    asked: Any
    heard: float
    stage: Stage = Stage.HELLO
    after: int = 0
    began: float = 0.0


@dataclass(frozen=True)
class Code:
    """What a worker needs of the run: its context as JSON, and the tars by digest."""

    context: bytes
    tars: dict[str, Any]


class Pool:
    """The actors of one run."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.hands: list[Hand] = []

    @property
    def seats(self) -> list[Seat]:
        """The seats of the actors that are held."""
        return [hand.seat for hand in self.hands]

    def open(self, seat: Seat, simulated: bool) -> None:
        """Start the actor of a seat; Ray places it when there is room.

        Args:
            simulated: the seat is a simulated unit.
        """
        options: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 6}
        if seat.device is None:
            assert seat.node is not None
            options |= {"num_cpus": 1, "scheduling_strategy": NodeAffinitySchedulingStrategy(seat.node.node_id, soft=False)}
        else:
            selector = {DEVICE_LABEL: seat.device, SIMULATED_LABEL: "1" if simulated else "!1"}
            options |= {"num_cpus": 0, "num_gpus": 0 if simulated else 1, "resources": {resource_of(seat.device): 1}}
            options |= {"label_selector": selector}
        actor: Any = ray.remote(RayStation).options(**options).remote(seat.device, seat.index, simulated)
        self.hands.append(Hand(seat, actor, actor.hello.remote(), time.monotonic()))

    def prepare(self, hand: Hand, node: FleetNode) -> None:
        """Send the code to a worker that has said hello."""
        hand.stage = Stage.PREPARE
        hand.asked = hand.actor.prepare.remote(self.code.context, node.name, list(self.code.tars), *self.code.tars.values())

    def poll(self, hand: Hand) -> None:
        """Ask for what comes next."""
        hand.stage = Stage.POLL
        hand.asked = hand.actor.poll.remote(hand.after, POLL_WAIT_S)

    def give(self, hand: Hand, one: Assignment) -> None:
        """Start a job; if the worker dies of it, its polls say so."""
        hand.seat.now, hand.began = one, time.monotonic()
        hand.actor.start.remote(json.dumps(job_to_json(one.job)).encode(), one.attempt)

    def collect(self, timeout_s: float) -> Iterator[tuple[Hand, dict[str, Any] | RayError]]:
        """Answers that have come, and the errors of actors that cannot answer any more."""
        if not self.hands:
            time.sleep(timeout_s)
            return
        by_ref = {hand.asked: hand for hand in self.hands}
        ready, _ = ray.wait(list(by_ref), num_returns=len(by_ref), timeout=timeout_s)
        for ref in ready:
            hand = by_ref[ref]
            try:
                answer = json.loads(ray.get(ref, timeout=1))
            except GetTimeoutError:
                continue
            except ActorUnavailableError as error:  # the way to it is cut: it may be there again before its heartbeat is due
                if hand.stage is not Stage.POLL:
                    yield hand, error
                else:
                    time.sleep(timeout_s)
                    self.poll(hand)
                continue
            except RayError as error:
                yield hand, error
                continue
            hand.heard = time.monotonic()
            yield hand, answer

    def overdue(self) -> Iterator[tuple[Hand, str]]:
        """Workers whose answer, or whose job's end, should have come long ago, and why."""
        now = time.monotonic()
        limits = {Stage.PREPARE: PREPARE_S, Stage.POLL: POLL_WAIT_S + HEARTBEAT_S}
        for hand in list(self.hands):
            one = hand.seat.now
            if hand.stage in limits and now - hand.heard > limits[hand.stage]:
                yield hand, f"no answer for {limits[hand.stage]:g} s"
            elif one is not None and now - hand.began > _longest(one):
                yield hand, f"no end of its job within {_longest(one):g} s"

    def fence(self, hand: Hand) -> None:
        """Give an actor up: what it still says is not asked for."""
        self.hands.remove(hand)
        with suppress(RayError, ValueError):
            ray.kill(hand.actor)

    def cancel(self) -> None:
        """Kill what runs on every worker."""
        for hand in self.hands:
            hand.actor.cancel.remote()

    def close(self) -> None:
        """End every actor, those that can with their folders tidied."""
        told = [hand.actor.close.remote() for hand in self.hands if hand.stage is Stage.POLL]
        with suppress(RayError):
            ray.wait(told, num_returns=len(told), timeout=CLOSE_S) if told else None
        for hand in list(self.hands):
            self.fence(hand)


def _longest(one: Assignment) -> float:
    """Seconds that a job may take at most: its supervisor ends every launch and cell in its time."""
    parts = 2  # a cell may be put aside, and begun again
    return sum((FIRST_CELL_S + one.job.deadline_s) * (parts * len(turn.cells) + 1) for turn in one.job.turns) + PREPARE_S


def lines_of(hand: Hand, answer: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """The lines of a poll's answer that are new, which then are taken."""
    lines: list[dict[str, Any]] = answer["lines"][max(0, hand.after - answer["first"]) :]
    hand.after = max(hand.after, answer["first"] + len(answer["lines"]))
    return lines
