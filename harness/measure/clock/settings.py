"""The constants of the timing protocol; their defaults are the protocol, and tests alone change them."""

from __future__ import annotations

from dataclasses import dataclass

HALF_WIDTHS = ((20.0, 0.005), (5.0, 0.01), (0.0, 0.02))
"""(us a call from which it holds, half width of the median's interval relative to it that is accurate enough)."""


@dataclass(frozen=True)
class ClockSettings:
    """How long, how often and how accurately the engine measures.

    Args:
        ticks_per_sample: least ticks of the device's clock in a sample.
        pairs_per_sample: least length of a sample, in empty pairs of marks.
        sample_us: least length of a sample. Between two graphs the device idles for about 1 us, which a sample this long
            hides (0.05 %).
        side_sample_us: the same of a figure beside the main one, or of the proof that a ring is cold. Shorter, since the host takes
            tens of us to capture each of its calls.
        idle_ns: idle time after which the device is warmed up again.
        gap_ns: idle time after which a device is given work while calls are captured.
        cover_ns: how much work it is given then.
        settle_calls: least calls of a cell before its first sample.
        settle_window: samples in each of the windows whose medians must agree before sampling begins.
        side_window: samples in each of those windows for a figure beside the main one, which has settled then.
        settle_s: most seconds spent waiting for that, or a figure's budget where that is less.
        looks: numbers of samples after which the interval is looked at.
        budget_s: most seconds of sampling for the main figure of a cell.
        side_budget_s: most seconds of sampling for each figure beside it.
        chunk: samples enqueued at a time.
        eager_calls: most calls of an eager sample: fewer than a device queues, so that enqueueing never waits for it.
        eager_budget_s: most seconds of sampling eager calls, whose scatter is the host's and does not end by sampling longer.
        eager_least_calls: least calls of an eager sample.
        eager_sample_us: most device time of an eager sample that has more.
        contents: most distinct contents among the slots of a ring.
        warm_fraction: part of the cache that a warm call may occupy.
        serving_fraction: least part of what a call touches that must come from memory, for its activations to be kept warm beside it.
        cache_multiples: caches of other data between two uses of a buffer, for it to be cold.
        most_nodes: most nodes in one pass over a ring that is cold by itself; where it had more, the cache is filled between samples.
        longest_ring: most buffers of a ring whose code asks the cache to keep what it loads, so that filling it does not empty it.
        most_growth: most times that a ring which is not cold is enlarged to, in rings that the cache asks for: a power of two.
        doubling_limit: largest change of a cold time when the ring is doubled.
        ceiling_margin: how far above the unit's own bandwidth a time may lie.
        host_tolerance: largest disagreement of host and device clock, relative.
        phase_tolerance: largest disagreement of a cycle and its phases, relative.
    """

    ticks_per_sample: int = 400
    pairs_per_sample: int = 20
    sample_us: float = 2000.0
    side_sample_us: float = 1000.0
    idle_ns: int = 20_000_000
    gap_ns: int = 2_000_000
    cover_ns: int = 10_000_000
    settle_calls: int = 50
    settle_window: int = 10
    side_window: int = 5
    settle_s: float = 1.0
    looks: tuple[int, ...] = (30, 60, 120, 240, 480)
    budget_s: float = 3.0
    side_budget_s: float = 0.3
    chunk: int = 30
    eager_calls: int = 50
    eager_budget_s: float = 0.15
    eager_least_calls: int = 20
    eager_sample_us: float = 50_000.0
    contents: int = 8
    warm_fraction: float = 0.6
    serving_fraction: float = 0.5
    cache_multiples: int = 3
    most_nodes: int = 2048
    longest_ring: int = 16384
    most_growth: int = 64
    doubling_limit: float = 0.02
    ceiling_margin: float = 1.05
    host_tolerance: float = 0.15
    phase_tolerance: float = 0.03
