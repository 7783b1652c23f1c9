"""Which job goes to which worker, and which workers are wanted. Pure; the driver carries it out.

A GPU's host is left alone while it measures: jobs that need no GPU run there before, and only where no other host can
have them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from harness.dispatch.ray.fleet import FleetNode, hosts_for, units_of
from harness.dispatch.ray.ledger import Assignment
from harness.plan.jobs import without_gpu
from harness.records import Status

CORES = 16
"""Cores of one node that a run uses at most: each keeps fork servers of its own, some hundred megabytes."""
LOSSES = 3
"""Workers that a node may lose in one run before it is given no more."""


@dataclass(eq=False)
class Seat:
    """A place for one job at a time: a unit of a device, or a core of a node.

    Args:
        device: whose unit it is; None where it is a core.
        node: the node it is on; None until Ray has placed it.
        index: number of the seat, distinct on its node.
        ready: it has answered and may be given work.
        bad: why it is given no work any more.
        lost: it went bad by dying, so another may take its place.
        now: what it carries.
    """

    device: str | None
    node: FleetNode | None
    index: int
    ready: bool = False
    bad: str | None = None
    lost: bool = False
    now: Assignment | None = field(default=None)

    @property
    def free(self) -> bool:
        """Whether it has, or soon will have, nothing to do."""
        return self.bad is None and self.now is None


def give(waiting: Sequence[Assignment], seats: Sequence[Seat], nodes: Sequence[FleetNode]) -> Iterator[tuple[Assignment, Seat]]:
    """Pairs of a job and the ready seat that takes it now, the first jobs first."""
    taken: dict[Seat, Assignment] = {seat: seat.now for seat in seats if seat.now is not None}
    for one in waiting:
        for seat in seats:
            if seat in taken or not seat.ready or seat.bad is not None or not _may(one, seat, nodes):
                continue
            if _disturbs(one, seat, taken, waiting, nodes):
                continue
            taken[seat] = one
            yield one, seat
            break


def wanted(waiting: Sequence[Assignment], seats: Sequence[Seat], nodes: Sequence[FleetNode], limit: int) -> list[Seat]:
    """The seats that should be opened for what waits, no more than there are jobs, units and cores.

    Args:
        limit: how many seats without a GPU may be at work.
    """
    free = [seat for seat in seats if seat.free]
    used = [seat for seat in seats if seat.bad is None and not seat.free]  # an idle seat that nobody can use fills no place
    new: list[Seat] = []
    for one in waiting:
        fitting = next((s for s in free if _may(one, s, nodes)), None)
        if fitting is not None:
            free.remove(fitting)
            used.append(fitting)
        elif seat := _open(one, used, [*seats, *new], nodes, limit):
            new.append(seat)
            used.append(seat)
    return new


def hopeless(one: Assignment, seats: Sequence[Seat], nodes: Sequence[FleetNode]) -> tuple[Status, str] | None:
    """Why no seat will ever take a job: nothing of its kind is alive, or every seat of it is bad; None where one may."""
    what = one.job.device
    if without_gpu(one.job):
        places, own = hosts_for(what, nodes, one.not_on), [s for s in seats if s.device is None]
        room, absent = sum(min(n.cpus, CORES) for n in places), "no node has a core"
    else:
        places, own = units_of(what, nodes, one.not_on), [s for s in seats if s.device == what]
        room, absent = sum(n.units for n in places), f"no unit of {what} is reachable"
    names = {n.name for n in places}
    bad = [s.bad for s in _spent(own) if s.bad is not None and s.node is not None and s.node.name in names]
    if not places:
        return Status.NO_CAPACITY, absent if not one.not_on else "no other host has one"
    return (Status.INFRA, bad[-1]) if len(bad) >= room else None


def _open(one: Assignment, used: Sequence[Seat], ever: Sequence[Seat], nodes: Sequence[FleetNode], limit: int) -> Seat | None:
    job = one.job
    if not without_gpu(job):
        places = units_of(job.device, nodes)
        ids = {n.node_id for n in places}
        mine = [s for s in ever if s.device == job.device]
        standing = [s for s in _spent(mine) if s.node is None or s.node.node_id in ids]
        return Seat(job.device, None, len(mine)) if len(standing) < sum(n.units for n in places) else None
    if sum(s.device is None for s in used) >= limit:
        return None
    room = [n for n in hosts_for(job.device, nodes, one.not_on) if _on(_spent(ever), n) < min(n.cpus, CORES)]
    best = min(room, key=lambda n: (_on(used, n), n.name), default=None)
    return Seat(None, best, len([s for s in ever if s.device is None])) if best else None


def _spent(seats: Iterable[Seat]) -> list[Seat]:
    """The seats whose place is taken: all but lost ones, until a node has lost so many that it is trusted no more."""
    every = list(seats)
    losses = Counter(s.node.node_id for s in every if s.lost and s.node is not None)
    return [s for s in every if not s.lost or (s.node is not None and losses[s.node.node_id] >= LOSSES)]


def _on(seats: Iterable[Seat], node: FleetNode) -> int:
    return sum(s.device is None and s.node is not None and s.node.node_id == node.node_id for s in seats)


def _may(one: Assignment, seat: Seat, nodes: Sequence[FleetNode]) -> bool:
    if without_gpu(one.job):
        places = hosts_for(one.job.device, nodes, one.not_on)
        return seat.device is None and seat.node is not None and seat.node.node_id in {n.node_id for n in places}
    if seat.device != one.job.device:
        return False
    return seat.node is None or seat.node.name not in one.not_on


def _disturbs(
    one: Assignment, seat: Seat, taken: dict[Seat, Assignment], waiting: Sequence[Assignment], nodes: Sequence[FleetNode]
) -> bool:
    """Whether a job would disturb a measurement on the seat's host, or be disturbed there, or take it from one of a lower tier."""
    node = seat.node
    if node is None or not node.measures:
        return False
    beside = [job for other, job in taken.items() if other.node is not None and other.node.name == node.name]
    if without_gpu(one.job):
        before = [w for w in waiting if w.job.tier < one.job.tier and not without_gpu(w.job)]
        due = any(node.node_id in {n.node_id for n in units_of(w.job.device, nodes, w.not_on)} for w in before)
        return due or any(not without_gpu(b.job) for b in beside)
    hosted = [w for w in waiting if w.job.tier <= one.job.tier and without_gpu(w.job)]
    coming = any(node.node_id in {n.node_id for n in hosts_for(w.job.device, nodes, w.not_on)} for w in hosted)
    return coming or any(without_gpu(b.job) for b in beside)
