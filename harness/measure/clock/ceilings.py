"""The bandwidth that a unit achieves itself: copying and reading more than any cache holds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from harness.authoring.model import Traffic
from harness.measure.clock.device import BLOCK_MULTIPLE, Call
from harness.measure.clock.validity import InvalidTiming, Reason

if TYPE_CHECKING:
    from harness.measure.clock.session import ClockSession

COPY_BYTES = 4 << 30
"""Size of each of the two buffers, where memory allows."""
SAMPLES = 15
REPLAYS_A_SAMPLE = 3
READ_DOMINATED = 0.9


@dataclass(frozen=True)
class Ceilings:
    """What a unit achieves, in 10**9 bytes per second: the best of several kernels.

    Args:
        copy_gbps: bytes read plus bytes written of a copy.
        read_gbps: bytes of a pure read.
    """

    copy_gbps: float
    read_gbps: float

    @property
    def best_gbps(self) -> float:
        """The highest bandwidth seen: what no cold call can exceed."""
        return max(self.copy_gbps, self.read_gbps)

    def for_traffic(self, traffic: Traffic) -> float:
        """The ceiling to compare with: copying, or reading where more than 90 % of the bytes are read."""
        return self.read_gbps if traffic.read_bytes > READ_DOMINATED * traffic.total else self.copy_gbps


def measure_ceilings(session: ClockSession) -> Ceilings:
    """Measure the unit's ceilings with buffers of 4 GiB, or of what fits.

    Raises:
        InvalidTiming: negative_time, no_valid_samples or host_clock; memory, where there is none for buffers that no cache holds.
    """
    device = session.device
    size = min(COPY_BYTES, device.free_bytes() // 4)
    elements = size // 4 // BLOCK_MULTIPLE * BLOCK_MULTIPLE
    if elements * 4 < 4 * device.limits.last_level_cache_bytes:
        room = f"{device.free_bytes()} bytes are free, and a quarter of them is not four times the cache: free the unit's memory"
        raise InvalidTiming(Reason.MEMORY, f"the unit's own bandwidth cannot be measured: {room}")
    source = torch.arange(elements, dtype=torch.int32, device=device.torch_device)
    target = torch.zeros_like(source)
    copies, reads = device.kernels.copies(source, target), device.kernels.reads(source)
    found = Ceilings(_best(session, copies, 8 * elements), _best(session, reads, 4 * elements))
    del source, target, copies, reads
    device.release_memory()
    return found


def _best(session: ClockSession, calls: Sequence[Call], touched: int) -> float:
    """10**9 bytes per second of the fastest of several calls that touch `touched` bytes each."""
    device, best_us = session.device, float("inf")
    for call in calls:
        device.run(call)
        graph = session.capture([call] * REPLAYS_A_SAMPLE, device.new_pool())
        batch = session.take([graph], REPLAYS_A_SAMPLE, SAMPLES)
        session.check_host([batch])
        best_us = min(best_us, statistics.median(batch.samples))
        graph.release()
    return touched / (best_us * 1e3)
