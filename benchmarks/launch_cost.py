"""What a launch costs beside its measurement: from the request to the fork server until each cell begins and ends.

    python benchmarks/launch_cost.py DEVICE CELL... [--launches 3] [--profile N]

CELL is KERNEL/VARIANT/CASE; all are of one kernel and variant. With --profile every launch is forked from this process instead, which
has loaded what the server loads, and its N costliest functions follow.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.authoring.workspace import find_workspace
from harness.dispatch.launcher import Flavour, ForkServer, clean_environment
from harness.measure import server
from harness.measure.launch import run_launch

ROOT = Path(__file__).parents[1]
Launch = Callable[[int, Path, int], Callable[[], Any]]
"""Starts a launch: its number, the path of its request, where its messages go; gives what waits for its end."""


def main() -> None:
    """Print the cost of a few launches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device")
    parser.add_argument("cells", nargs="+")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--profile", type=int, default=0)
    options = parser.parse_args()
    if options.profile and sys.version_info < (3, 12):
        parser.error("--profile needs Python 3.12: before, pytest-benchmark switches a profiler off and cannot switch it on again")
    scratch = Path(tempfile.mkdtemp())
    if options.profile:
        os.environ.update(clean_environment(Flavour.GPU, scratch, {}))
        server._preload("gpu")
        measure(options, scratch, lambda number, spec, write: profiled(number, spec, write, options.profile))
    else:
        began = time.monotonic()
        served = ForkServer(Flavour.GPU, scratch)
        served.wait_ready()
        print(f"server ready after {time.monotonic() - began:.2f} s")
        log = os.open(scratch / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        measure(options, scratch, lambda number, spec, write: served.launch(str(number), spec, write, log).ended.wait)
        served.close()


def measure(options: argparse.Namespace, scratch: Path, start: Launch) -> None:
    """Make the launches in turn and print when each of their messages came."""
    workspace = find_workspace(ROOT)
    for number in range(options.launches):
        spec = scratch / f"spec-{number}.json"
        request = {
            "root": str(workspace.root),
            "jobs_dir": str(workspace.jobs_dir),
            "kind": "latency",
            "device": options.device,
            "cells": [f"{cell}@{options.device}" for cell in options.cells],
            "seed": number,
            "lease": str(scratch / "lease.json"),
            "first": number == 0,
            "beside": number == 0,
            "engine_cache": str(scratch / "engine"),
            "environment": {"TRITON_CACHE_DIR": str(scratch / "triton")},
        }
        spec.write_text(json.dumps(request))
        read, write = os.pipe()
        began = time.monotonic()
        wait = start(number, spec, write)
        os.close(write)
        with os.fdopen(read) as messages:
            for line in messages:
                message = json.loads(line)
                print(f"launch {number}: {message['type']:<12} after {time.monotonic() - began:.2f} s")
        wait()
        print(f"launch {number}: ended        after {time.monotonic() - began:.2f} s", flush=True)


def profiled(number: int, spec: Path, write: int, functions: int) -> Callable[[], Any]:
    """Fork a launch that tells where its time went."""
    pid = os.fork()
    if pid == 0:
        profiler = cProfile.Profile()
        profiler.runcall(run_launch, json.loads(spec.read_text()), write)
        print(f"launch {number}")
        for order in ("tottime", "cumtime"):
            pstats.Stats(profiler).sort_stats(order).print_stats(functions)
        sys.stdout.flush()
        os._exit(0)
    return lambda: os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
