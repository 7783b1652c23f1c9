"""Whether equal graphs take equal time: the same calls timed again, instantiated again and captured again, in one process.

    python benchmarks/graph_modes.py [CELL...] [--device NAME] [--times 24]

CELL is KERNEL/VARIANT/CASE; by default calls of about 2, 3 and 20 us. On some hosts one graph in ten has been seen to take
0.35 us a node less than the others, all its life. Printed are the medians (us a call) in the order in which they were taken, of
one instance timed again and again, of instances of one captured graph, of captures, of rings allocated anew, and of instances of a
graph of empty kernels.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from harness.authoring.catalogue import load_kernels
from harness.authoring.workspace import find_workspace
from harness.devices.table import load_devices
from harness.measure.clock import ClockSession, TorchDevice
from harness.measure.clock.estimate import calls_per_sample
from harness.measure.clock.floors import ONE_PROGRAM
from harness.measure.clock.program import Bench, Program, make_bench
from harness.measure.clock.ring import plan_ring
from harness.measure.clock.set_up import footprint_of
from harness.measure.subject import Subject

CELLS = (
    "causal_conv1d_update/fused/B=1,C=8192,W=4,dtype=bf16",
    "rmsnorm/fused/M=128,N=5120,dtype=bf16",
    "gdn_decode/fused/B=16,H=16,HV=32,K=128,V=128,dtype=bf16",
)
SAMPLES = 10
EMPTY_NODES = 1000


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="CELL")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--times", type=int, default=24)
    options = parser.parse_args()
    session = ClockSession(TorchDevice(load_devices()[options.device]), seed=11)
    empties(session, options.times)
    for cell in options.cells or CELLS:
        calls_of(session, cell, options.device, options.times)


def empties(session: ClockSession, times: int) -> None:
    """A graph of empty kernels, instantiated again."""
    device = session.device
    empty = device.kernels.empty(ONE_PROGRAM)
    device.run(empty)
    graph = device.capture([empty] * EMPTY_NODES, device.new_pool())
    tell("empty", "one instance", (median(session, (graph,), EMPTY_NODES) for _ in range(times)))
    tell("empty", "instances", again(times, lambda: median(session, (graph,), EMPTY_NODES), lambda: instantiate(graph)))
    graph.release()


def calls_of(session: ClockSession, cell: str, device_name: str, times: int) -> None:
    """Calls over a cold ring."""
    kernel, variant, case = cell.split("/", 2)
    declared = load_kernels(find_workspace(Path.cwd()))[kernel].kernel
    subject = Subject(declared, variant, declared.case(case), load_devices()[device_name], "cuda")
    plan = plan_ring(footprint_of(subject).touched, session.device.limits, session.settings.cache_multiples)

    def allocate() -> Bench:
        bench = make_bench(subject, session, plan.slots, session.seed, 8, allocated=plan.slots)
        bench.prepare()
        return bench

    bench = allocate()
    first = bench.capture(bench.one_pass)
    us = median(session, first.replays, first.calls)
    repetitions = calls_per_sample(us, plan.slots, session.least_sample_us)

    def capture(bench: Bench) -> Program:
        return bench.capture(bench.one_pass, repetitions)

    def timed(program: Program) -> float:
        return median(session, program.replays, program.calls)

    main = capture(bench)
    tell(cell, "one instance", (timed(main) for _ in range(times)))
    tell(cell, "instances", again(times, lambda: timed(main), lambda: instantiate(*main.graphs)))
    tell(cell, "captures", (timed(capture(bench)) for _ in range(times // 3)))
    held: list[torch.Tensor] = []

    def elsewhere() -> None:
        held.append(torch.empty(3 << 20, dtype=torch.uint8, device="cuda"))
        instantiate(*main.graphs)

    tell(cell, "instances, with memory taken between", again(times, lambda: timed(main), elsewhere))
    tell(cell, "the first capture again", (timed(main) for _ in range(3)))
    bench.release()
    for how, keeps in (("rings allocated anew", False), ("rings allocated beside the others", True)):
        kept: list[Bench] = []

        def anew(keeps: bool = keeps, kept: list[Bench] = kept) -> float:
            fresh = allocate()
            found = timed(capture(fresh))
            if keeps:
                kept.append(fresh)
            else:
                fresh.release()
                session.device.release_memory()
            return found

        tell(cell, how, (anew() for _ in range(times // 3)))
        for one in kept:
            one.release()
        kept.clear()
        session.device.release_memory()


def again(times: int, take: Callable[[], float], renew: Callable[[], Any]) -> Iterator[float]:
    """Take, renewing before each."""
    for _ in range(times):
        renew()
        yield take()


def instantiate(*graphs: Any) -> None:
    """Make the executable graphs anew from what was captured."""
    for graph in graphs:
        graph._graph.instantiate()


def median(session: ClockSession, replays: Any, calls: int) -> float:
    """Us a call."""
    return statistics.median(session.take(replays, calls, SAMPLES).samples)


def tell(what: str, how: str, found: Iterator[float]) -> None:
    """One line of medians."""
    values = list(found)
    print(f"{what} | {how} | {min(values):.3f} to {max(values):.3f} us |", " ".join(f"{us:.3f}" for us in values), flush=True)


if __name__ == "__main__":
    main()
