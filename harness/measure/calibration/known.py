"""Times kernels of known cost by the harness's clock: spins of known length, injected slow-downs, copies of known size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from harness.measure.calibration.bandwidth import Buffers, cold_slots, fastest, whole_blocks
from harness.measure.calibration.figures import figure
from harness.measure.clock.device import Call, Graph
from harness.measure.clock.estimate import calls_per_sample
from harness.measure.clock.readings import Cache
from harness.measure.clock.session import ClockSession
from harness.measure.subject import Reading

SPINS_US = (2, 5, 10, 20, 50, 100, 200)
SAMPLES = 30
SLOWDOWNS_PERCENT = (0.5, 1.0, 2.0, 5.0)
SPIN_US = 50.0
"""Length of the spin that is slowed down, where the timer is fine enough."""
TICKS_OF_LEAST = 8
"""Ticks of the kernels' timer in the smallest slow-down, at least."""
BLOCKS = 12
"""ABBA blocks of a slow-down; each gives two pairs."""
BATCH = 5
"""Samples of a side of a pair."""
CLOCK_S = 1.0
"""Seconds of work over which the event clock is held against the host's."""
COPY_CACHES = (2, 4, 8, 16)
"""Sizes of a copied buffer, in last-level caches."""
MEMORY_SHARE = 0.5
"""Part of the free memory that buffers may take."""


class KnownKernels(Protocol):
    """Kernels that read a timer of the GPU's own."""

    ns_per_count: float

    def resolution(self, least: torch.Tensor) -> Call:
        """Find the timer's smallest step, in counts: `least` is int64 (1)."""

    def spin(self, counts: int, passed: torch.Tensor) -> Call:
        """Spin until `counts` have passed; how many did is written to `passed`, int64 (1), aligned to 16 bytes."""


class Spins:
    """A graph of equal spins, as many as a sample takes.

    Args:
        us: length of one, by the kernels' timer.
    """

    def __init__(self, session: ClockSession, kernels: KnownKernels, us: float) -> None:
        device = session.device
        self._ns_per_count = kernels.ns_per_count
        counts = max(1, round(us * 1000 / kernels.ns_per_count))
        wanted = calls_per_sample(us, 1, session.least_sample_us)
        cap = device.limits.max_graph_nodes
        self._nodes = min(wanted, 1 << (cap.bit_length() - 1))
        self._repeats = wanted // self._nodes
        self._passed = torch.zeros((self._nodes, 2), dtype=torch.int64, device=device.torch_device)
        calls = [kernels.spin(counts, row[:1]) for row in self._passed]
        device.run(calls[0])
        self._graph: Graph = session.capture(calls, device.new_pool())

    @property
    def replays(self) -> list[Graph]:
        """The graphs of one sample."""
        return [self._graph] * self._repeats

    @property
    def calls(self) -> int:
        """Spins in a sample."""
        return self._nodes * self._repeats

    def true_us(self) -> float:
        """What a spin took by the kernels' timer, the mean over the last replay."""
        return float(self._passed[:, 0].double().mean()) * self._ns_per_count / 1000

    def release(self) -> None:
        """Drop the graph."""
        self._graph.release()


@dataclass(frozen=True)
class Line:
    """y = offset + slope * x, by least squares on relative errors.

    Args:
        off: the farthest that a point lies off it, relative.
    """

    slope: float
    offset: float
    off: float


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line:
    """The line through points of which each is known to the same relative accuracy: weights 1 / y**2.

    Raises:
        ValueError: fewer than two different x.
    """
    weights = [1 / b**2 for b in y]
    total = sum(weights)
    mean_x, mean_y = (sum(w * v for w, v in zip(weights, values, strict=True)) / total for values in (x, y))
    spread = sum(w * (a - mean_x) ** 2 for w, a in zip(weights, x, strict=True))
    if spread <= 0:
        raise ValueError("fit_line: give points at two different x at least")
    slope = sum(w * (a - mean_x) * (b - mean_y) for w, a, b in zip(weights, x, y, strict=True)) / spread
    offset = mean_y - slope * mean_x
    return Line(slope, offset, max(abs((offset + slope * a) / b - 1) for a, b in zip(x, y, strict=True)))


def known_spins(session: ClockSession, kernels: KnownKernels) -> list[Reading]:
    """Spins of known length read back, the line through them, and the event clock against the host's.

    Raises:
        InvalidTiming: what taking samples raises.
    """
    resolution = find_resolution_ns(session, kernels)
    found = [figure("timer_tick_ns", resolution)]
    true: list[float] = []
    read: list[float] = []
    for us in SPINS_US:
        spins = Spins(session, kernels, us)
        batch = session.take(spins.replays, spins.calls, SAMPLES)
        session.check_host([batch])
        true.append(spins.true_us())
        read.append(statistics.median(batch.samples))
        if us == SPINS_US[-1]:
            found.append(_against_host(session, spins))
        spins.release()
        found += [figure(f"spin_us@{1000 * us}", read[-1], batch.samples), figure(f"spin_true_us@{1000 * us}", true[-1])]
    line = fit_line(true, read)
    return [*found, figure("spin_slope_percent", 100 * (line.slope - 1)), figure("spin_offset_us", line.offset)]


def find_resolution_ns(session: ClockSession, kernels: KnownKernels) -> float:
    """The smallest step of the timer that kernels read."""
    device = session.device
    least = torch.zeros(1, dtype=torch.int64, device=device.torch_device)
    device.run(kernels.resolution(least))
    device.synchronize()
    return int(least.item()) * kernels.ns_per_count


def _against_host(session: ClockSession, spins: Spins) -> Reading:
    """What the event clock says of a second of work, over what the host's says: its enqueueing and waiting, some 20 us, count too."""
    first = session.take(spins.replays, spins.calls, 1)
    count = max(1, math.ceil(CLOCK_S * 1e6 / (statistics.median(first.samples) * spins.calls)))
    batch = session.take(spins.replays, spins.calls, count)
    return figure("clock_ratio", batch.device_us / batch.wall_us)


def known_slowdowns(session: ClockSession, kernels: KnownKernels) -> list[Reading]:
    """Known slow-downs of a spin, read back from pairs in ABBA blocks. A slow-down is a part of the whole call's time, launch included.

    Raises:
        InvalidTiming: what taking samples raises.
    """
    tick_us = find_resolution_ns(session, kernels) / 1000
    spin_us = max(SPIN_US, TICKS_OF_LEAST * tick_us / (min(SLOWDOWNS_PERCENT) / 100))
    base = Spins(session, kernels, spin_us)
    call_us = statistics.median(session.take(base.replays, base.calls, SAMPLES).samples)
    found: list[Reading] = []
    for percent in SLOWDOWNS_PERCENT:
        slow = Spins(session, kernels, spin_us + percent / 100 * call_us)
        changes = _paired_changes(session, base, slow)
        mean, half = interval(changes)
        true = (slow.true_us() - base.true_us()) / call_us
        found += [
            figure(f"slowdown_percent@{percent:g}", 100 * mean, [100 * change for change in changes]),
            figure(f"slowdown_half_width_percent@{percent:g}", 100 * half),
            figure(f"slowdown_true_percent@{percent:g}", 100 * true),
        ]
        slow.release()
    base.release()
    return found


def _paired_changes(session: ClockSession, base: Spins, slow: Spins) -> list[float]:
    """The relative change in each pair of adjacent batches."""

    def take(spins: Spins) -> float:
        return statistics.median(session.take(spins.replays, spins.calls, BATCH).samples)

    changes: list[float] = []
    for _ in range(BLOCKS):
        first, second, third, fourth = take(base), take(slow), take(slow), take(base)
        changes += [second / first - 1, third / fourth - 1]
    return changes


def interval(changes: Sequence[float]) -> tuple[float, float]:
    """Mean, and half width of its 95 % interval by Student's t."""
    from scipy.stats import t

    error = statistics.stdev(changes) / math.sqrt(len(changes))
    return statistics.fmean(changes), float(t.ppf(0.975, len(changes) - 1)) * error


def known_copies(session: ClockSession) -> list[Reading]:
    """Copies of known size, cold, and the line through their times: its slope is what further bytes cost.

    Raises:
        InvalidTiming: what taking samples raises.
    """
    device = session.device
    session.ceilings  # noqa: B018 -- taken first, while the memory is free
    sizes: list[int] = []
    times: list[float] = []
    found: list[Reading] = []
    for caches in COPY_CACHES:
        size = whole_blocks(caches * device.limits.last_level_cache_bytes)
        slots = cold_slots(session, 2 * size)
        if 2 * slots * size > MEMORY_SHARE * device.free_bytes():
            break
        buffers = Buffers(device, size, slots, slots)
        timed = fastest(session, buffers.copies(slots)[:1], 2 * size)  # the one kernel that a profiler is shown too
        sizes.append(2 * size)
        times.append(timed.us)
        found.append(figure(f"copy_us@{size}", timed.us, timed.samples, cache=Cache.COLD))
        del buffers
        device.release_memory()
    if len(sizes) > 2:
        line = fit_line(sizes, times)
        found.append(figure("copy_marginal_gbps", 1 / (line.slope * 1e3), cache=Cache.COLD))
        found.append(figure("copy_off_percent", 100 * line.off, cache=Cache.COLD))
    return found
