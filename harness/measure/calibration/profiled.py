"""One call of each of several cells, each after a marker, for a profiler that looks on.

    python -m harness.measure.calibration.profiled SPEC

SPEC is a JSON file {"root", "device", "cells", "spins_us", "copies_bytes", "done"}: the workspace, the device's name, the cells,
and the spins and copies of known cost that come before them. What became of each is written to the JSON file `done`: null, or
why it could not be called.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from harness.authoring.catalogue import load_kernels
from harness.authoring.workspace import read_workspace
from harness.devices.table import load_devices
from harness.measure.calibration.bandwidth import Buffers
from harness.measure.calibration.known_kernels import TritonKnown, marker_kernel
from harness.measure.clock.device import Call
from harness.measure.clock.torch_device import TorchDevice
from harness.measure.subject import Subject
from harness.records import Cell

WARM_CALLS = 2
"""Eager calls before the profiled one: a first call may compile, and tune itself."""


def _calls(spec: dict[str, Any]) -> Iterator[Callable[[], Call]]:
    """What makes each call; it allocates, so one at a time."""
    row = load_devices()[spec["device"]]
    kernels = {name: loaded.kernel for name, loaded in load_kernels(read_workspace(Path(spec["root"]))).items()}

    def spin(us: float) -> Call:
        known = TritonKnown()
        passed = torch.zeros(2, dtype=torch.int64, device="cuda")
        return known.spin(round(us * 1000 / known.ns_per_count), passed[:1])

    def copy(size: int) -> Call:
        return Buffers(TorchDevice(row), size, 1, 1).copies(1)[0][0]

    def call(cell: Cell) -> Call:
        kernel = kernels[cell.kernel]
        subject = Subject(kernel, cell.variant, kernel.case(cell.case), row, "cuda")
        inputs = subject.inputs()
        return lambda: subject.call(inputs)

    yield from (lambda us=us: spin(us) for us in spec["spins_us"])
    yield from (lambda size=size: copy(size) for size in spec["copies_bytes"])
    yield from (lambda cell=cell: call(Cell.parse(cell)) for cell in spec["cells"])


def _profile(number: int, make: Callable[[], Call]) -> str | None:
    try:
        call = make()
        for _ in range(WARM_CALLS):
            call()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        try:
            marker_kernel[(number + 1,)]()
            call()
            torch.cuda.synchronize()
        finally:
            torch.cuda.profiler.stop()
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return None


def main() -> None:
    """Make every call."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    marker_kernel[(1,)]()  # compiled here, outside what is profiled
    became: list[str | None] = []
    for number, make in enumerate(_calls(spec)):
        became.append(_profile(number, make))
        gc.collect()
        torch.cuda.empty_cache()
    done = Path(spec["done"])
    part = done.with_suffix(".part")  # a process that ends while it writes leaves no half of it
    part.write_text(json.dumps(became))
    part.replace(done)


if __name__ == "__main__":
    main()
