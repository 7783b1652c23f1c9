"""Turns measured figures into readings, each with how it was taken and what it was held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.measure.clock.floors import CellFloors
from harness.measure.clock.program import Bench, Shape
from harness.measure.clock.sampling import Sampled
from harness.measure.clock.session import ClockSession
from harness.measure.clock.set_up import SetUp
from harness.measure.clock.validity import InvalidTiming, Reason
from harness.measure.subject import Reading, Subject
from harness.records import EVIDENCE, Status

LAUNCH_BOUND_FLOORS = 2
"""Below this many launch floors a time is judged as it is, and no bandwidth is drawn from it."""


class Cache(StrEnum):
    """What a call finds in the cache. `SERVING`: its activations, and neither state nor weights. `CARRIED`: the state that the
    call before handed over, and nothing else."""

    COLD = "cold"
    WARM = "warm"
    SERVING = "serving"
    CARRIED = "carried"


class LaunchMode(StrEnum):
    """How calls are launched."""

    DEVICE = "device"
    GRAPH1 = "graph1"
    EAGER = "eager"


class Clock(StrEnum):
    """Whose clock a figure comes from."""

    DEVICE_EVENT = "device_event"
    HOST = "host"


@dataclass(frozen=True)
class Taken:
    """How a figure is taken: what its record says beside the value, and by which it is compared."""

    method: str
    cache: Cache
    launch_mode: LaunchMode = LaunchMode.DEVICE
    clock: Clock = Clock.DEVICE_EVENT


RING = Taken("graph_ring/2", Cache.COLD)
CYCLE = Taken("graph_cycle/2", Cache.COLD)
PHASE = Taken("graph_phase/3", Cache.COLD)
WARM = Taken("graph_warm/2", Cache.WARM)
SERVING = Taken("graph_serving/2", Cache.SERVING)
CHAIN = Taken("graph_chain/2", Cache.CARRIED)
GRAPH1 = Taken("graph_single/1", Cache.COLD, LaunchMode.GRAPH1)
EAGER = Taken("eager/3", Cache.COLD, LaunchMode.EAGER, Clock.HOST)


_PROVED = {taken.method for taken in (RING, CYCLE, PHASE)}
_GROWN = _PROVED | {taken.method for taken in (EAGER, GRAPH1, SERVING)}
"""Those that are taken with a ring, or after fillings of the cache, so many times as large or as often as the cache asks for."""


@dataclass(frozen=True)
class Frame:
    """What all figures of a cell share: where they come from and what they are held against."""

    ready: SetUp
    floors: CellFloors

    @property
    def bench(self) -> Bench:
        """The cell, set up for timing."""
        return self.ready.bench

    @property
    def session(self) -> ClockSession:
        """What measures."""
        return self.ready.session

    def columns(self, taken: Taken, shape: Shape | None) -> dict[str, Any]:
        """The columns of a figure.

        Args:
            shape: of what was replayed; None for eager calls.
        """
        return {
            "method": self._method(taken, shape),
            "cache": str(taken.cache),
            "launch_mode": str(taken.launch_mode),
            "clock": str(taken.clock),
            "data": self.bench.subject.kernel.data,
            "data_hash": self.bench.data_hash,
            "evidence": self._evidence(taken, shape),
        }

    def _method(self, taken: Taken, shape: Shape | None) -> str:
        """The method; where the cache is filled between samples it is another one, and with a ring that had to be enlarged, since less
        of the ring outlives a pass."""
        growth = self.ready.plan.growth
        evicted = "-evicted" if shape is not None and shape.evictions else ""
        grown = f"x{growth}" if growth > 1 and (evicted or taken.method in _GROWN) else ""
        return f"{taken.method}{evicted}{grown}"

    def _evidence(self, taken: Taken, shape: Shape | None) -> dict[str, Any]:
        proof = self.session.facts.proof(str(self.bench.subject.cell), self.ready.code) if taken.method in _PROVED else None
        found = {
            "ring": shape.slots if shape else self.bench.slots,
            "nodes": shape.nodes if shape else None,
            "floors": {"empty_us": self.floors.empty_grid_us, "touch_us": self.floors.touch_us},
            "tick": self.session.clock.tick_us * 1000,
            "canaries": [us for canary in self.session.facts.canaries for us in (canary.arithmetic_us, canary.copy_us)],
            "doubled": proof.change if proof else None,
        }
        return {key: value for key, value in found.items() if key in EVIDENCE}

    def time(self, metric: str, sampled: Sampled, taken: Taken, shape: Shape | None = None) -> Reading:
        """The reading of one figure in us."""
        columns = self.columns(taken, shape) | {"samples": list(sampled.samples), "converged": sampled.converged}
        return Reading(metric, sampled.us, columns=columns)

    def bandwidth(self, us: float, taken: Taken, shape: Shape) -> list[Reading]:
        """GB/s and percentages of ceiling and peak, from compulsory bytes; and GB/s by each of the kernel's other models.

        Skipped for a time that is mostly launch.
        """
        subject, session = self.bench.subject, self.session
        traffic = subject.traffic
        columns = self.columns(taken, shape)
        gbps = traffic.total / us / 1e3
        figures: dict[str, float] = {
            "gbps": gbps,
            "percent_of_ceiling": 100 * gbps / session.ceilings.for_traffic(traffic),
            "percent_of_peak": 100 * gbps / session.device.limits.peak_gbps,
        }
        if us < LAUNCH_BOUND_FLOORS * self.floors.empty_grid_us:
            return [skipped(metric, Reason.LAUNCH_BOUND, columns) for metric in figures]
        figures |= {f"gbps@{name}": model(subject.case) / us / 1e3 for name, model in subject.kernel.other_traffic.items()}
        return [Reading(metric, value, columns=columns) for metric, value in figures.items()]


def invalid(metric: str, breach: InvalidTiming, subject: Subject) -> Reading:
    """The reading of a figure that must not leave the launch."""
    return Reading(metric, None, Status.INVALID, str(breach), {"data": subject.kernel.data})


def skipped(metric: str, reason: Reason, columns: Mapping[str, Any]) -> Reading:
    """The reading of a figure that was not taken, for a reason known beforehand."""
    return Reading(metric, None, Status.SKIPPED, str(reason), columns)
