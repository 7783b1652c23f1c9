"""Calibrates the unit in hand: its clock, what launching costs, and what its memory and its cache deliver."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.measure.calibration.bandwidth import BLOCK_BYTES, Buffers, Timed, cold_slots, fastest, whole_blocks
from harness.measure.calibration.figures import figure
from harness.measure.clock.estimate import calls_per_sample
from harness.measure.clock.floors import ONE_PROGRAM
from harness.measure.clock.readings import Cache, Clock, LaunchMode
from harness.measure.clock.ring import is_warm
from harness.measure.clock.session import ClockSession
from harness.measure.clock.validity import check_elapsed
from harness.measure.subject import Reading

GRIDS = (1, 16, 128, 512, 4096)
"""Programs of the empty and the touch kernels."""
NODES = (1, 16, 256, 2000)
"""Sizes of graphs; what is over the device's cap becomes the cap."""
SINGLES = 64
SAMPLES = 15
SIZES = tuple(BLOCK_BYTES << shift for shift in range(0, 14, 2))
"""Bytes of a buffer: 256 KiB to 1 GiB."""
MULTIPLES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0)
"""Sizes of a ring, in last-level caches."""
SLOTS_A_CACHE = 32
"""Calls over a ring of one cache."""
MEMORY_SHARE = 0.5
"""Part of the free memory that buffers may take."""


def calibrate_clock(session: ClockSession) -> list[Reading]:
    """The tick of the event clock, and the floors of every launch mode and of a few grids.

    Raises:
        InvalidTiming: what taking samples raises.
    """
    clock = session.clock
    eager, enqueue = _eager_floor(session)
    found = [
        figure("tick_ns", clock.tick_us * 1000),
        figure("floor_us@pair", clock.pair_us),
        figure("floor_us@device", clock.empty_us),
        figure("floor_us@graph1", clock.replay_us, mode=LaunchMode.GRAPH1),
        figure("floor_us@wait", clock.host_us, mode=LaunchMode.GRAPH1, clock=Clock.HOST),
        figure("floor_us@eager", statistics.median(eager), eager, mode=LaunchMode.EAGER, clock=Clock.HOST),
        figure("floor_us@enqueue", statistics.median(enqueue), enqueue, mode=LaunchMode.EAGER, clock=Clock.HOST),
    ]
    for programs in GRIDS:
        floors = session.floors([(programs, 1, 1)])
        found += [figure(f"empty_us@{programs}", floors.empty_grid_us), figure(f"touch_us@{programs}", floors.touch_us, cache=Cache.COLD)]
    return found


def _eager_floor(session: ClockSession) -> tuple[list[float], list[float]]:
    """Host time of an eager empty kernel, back to back (us a call): with a final wait for the device, and until it returns."""
    device, calls = session.device, session.settings.eager_calls
    empty = device.kernels.empty(ONE_PROGRAM)
    device.run(empty)
    eager: list[float] = []
    enqueue: list[float] = []
    for _ in range(SAMPLES):
        session.keep_warm()
        begin = device.now_ns()
        for _ in range(calls):
            device.run(empty)
        returned = device.now_ns()
        device.synchronize()
        eager.append((device.now_ns() - begin) / 1000 / calls)
        enqueue.append((returned - begin) / 1000 / calls)
        session.note_busy()
    return eager, enqueue


def calibrate_graphs(session: ClockSession) -> list[Reading]:
    """What graphs of empty kernels cost, by their number of nodes.

    Raises:
        InvalidTiming: what taking samples raises.
    """
    found: list[Reading] = []
    for nodes in sorted({min(n, session.device.limits.max_graph_nodes) for n in NODES}):
        cost = _graph_cost(session, nodes)
        single, host, train = (statistics.median(samples) for samples in (cost.single, cost.host, cost.train))
        found += [
            figure(f"graph_replay_us@{nodes}", single, cost.single, mode=LaunchMode.GRAPH1),
            figure(f"graph_host_us@{nodes}", host, cost.host, mode=LaunchMode.GRAPH1, clock=Clock.HOST),
            figure(f"graph_node_us@{nodes}", train, cost.train),
        ]
    return found


@dataclass(frozen=True)
class _GraphCost:
    """Samples (us): a replay on an idle device, its host time, a node where replays follow each other."""

    single: Sequence[float]
    host: Sequence[float]
    train: Sequence[float]


def _graph_cost(session: ClockSession, nodes: int) -> _GraphCost:
    device = session.device
    empty = device.kernels.empty(ONE_PROGRAM)
    device.run(empty)
    graph = session.capture([empty] * nodes, device.new_pool())
    session.keep_warm()
    single: list[float] = []
    host: list[float] = []
    for _ in range(SINGLES):
        begin_ns = device.now_ns()
        begin = device.mark()
        graph.replay()
        end = device.mark()
        device.synchronize()
        host.append((device.now_ns() - begin_ns) / 1000)
        single.append(device.elapsed_us(begin, end))
    session.note_busy()
    check_elapsed(single)
    repeats = calls_per_sample(statistics.median(single), 1, session.least_sample_us)
    batch = session.take([graph] * repeats, repeats * nodes, SAMPLES)
    graph.release()
    return _GraphCost(single, host, batch.samples)


def calibrate_memory(session: ClockSession) -> list[Reading]:
    """Bandwidth of copying and reading by size: cold, over a ring as the protocol asks, and warm where the cache holds the buffers.

    Raises:
        InvalidTiming: what taking samples raises.
    """
    device = session.device
    session.ceilings  # noqa: B018 -- taken first, while the memory is free
    found: list[Reading] = []
    for size in SIZES:
        copied, read = cold_slots(session, 2 * size), cold_slots(session, size)
        if (copied + read) * size > MEMORY_SHARE * device.free_bytes():
            continue
        buffers = Buffers(device, size, read, copied)
        copy = fastest(session, buffers.copies(copied), 2 * size)
        found.append(_bandwidth(f"copy_gbps@{size}", copy, Cache.COLD))
        found.append(_bandwidth(f"read_gbps@{size}", fastest(session, buffers.reads(read), size), Cache.COLD))
        if is_warm(2 * size, device.limits, session.settings.warm_fraction):
            warm = fastest(session, buffers.copies(1), 2 * size)
            found.append(_bandwidth(f"warm_copy_gbps@{size}", warm, Cache.WARM))
            found.append(_bandwidth(f"warm_read_gbps@{size}", fastest(session, buffers.reads(1), size), Cache.WARM))
            found.append(figure(f"warm_cold_ratio@{size}", warm.gbps / copy.gbps))
        del buffers
        device.release_memory()
    return found


def calibrate_ring(session: ClockSession) -> list[Reading]:
    """Bandwidth by the size of the ring: the protocol's ring is cold where the curve is flat before it.

    Raises:
        InvalidTiming: what taking samples raises.
    """
    device = session.device
    cache = device.limits.last_level_cache_bytes
    half, whole = whole_blocks(cache / SLOTS_A_CACHE / 2), whole_blocks(cache / SLOTS_A_CACHE)
    found: list[Reading] = []
    for name, size, touched in (("copy", half, 2 * half), ("read", whole, whole)):
        slots = {multiple: max(1, round(multiple * cache / touched)) for multiple in MULTIPLES}
        most = max(slots.values())
        buffers = Buffers(device, size, most, most if name == "copy" else 1)
        ways = buffers.copies if name == "copy" else buffers.reads
        for multiple, count in slots.items():
            found.append(_bandwidth(f"ring_{name}_gbps@{multiple:g}", fastest(session, ways(count), touched), None))
        del buffers, ways
        device.release_memory()
    return found


def _bandwidth(metric: str, timed: Timed, cache: Cache | None) -> Reading:
    return figure(metric, timed.gbps, [timed.touched / us / 1e3 for us in timed.samples], cache=cache)
