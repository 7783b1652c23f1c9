"""Times copies and reads over rings of buffers: the building block of every bandwidth that a calibration takes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.measure.clock.device import BLOCK_MULTIPLE, Call, Graph, TimedDevice
from harness.measure.clock.estimate import calls_per_sample
from harness.measure.clock.ring import fit_repetitions, plan_ring, split
from harness.measure.clock.session import ClockSession

SAMPLES = 15
BLOCK_BYTES = 4 * BLOCK_MULTIPLE
"""Every buffer is a multiple of this, as copy and read kernels ask."""


@dataclass(frozen=True)
class Timed:
    """The fastest of several ways to touch the same bytes.

    Args:
        samples: us a call.
        touched: bytes of a call.
    """

    samples: tuple[float, ...]
    touched: int

    @property
    def us(self) -> float:
        """The median."""
        return statistics.median(self.samples)

    @property
    def gbps(self) -> float:
        """10**9 bytes per second."""
        return self.touched / self.us / 1e3


class Buffers:
    """Buffers of equal size to copy from and to; no two hold the same, and none is zero throughout.

    Args:
        size: bytes of a buffer, a multiple of BLOCK_BYTES.
        sources: buffers to read.
        targets: buffers to write.
    """

    def __init__(self, device: TimedDevice, size: int, sources: int, targets: int) -> None:
        self._device, self.size = device, size
        n = size // 4
        first = torch.arange(sources, dtype=torch.int32, device=device.torch_device).view(sources, 1)
        self.sources = torch.arange(1, n + 1, dtype=torch.int32, device=device.torch_device) + first
        self.targets = torch.zeros((targets, n), dtype=torch.int32, device=device.torch_device)

    def copies(self, slots: int) -> list[list[Call]]:
        """Ways to copy the first `slots` buffers in turn: each a call a slot."""
        kernels = self._device.kernels
        return _by_way([kernels.copies(self.sources[i], self.targets[i]) for i in range(slots)])

    def reads(self, slots: int) -> list[list[Call]]:
        """Ways to read the first `slots` buffers in turn: each a call a slot."""
        return _by_way([self._device.kernels.reads(self.sources[i]) for i in range(slots)])


def _by_way(by_slot: Sequence[Sequence[Call]]) -> list[list[Call]]:
    return [list(calls) for calls in zip(*by_slot, strict=True)]


def whole_blocks(size: float) -> int:
    """The multiple of BLOCK_BYTES nearest to `size` bytes, at least one."""
    return max(1, round(size / BLOCK_BYTES)) * BLOCK_BYTES


def cold_slots(session: ClockSession, touched: int) -> int:
    """Slots of the ring that the protocol calls cold, for calls that touch so many bytes."""
    return plan_ring(touched, session.device.limits, session.settings.cache_multiples).slots


def fastest(session: ClockSession, ways: Sequence[Sequence[Call]], touched: int) -> Timed:
    """Time each way over its slots in turn, and keep the fastest.

    Args:
        ways: each a call a slot; a call is one node of a graph.
        touched: bytes of a call.

    Raises:
        InvalidTiming: negative_time, no_valid_samples or host_clock.
    """
    found = [Timed(_samples(session, way, touched), touched) for way in ways]
    return min(found, key=lambda timed: timed.us)


def _samples(session: ClockSession, way: Sequence[Call], touched: int) -> tuple[float, ...]:
    device = session.device
    cap = device.limits.max_graph_nodes
    about_us = touched / (session.ceilings.best_gbps * 1e3) + session.clock.empty_us
    passes = calls_per_sample(about_us, len(way), session.least_sample_us)
    captured, repeats = fit_repetitions(passes, len(way), cap)
    calls = list(way) * captured
    device.run(way[0])  # compiles it outside the capture
    graphs: list[Graph] = []
    try:
        pool = device.new_pool()
        for part in split([1] * len(calls), cap):
            graphs.append(session.capture(calls[part], pool))
        batch = session.take(graphs * repeats, len(calls) * repeats, SAMPLES)
        session.check_host([batch])
        return batch.samples
    finally:
        for graph in graphs:
            graph.release()
