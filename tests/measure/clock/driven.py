"""Runs one launch in a process of its own, on the scripted device, and listens to it as a supervisor does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CLOCK = Path(__file__).parent


def drive(script: Path, folder: Path, request: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a launch after the first, which tells of its environment.

    Args:
        script: takes the path of a request and a descriptor, puts the scripted device in a GPU's place, and calls `run_launch`.
        folder: for request, log, lease and the engine's cache.
        request: what differs from the first launch of a lease, with the figures beside.
    """
    usual = {
        "device": "h200",
        "seed": 5,
        "lease": str(folder / "lease.json"),
        "first": True,
        "beside": True,
        "engine_cache": str(folder / "engine"),
        "environment": {},
    }
    spec = folder / "spec.json"
    spec.write_text(json.dumps(usual | request))
    paths = (CLOCK.parents[2], CLOCK, script.parent)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    read, write = os.pipe()
    with (folder / "log").open("wb") as log:
        command = [sys.executable, str(script), str(spec), str(write)]
        child = subprocess.Popen(command, env=environment, pass_fds=[write], stdout=log, stderr=log)
    os.close(write)
    with os.fdopen(read) as pipe:
        messages = [json.loads(line) for line in pipe]
    assert child.wait() == 0, (folder / "log").read_text()
    assert ["environment"] * bool(request["cells"]) == [message["type"] for message in messages[:1]]
    return messages[1:]
