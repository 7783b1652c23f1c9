"""Tries the clock on the GPU of this machine: simple kernels at several sizes, within one process and between processes.

    python benchmarks/clock_smoke.py [--processes 3] [--repetitions 2] [--kernel NAME] [--device NAME]

Every process times every cell a few times. Printed are the first process's floors and ceilings, what its launches were,
and per cell the median over all repetitions with their spread, (max - min) / median, within a process and between
processes' medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import triton
import triton.language as tl

from harness import Case, Cycle, Inputs, Kernel, Tolerance, Traffic
from harness.devices.table import Device, load_devices
from harness.measure.clock import ClockSession, LeaseFacts, TorchDevice, record_launches, take_canary, time_cell
from harness.measure.subject import Reading, Subject

SIZES = (2_560, 327_680, 16 << 20)
"""fp32 elements: 10 KiB, 1.25 MiB and 64 MiB."""
LENGTH = 8
SEED = 11
TOLERANCE = {"fp32": Tolerance(1e-6, "one rounding")}
BESIDE = ("latency_warm_us", "graph1_us", "eager_us", "enqueue_us", "chained_us", "append_us", "worst_step_us")


@triton.jit
def scale_kernel(p_x, p_y, n, BLOCK: tl.constexpr):
    """y = 2 x."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_y + o, tl.load(p_x + o, mask=o < n) * 2.0, mask=o < n)


@triton.jit
def accumulate_kernel(p_x, p_state, n, BLOCK: tl.constexpr):
    """state = state / 2 + x."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_state + o, tl.load(p_state + o, mask=o < n) * 0.5 + tl.load(p_x + o, mask=o < n), mask=o < n)


@triton.jit
def phase_kernel(p_x, p_cursor, p_y, n, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    """Doubles x; in the last phase of a cycle it reads x once more, from behind."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_y = tl.load(p_x + o, mask=o < n) * 2.0
    if tl.load(p_cursor) == LENGTH - 1:
        b_y += tl.load(p_x + (n - 1 - o), mask=o < n)
    tl.store(p_y + o, b_y, mask=o < n)


def blocks(n: int) -> tuple[int]:
    """A grid of 1024 elements a program."""
    return (triton.cdiv(n, 1024),)


def scale(x: torch.Tensor) -> torch.Tensor:
    """One Triton launch."""
    y = torch.empty_like(x)
    scale_kernel[blocks(x.numel())](x, y, x.numel(), BLOCK=1024)
    return y


def copy(x: torch.Tensor) -> torch.Tensor:
    """torch's copy."""
    return x.clone()


def two_launches(x: torch.Tensor) -> torch.Tensor:
    """Two torch kernels, the second on what the first left in the cache."""
    return (x * 2).add_(1)


def accumulate(x: torch.Tensor, state: torch.Tensor) -> None:
    """One Triton launch that changes its state in place."""
    accumulate_kernel[blocks(x.numel())](x, state, x.numel(), BLOCK=1024)


def phased(x: torch.Tensor, cursor: torch.Tensor) -> torch.Tensor:
    """One Triton launch that costs more in the last phase of a cycle."""
    y = torch.empty_like(x)
    phase_kernel[blocks(x.numel())](x, cursor, y, x.numel(), LENGTH=LENGTH, BLOCK=1024)
    return y


def advance(inputs: Inputs) -> None:
    """Moves the cursor."""
    inputs["cursor"].add_(1).remainder_(LENGTH)


def make_kernel(name: str, call: Any, extra: dict[str, Any], bytes_read: int = 4, **more: Any) -> Kernel:
    """A kernel of x and further inputs that reads `bytes_read` bytes an element and writes four."""

    def make_inputs(case: Case, generator: Any) -> Inputs:
        made = {"x": generator.uniform((case.N,), case.dtype)}
        return made | {other: make(case, generator) for other, make in extra.items()}

    return Kernel(
        variants={"only": call},
        default="only",
        baseline="only",
        axes=("N",),
        cases=[Case(N=n, dtype="fp32", tags="smoke") for n in SIZES],
        make_inputs=make_inputs,
        reference=lambda **inputs: {},
        tolerance=TOLERANCE,
        traffic=lambda case: Traffic(bytes_read * case.N, 4 * case.N),
        flops=lambda case: case.N,
        name=name,
        **more,
    )


KERNELS = (
    make_kernel("scale", scale, {}, outputs=("y",)),
    make_kernel("copy", copy, {}, outputs=("y",)),
    make_kernel("two_launches", two_launches, {}, outputs=("y",)),
    make_kernel(
        "accumulate",
        accumulate,
        {"state": lambda case, generator: generator.uniform((case.N,), case.dtype)},
        bytes_read=8,
        outputs=(),
        mutates=("state",),
    ),
    make_kernel(
        "phased",
        phased,
        {"cursor": lambda case, generator: generator.full((1,), 0, torch.int32)},
        outputs=("y",),
        cycle=Cycle(lambda case: LENGTH, "cursor", advance),
    ),
)


def find_row(name: str | None) -> Device:
    """The row of the device in hand, by what its driver calls it."""
    rows = load_devices()
    if name is not None:
        return rows[name]
    model = torch.cuda.get_device_name()
    found = [row for row in rows.values() if model == row.model or model in row.also_reported_as]
    if not found:
        sys.exit(f"no device of the table is reported as {model!r}: name one with --device ({', '.join(rows)})")
    return found[0]


def measure(row: Device, facts: LeaseFacts, repetitions: int, only: str | None = None) -> dict[str, Any]:
    """Times every cell (of one kernel, or of all) `repetitions` times in this process; plain data."""
    device = TorchDevice(row)
    session = ClockSession(device, SEED, facts)
    cells: dict[str, Any] = {}
    launches: dict[str, list[str]] = {}
    for kernel in (kernel for kernel in KERNELS if only in (None, kernel.name)):
        for case in kernel.cases:
            subject = Subject(kernel, "only", case, row, "cuda")
            inputs = subject.inputs()
            subject.call(inputs)
            with record_launches() as recorded:
                subject.call(inputs)
            del inputs
            runs = []
            for _ in range(repetitions):
                begin = time.monotonic()
                readings = time_cell(subject, session)
                runs.append({"seconds": time.monotonic() - begin, "readings": {r.metric: plain(r) for r in readings}})
            cells[f"{kernel.name} {case.key}"] = runs
            launches[kernel.name] = [f"{r.kernel} ({r.grid}) {r.config} {r.binary_hash[:12]}" for r in recorded]
    return {"facts": facts.to_json(), "cells": cells, "launches": launches, "canary": vars(take_canary(session))}


def plain(reading: Reading) -> dict[str, Any]:
    """A reading as plain data."""
    return {**vars(reading), "columns": dict(reading.columns)}


def in_process(arguments: argparse.Namespace, facts: dict[str, Any]) -> dict[str, Any]:
    """What a process of its own measures, told what earlier ones found out."""
    command = [sys.executable, __file__, "--child", "--repetitions", str(arguments.repetitions)]
    for option in ("device", "kernel"):
        if value := getattr(arguments, option):
            command += [f"--{option}", value]
    done = subprocess.run(command, input=json.dumps(facts), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"a measuring process ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def spread(values: list[float]) -> float:
    """(max - min) / median in percent."""
    return 100 * (max(values) - min(values)) / statistics.median(values)


def show(processes: list[dict[str, Any]]) -> None:
    """Prints floors, ceilings, launches and one line a cell."""
    facts, last = processes[0]["facts"], processes[-1]["facts"]
    clock, ceilings = facts["clock"], facts["ceilings"]
    print(f"tick {clock['tick_us'] * 1000:.1f} ns, empty pair {clock['pair_us']:.2f} us, empty node {clock['empty_us']:.3f} us", end=", ")
    print(f"one replay {clock['replay_us']:.2f} us, host {clock['host_us']:.1f} us")
    print(f"copy {ceilings['copy_gbps']:.0f} GB/s, read {ceilings['read_gbps']:.0f} GB/s")
    print("canaries, us:", [{name: round(us, 3) for name, us in p["canary"].items()} for p in processes])
    for name, recorded in processes[0]["launches"].items():
        print(f"{name}: {'; '.join(recorded) or 'no Triton launch'}")
    for grids, floors in facts["floors"].items():
        print(f"grids {grids}: empty {floors['empty_grid_us']:.3f} us, touch {floors['touch_us']:.3f} us")
    print(
        f"\n{'cell':34} {'us':>9} {'within':>7} {'between':>8} {'GB/s':>7} {'%ceil':>6} {'ring':>6} {'n':>4} {'2xring':>7} {'s':>5}  beside"
    )
    for cell in processes[0]["cells"]:
        show_cell(cell, [p["cells"][cell] for p in processes], last)


def show_cell(cell: str, processes: list[list[dict[str, Any]]], facts: dict[str, Any]) -> None:
    """Prints one cell, or why it has no time."""
    runs = [run for process in processes for run in process]
    mains = [run["readings"]["latency_us"] for run in runs]
    bad = [reading for run in runs for reading in run["readings"].values() if reading["status"] not in ("ok", "skipped")]
    if any(main["value"] is None for main in mains):
        print(f"{cell:34} {[main['reason'] or main['status'] for main in mains]}")
        return
    per_process = [[run["readings"]["latency_us"]["value"] for run in process] for process in processes]
    within = max(spread(values) for values in per_process)
    between = spread([statistics.median(values) for values in per_process])
    first, readings = mains[0], runs[0]["readings"]
    columns = first["columns"]
    gbps = readings["gbps"]["value"]
    ceiling = readings["percent_of_ceiling"]["value"]
    proof = next((p for name, p in facts["rings"].items() if name.replace("/only/", " ").startswith(f"{cell}@")), None)
    doubled = "-" if proof is None or proof["change"] is None else f"{100 * proof['change']:+.2f}%"
    beside = " ".join(f"{m.removesuffix('_us')} {readings[m]['value']:.2f}" for m in BESIDE if m in readings and readings[m]["value"])
    flag = "" if all(m["columns"]["converged"] for m in mains) else " NOT CONVERGED"
    print(
        f"{cell:34} {statistics.median([m['value'] for m in mains]):9.3f} {within:6.2f}% {between:7.2f}% "
        f"{'-' if gbps is None else f'{gbps:.0f}':>7} {'-' if ceiling is None else f'{ceiling:.1f}':>6} "
        f"{columns['evidence']['ring']:6} {len(columns['samples']):4} {doubled:>7} {runs[-1]['seconds']:5.1f}  {beside}{flag}"
    )
    for reading in bad:
        print(f"    {reading['metric']}: {reading['status']} {reading['reason']}")


def main() -> None:
    """Starts the processes one after the other, or is one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--kernel", default=None, choices=[kernel.name for kernel in KERNELS])
    parser.add_argument("--device", default=None)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        facts = LeaseFacts.from_json(json.load(sys.stdin))
        print(json.dumps(measure(find_row(arguments.device), facts, arguments.repetitions, arguments.kernel), allow_nan=False))
        return
    processes: list[dict[str, Any]] = []
    for _ in range(arguments.processes):
        processes.append(in_process(arguments, processes[-1]["facts"] if processes else LeaseFacts().to_json()))
    show(processes)


if __name__ == "__main__":
    main()
