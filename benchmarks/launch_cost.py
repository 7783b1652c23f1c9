"""What a launch costs beside its measurement: from the request to the fork server until the first cell begins and ends.

python benchmarks/launch_cost.py KERNEL VARIANT CASE DEVICE [--launches 3]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.authoring.workspace import find_workspace
from harness.dispatch.launcher import Flavour, ForkServer

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print the cost of a few launches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel")
    parser.add_argument("variant")
    parser.add_argument("case")
    parser.add_argument("device")
    parser.add_argument("--launches", type=int, default=3)
    options = parser.parse_args()
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
            "first": number == 0,
            "beside": number == 0,
            "engine_cache": str(scratch / "engine"),
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


if __name__ == "__main__":
    main()
