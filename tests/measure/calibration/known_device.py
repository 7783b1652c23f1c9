"""A scripted device with a cache of whole blocks, and kernels on it that spin by its own timer."""

from __future__ import annotations

from typing import Any

import torch
from fake_device import FakeDevice, Operation, Script
from toys import session_on

from harness.measure.clock import ClockSession
from harness.measure.clock.device import Call

CACHE = 4 << 20


class FakeKnown:
    """Spins that last what they are asked for, or `factor` times that, by a timer that steps by `step` counts."""

    def __init__(self, device: FakeDevice, *, ns_per_count: float = 1.0, step: int = 32, factor: float = 1.0) -> None:
        self.device, self.ns_per_count, self.step, self.factor = device, ns_per_count, step, factor

    def resolution(self, least: torch.Tensor) -> Call:
        return lambda: least.fill_(self.step)

    def spin(self, counts: int, passed: torch.Tensor) -> Call:
        us = self.device.script.launch_us + self.factor * counts * self.ns_per_count / 1000
        return lambda: self.device._emit(Operation(lambda: passed.fill_(counts), fixed_us=us))


def known_session(**script: Any) -> ClockSession:
    """A session on a device that copies 100 GB/s from memory and four times that from its cache of CACHE bytes."""
    settings = {"cache_bytes": CACHE, "memory_bytes": 1 << 30, "bandwidth_gbps": 100.0, "cache_gbps": 400.0} | script
    return session_on(FakeDevice(Script(**{"replay_computes": lambda replays: False, **settings})))
