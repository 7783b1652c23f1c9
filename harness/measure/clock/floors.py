"""What a launch costs when it does nothing, on the unit in hand: the floors that every time is read beside."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from harness.measure.clock.device import TOUCH_STRIDE, Call, Graph, Grid
from harness.measure.clock.estimate import tick_of
from harness.measure.clock.validity import check_elapsed

if TYPE_CHECKING:
    from harness.measure.clock.session import ClockSession

ONE_PROGRAM: Grid = (1, 1, 1)
PAIRS = 128
VARIED_NODES = (2, 3, 5, 8)
SAMPLES = 15
LEAST_SAMPLE_NODES = 500
"""Nodes in a floor's sample: what lies between two graphs is then spread over many."""
MOST_LINES = 1 << 20
"""Most lines (of 4 * TOUCH_STRIDE bytes) that the touch kernels load or store; the programs of a larger grid share them."""


@dataclass(frozen=True)
class ClockFloors:
    """Floors of the clock and of launching, which no grid changes (us).

    Args:
        tick_us: the device clock's resolution.
        pair_us: an empty pair of marks.
        empty_us: one empty kernel of one program, as a node among many.
        replay_us: one replay of a graph of one such node, between two marks, on an idle device.
        host_us: host time of enqueueing that and waiting for it.
    """

    tick_us: float
    pair_us: float
    empty_us: float
    replay_us: float
    host_us: float


@dataclass(frozen=True)
class CellFloors:
    """Floors of the launches of one call, with its grids (us a call).

    Args:
        grids: the grid of each kernel that a call launches, as `x,y,z`.
        empty_grid_us: as many empty kernels of the same grids.
        touch_us: the same grids with one cold load and one store a program.
    """

    grids: tuple[str, ...]
    empty_grid_us: float
    touch_us: float

    def to_json(self) -> dict[str, Any]:
        """The floors as plain data."""
        return {**asdict(self), "grids": list(self.grids)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CellFloors:
        """Read floors back."""
        return cls(**{**data, "grids": tuple(data["grids"])})


def grid_text(grid: Grid) -> str:
    """A grid as records write it: `x,y,z`."""
    return ",".join(map(str, grid))


def measure_clock(session: ClockSession) -> ClockFloors:
    """Calibrate the device's clock and take the floors that no grid changes."""
    device = session.device
    empty = device.kernels.empty(ONE_PROGRAM)
    device.run(empty)
    single = session.capture([empty], device.new_pool())
    session.keep_warm()
    pairs = [_between(session) for _ in range(PAIRS)]
    singles, host = [], []
    for _ in range(PAIRS):
        begin = device.now_ns()
        singles.append(_between(session, single))
        host.append((device.now_ns() - begin) / 1000)
    single.release()
    readings = [*pairs, *singles, *_varied(session, empty)]
    check_elapsed(readings)
    return ClockFloors(
        tick_us=tick_of(readings),
        pair_us=statistics.median(pairs),
        empty_us=_node_us(session, [empty]),
        replay_us=statistics.median(singles),
        host_us=statistics.median(host),
    )


def measure_cell(session: ClockSession, grids: Sequence[Grid]) -> CellFloors:
    """Take the floors of a call that launches kernels of these grids."""
    device = session.device
    empties = [device.kernels.empty(grid) for grid in grids]
    for call in empties:
        device.run(call)
    return CellFloors(tuple(map(grid_text, grids)), _node_us(session, empties), _touch_us(session, grids))


def _varied(session: ClockSession, call: Call) -> list[float]:
    """Readings of many lengths, some of which will lie one tick apart."""
    found: list[float] = []
    for nodes in VARIED_NODES:
        graph = session.capture([call] * nodes, session.device.new_pool())
        found += [_between(session, graph) for _ in range(PAIRS // len(VARIED_NODES))]
        graph.release()
    return found


def _between(session: ClockSession, graph: Graph | None = None) -> float:
    device = session.device
    begin = device.mark()
    if graph is not None:
        graph.replay()
    end = device.mark()
    device.synchronize()
    return device.elapsed_us(begin, end)


def _node_us(session: ClockSession, calls: Sequence[Call]) -> float:
    """Time of one pass over `calls` among many passes."""
    device = session.device
    cap = device.limits.max_graph_nodes
    passes = max(1, min(LEAST_SAMPLE_NODES, cap) // len(calls))
    replays = max(1, LEAST_SAMPLE_NODES // (passes * len(calls)))
    graph = session.capture(list(calls) * passes, device.new_pool())
    batch = session.take([graph] * replays, passes * replays, SAMPLES)
    graph.release()
    return statistics.median(batch.samples)


def _touch_us(session: ClockSession, grids: Sequence[Grid]) -> float:
    """Time of one pass of touch kernels. Every node has lines of its own, and all of them are evicted before each sample."""
    device = session.device
    lines = [min(x * y * z, MOST_LINES) for x, y, z in grids]
    passes = min(LEAST_SAMPLE_NODES, device.limits.max_graph_nodes) // len(grids)
    passes = max(1, min(passes, MOST_LINES // sum(lines)))
    source = torch.ones((passes * sum(lines), TOUCH_STRIDE), dtype=torch.float32, device=device.torch_device)
    target = torch.zeros_like(source)
    calls: list[Call] = []
    begin = 0
    for grid, count in zip(list(grids) * passes, lines * passes, strict=True):
        end = begin + count
        calls.append(device.kernels.touch(grid, source[begin:end], target[begin:end]))
        begin = end
    for call in calls[: len(grids)]:
        device.run(call)
    graph = session.capture(calls, device.new_pool())
    samples = session.take_cold(graph, passes, SAMPLES)
    graph.release()
    return statistics.median(samples)
