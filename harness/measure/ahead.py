"""Compiles the engine's own kernels for a device before any launch needs them: no lease should pay for that."""

from __future__ import annotations

from pathlib import Path

import torch

from harness.devices.table import Device
from harness.measure.clock.device import BLOCK_MULTIPLE, TOUCH_STRIDE
from harness.measure.clock.floors import ONE_PROGRAM
from harness.measure.clock.probe_kernels import TritonProbes
from harness.measure.recording import recording

LINES = (1, 3, 16)
"""Numbers of lines of a touch kernel, each of which Triton compiles anew: one, any, and a multiple of 16."""


def compile_engine(device: Device, cache: Path) -> None:
    """Compile them into a cache of Triton's, from which `TritonProbes` on that device takes them.

    Raises:
        HarnessError: nothing is compiled for the device, or TRITON_INTERPRET is set.
    """
    with recording(device, cache):
        probes = TritonProbes(device.properties.multiprocessors, "meta")
        source = torch.empty(BLOCK_MULTIPLE, dtype=torch.int32, device="meta")
        calls = [probes.empty(ONE_PROGRAM), probes.arithmetic(), *probes.copies(source, torch.empty_like(source)), *probes.reads(source)]
        for lines in LINES:
            touched = torch.empty((lines, TOUCH_STRIDE), dtype=torch.float32, device="meta")
            calls.append(probes.touch(ONE_PROGRAM, touched, torch.empty_like(touched)))
        for call in calls:
            call()
