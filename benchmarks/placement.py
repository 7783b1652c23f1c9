"""Whether what a process loaded before a kernel moves the kernel's time: fresh processes that differ in nothing else.

    python benchmarks/placement.py [CELL] [--device NAME] [--times 1]

CELL is KERNEL/VARIANT/CASE; by default a call of about 2 us, which on an H200 reads 2.07 us, and 2.41 us where the process has captured
a fourth graph. Every process is a fork of one that has imported everything, prints the median of the
call over a cold ring (us), and has run something else, before the call was made for the first time or after that: a kernel of the
engine, torch's own copy, a canary, the floors or the ceilings, captured one graph more, or taken as much memory as a canary takes.
Beside that, a process captures three graphs: the probe of a call, the calls over the ring, and the one that keeps the GPU warm.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from harness.authoring.catalogue import load_kernels
from harness.authoring.workspace import find_workspace
from harness.devices.table import load_devices
from harness.measure.clock import ClockSession, TorchDevice
from harness.measure.clock.program import make_bench
from harness.measure.clock.ring import plan_ring
from harness.measure.clock.set_up import footprint_of
from harness.measure.subject import Subject

CELL = "causal_conv1d_update/fused/B=1,C=8192,W=4,dtype=bf16"
SAMPLES, REPETITIONS = 15, 2
MEMORY = 1 << 30

Before = Callable[[ClockSession], None]


def run_copy(session: ClockSession) -> None:
    """Run the engine's first copy."""
    source = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
    session.device.run(session.device.kernels.copies(source, torch.zeros_like(source))[0])


def run_torch(session: ClockSession) -> None:
    """Run a kernel of torch."""
    source = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
    torch.zeros_like(source).copy_(source)


def take_memory(session: ClockSession) -> None:
    """Take memory and give it back."""
    torch.zeros(MEMORY, dtype=torch.uint8, device="cuda")
    session.device.release_memory()


def read_floors(session: ClockSession) -> None:
    """Measure the clock's floors."""
    assert session.clock


def read_ceilings(session: ClockSession) -> None:
    """Measure the ceilings."""
    assert session.ceilings


def capture_graph(session: ClockSession) -> None:
    """Capture one graph more, of one empty kernel, which is never replayed."""
    empty = session.device.kernels.empty((1, 1, 1))
    session.device.run(empty)
    session.device.capture([empty], session.device.new_pool())


OTHERS: dict[str, Before] = {
    "the arithmetic": lambda session: session.device.run(session.device.kernels.arithmetic()),
    "the copy": run_copy,
    "the empty kernel": lambda session: session.device.run(session.device.kernels.empty((1, 1, 1))),
    "a copy of torch's": run_torch,
    "memory taken": take_memory,
    "one graph more": capture_graph,
    "a canary": ClockSession.note_canary,
    "the clock's floors": read_floors,
    "the ceilings": read_ceilings,
}


def main() -> None:
    """Print a line a process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", nargs="?", default=CELL)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    kernel, variant, case = options.cell.split("/", 2)
    row = load_devices()[options.device]
    declared = load_kernels(find_workspace(Path.cwd()))[kernel].kernel
    subject = Subject(declared, variant, declared.case(case), row, "cuda")
    for _ in range(options.times):
        in_a_process("nothing", lambda: measure(subject))
        for name, other in OTHERS.items():
            in_a_process(f"{name}, before the first call", lambda other=other: measure(subject, before=other))
            in_a_process(f"{name}, after the first call", lambda other=other: measure(subject, after=other))
        in_a_process("nothing", lambda: measure(subject))


def in_a_process(name: str, what: Callable[[], float]) -> None:
    """Fork, measure, tell."""
    pid = os.fork()
    if pid == 0:
        print(f"{what():.3f} us with {name}", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)


def measure(subject: Subject, before: Before | None = None, after: Before | None = None) -> float:
    """The median of a call over a cold ring (us)."""
    device = TorchDevice(subject.device)
    session = ClockSession(device, seed=11)
    if before is not None:
        before(session)
    plan = plan_ring(footprint_of(subject).touched, device.limits, session.settings.cache_multiples)
    bench = make_bench(subject, session, plan.slots, session.seed, 8, allocated=plan.slots)
    bench.prepare()
    if after is not None:
        after(session)
    program = bench.capture(bench.one_pass, REPETITIONS)
    return statistics.median(session.take(program.replays, program.calls, SAMPLES).samples)


if __name__ == "__main__":
    main()
