"""What a launch costs beside its measurement: from the request to the fork server until the first cell begins and ends.

    python benchmarks/launch_cost.py KERNEL VARIANT CASE DEVICE [--launches 3] [--profile]

With --profile one cell is measured in this process instead, under cProfile.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.authoring.workspace import find_workspace
from harness.dispatch.launcher import Flavour, ForkServer

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print the cost of a few launches, or the profile of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel")
    parser.add_argument("variant")
    parser.add_argument("case")
    parser.add_argument("device")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if options.profile:
        profile(options)
        return
    scratch = Path(tempfile.mkdtemp())
    began = time.monotonic()
    server = ForkServer(Flavour.GPU, scratch)
    server.wait_ready()
    print(f"server ready after {time.monotonic() - began:.2f} s")
    workspace = find_workspace(ROOT)
    for number in range(options.launches):
        spec = scratch / f"spec-{number}.json"
        request = {
            "root": str(workspace.root),
            "jobs_dir": str(workspace.jobs_dir),
            "kind": "latency",
            "device": options.device,
            "cells": [f"{options.kernel}/{options.variant}/{options.case}@{options.device}"],
            "seed": number,
            "lease": str(scratch / "lease.json"),
            "environment": {"TRITON_CACHE_DIR": str(scratch / "triton")},
        }
        spec.write_text(json.dumps(request))
        read, write = os.pipe()
        log = os.open(scratch / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        began = time.monotonic()
        launch = server.launch(str(number), spec, write, log)
        os.close(write)
        with os.fdopen(read) as messages:
            for line in messages:
                message = json.loads(line)
                print(f"launch {number}: {message['type']:<12} after {time.monotonic() - began:.2f} s")
        launch.ended.wait()
    server.close()


def profile(options: argparse.Namespace) -> None:
    """Measure one cell in this process and print where the time goes."""
    from harness.authoring.catalogue import load_kernels
    from harness.devices.table import load_devices
    from harness.measure.correctness import check_correctness
    from harness.measure.subject import Subject
    from harness.measure.timing import Timer

    kernel = load_kernels(find_workspace(ROOT))[options.kernel].kernel
    device = load_devices()[options.device]
    subject = Subject(kernel, options.variant, kernel.case(options.case), device, "cuda")
    timer = Timer(device, 1, None)
    for name, step in (
        ("gate", lambda: check_correctness(subject, on_device=True)),
        ("session", lambda: timer.session),
        ("time", lambda: timer(subject)),
    ):
        profiler = cProfile.Profile()
        began = time.monotonic()
        profiler.runcall(step)
        print(f"== {name}: {time.monotonic() - began:.2f} s")
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(22)


if __name__ == "__main__":
    main()
