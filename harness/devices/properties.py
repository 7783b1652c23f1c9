"""What a launcher may ask of the device it launches on: the one place it comes from.

Launchers size their grids from `device_properties()`. In a static job the answer comes from the compile target's
row in devices.toml, on a GPU from the runtime, in the interpreter from the `cpu` row.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceProperties:
    """Properties by which a launcher picks its configuration; never a GPU's name.

    Args:
        backend: `cuda`, `hip` or `cpu`, as Triton names them.
        multiprocessors: SMs (NVIDIA) or CUs (AMD).
        shared_bytes_per_block: shared memory (LDS) one block may use.
        warp_size: threads in a warp (wavefront).
        last_level_cache_bytes: cache in front of the memory.
    """

    backend: str
    multiprocessors: int
    shared_bytes_per_block: int
    warp_size: int
    last_level_cache_bytes: int


_override: list[DeviceProperties] = []


@contextlib.contextmanager
def pretend(properties: DeviceProperties) -> Iterator[None]:
    """Answer with `properties` inside the block, as a static job does for its compile target."""
    _override.append(properties)
    try:
        yield
    finally:
        _override.pop()


def device_properties() -> DeviceProperties:
    """Properties of the device that the next kernel launch goes to."""
    return _override[-1] if _override else _current()


@functools.cache
def _current() -> DeviceProperties:
    import torch

    from harness.devices.table import identify, load_devices

    devices = load_devices()
    if os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available():
        return devices["cpu"].properties
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    if row := identify(found.name, found.multi_processor_count, devices):
        return row.properties  # the reported L2 is not the last-level cache of every GPU
    return DeviceProperties(
        backend="hip" if torch.version.hip else "cuda",
        multiprocessors=found.multi_processor_count,
        shared_bytes_per_block=getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block),
        warp_size=found.warp_size,
        last_level_cache_bytes=found.L2_cache_size,
    )
