"""Canaries: a fixed piece of arithmetic and a fixed copy, timed before, between and after arms. If they move, the unit did.

A lease's first is held against earlier runs on the unit too (`harness.devices.history`), within one version of their method: where a
change here makes them take another time, CANARY_METHOD gets another version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from harness.measure.clock.device import BLOCK_MULTIPLE, Graph
from harness.measure.clock.validity import InvalidTiming, Reason

if TYPE_CHECKING:
    from harness.measure.clock.session import ClockSession

COPY_CACHES = 16
"""Size of the copy, in last-level caches: fixed for a device, and out of any cache's reach."""
ARITHMETIC_CALLS, COPY_CALLS = 5, 2
"""Calls in a sample, which then lasts for about a millisecond."""
BUDGET_S = 0.3
"""Most seconds of sampling, and of waiting until windows of samples agree, for each."""
LOOKS = 3
"""How often a canary is taken that has moved. A unit comes back from its power cap within such a time; one that is shared, throttled or
clocked otherwise stays where it is."""
ARITHMETIC_LIMIT, COPY_LIMIT = 0.01, 0.02
"""Largest change of a canary within a lease, relative: beyond it the unit is not the one that the lease began with."""


@dataclass(frozen=True)
class Canary:
    """One reading of both canaries (us)."""

    arithmetic_us: float
    copy_us: float


def take_canary(session: ClockSession) -> Canary:
    """Time both canaries, on a warm device whose times have settled.

    Raises:
        InvalidTiming: negative_time or no_valid_samples.
    """
    device = session.device
    elements = -(-COPY_CACHES * device.limits.last_level_cache_bytes // (4 * BLOCK_MULTIPLE)) * BLOCK_MULTIPLE
    source = torch.arange(elements, dtype=torch.int32, device=device.torch_device)
    target = torch.zeros_like(source)
    times: list[float] = []
    for call, calls in ((device.kernels.arithmetic(), ARITHMETIC_CALLS), (device.kernels.copies(source, target)[0], COPY_CALLS)):
        device.run(call)
        graph = session.capture([call] * calls, device.new_pool())
        times.append(session.sample(partial(_samples, session, graph, calls), calls, BUDGET_S, window=session.settings.side_window).us)
        graph.release()
    del source, target
    device.release_memory()
    return Canary(*times)


def _samples(session: ClockSession, graph: Graph, calls: int, count: int) -> Sequence[float]:
    return session.take([graph], calls, count).samples


def check_canaries(first: Canary, now: Canary) -> None:
    """Hold a canary against the first of its lease.

    Raises:
        InvalidTiming: contended.
    """
    for name, before, after, limit in (
        ("arithmetic", first.arithmetic_us, now.arithmetic_us, ARITHMETIC_LIMIT),
        ("copy", first.copy_us, now.copy_us, COPY_LIMIT),
    ):
        if not abs(after / before - 1) <= limit:
            found = f"the {name} canary moved from {before:.4g} to {after:.4g} us ({after / before - 1:+.1%}) within the lease"
            raise InvalidTiming(Reason.CONTENDED, f"{found}: the unit is shared, throttled or clocked otherwise")
