"""One launch: a fresh process that measures a job's cells once, by running the kind's pytest file.

The pytest call is the engine's own: own ini file, no conftest of the tree, no plugin found by entry point; so a tree's
pytest settings cannot switch a measurement off.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

INI = Path(__file__).parent / "pytest.ini"


class Emitter:
    """Writes messages, one JSON line each, to a pipe that the supervisor reads."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def send(self, message: dict[str, Any]) -> None:
        """Write one message whole."""
        data = json.dumps(message, allow_nan=False).encode() + b"\n"
        while data:
            data = data[os.write(self.fd, data) :]


def run_launch(request: dict[str, Any], records: int) -> int:
    """Measure the cells of `request` and write messages to the descriptor `records`; the exit status is pytest's.

    Without cells it finds out what holds for the unit whatever is timed, hands that on, and writes nothing.

    Args:
        request: root (the workspace), jobs_dir, kind, device, cells, seed, lease, first, beside, engine_cache, environment
            (variables of this launch).
        records: descriptor of the supervisor's pipe.
    """
    os.environ.update(request["environment"])
    if not request["cells"]:
        _know_unit(request)
        return 0
    import pytest

    from harness.measure import plugin

    file = Path(request["jobs_dir"]) / f"{request['kind']}.py"
    plugin.launch_request = plugin.LaunchRequest(
        root=Path(request["root"]),
        kind=request["kind"],
        device=request["device"],
        cells=tuple(request["cells"]),
        seed=request["seed"],
        lease=Path(request["lease"]),
        first=request["first"],
        beside=request["beside"],
        puts_off=_is_the_engines(file),
        engine_cache=request["engine_cache"],
        emitter=Emitter(records),
    )
    arguments = [str(file), "-c", str(INI), "--rootdir", str(request["root"]), "--noconftest", "--import-mode=importlib"]
    # pytest's watch over unraisable exceptions collects garbage five times when it ends: 0.2 s that nobody here reads
    plugins = ["-p", "no:cacheprovider", "-p", "no:unraisableexception", "-p", "pytest_benchmark.plugin", "-p", "harness.measure.plugin"]
    return int(pytest.main([*arguments, *plugins, "-q", "--no-header", "--tb=short", "--color=no"]))


def _know_unit(request: dict[str, Any]) -> None:
    from harness.devices.table import load_devices
    from harness.measure.timing import Timer

    timer = Timer(load_devices()[request["device"]], request["seed"], Path(request["lease"]), engine_cache=request["engine_cache"])
    timer.know_unit()
    timer.close()


def _is_the_engines(file: Path) -> bool:
    """Whether a job file is the engine's own, which knows what its timer may put off."""
    from harness.authoring.workspace import bundled_jobs

    own = bundled_jobs() / file.name
    return own.is_file() and own.read_bytes() == file.read_bytes()
