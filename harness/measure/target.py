"""A compile target as Triton and torch see it: a driver that launches nothing, and torch's answers about the device.

All that a launcher can ask of the device is answered from `harness.devices.properties.device_properties`, whether it asks
the harness, torch or Triton's driver.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import types
from collections.abc import Iterator
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver as triton_driver

from harness.devices.properties import DeviceProperties, device_properties, pretend
from harness.devices.table import Device
from harness.errors import HarnessError
from harness.measure.seams import replaced

STATIC_SHARED_BYTES = 49_152
"""Shared memory that an NVIDIA block gets without opting in (CUDA Programming Guide, Compute Capabilities)."""
MAX_THREADS = 1024
"""Threads that a block of any target may have (CUDA Programming Guide; AMD's HIP documentation says the same)."""
FIRST_INDEX = 1000
"""Device index of the first target: Triton keeps compiled kernels by device index, and a real GPU's must not be reused."""
STORAGE_ALIGNMENT_BITS = 8
"""Storages are aligned to 256 bytes at least, as cudaMalloc and torch's allocator align them."""


class TargetProperties(dict[str, int]):
    """What a driver tells of a device; what devices.toml does not say is an error, not a guess."""

    def __missing__(self, key: str) -> int:
        raise HarnessError(
            f"device property {key!r} of a compile target", f"known are {', '.join(self)}", "use device_properties() instead"
        )


class TargetUtils:
    """The part of a Triton driver that knows device properties and loads binaries."""

    def __init__(self, device: Device, loader: Any) -> None:
        self._registers = device.registers_per_multiprocessor
        self.load_binary = loader

    def get_device_properties(self, _device: int) -> TargetProperties:
        """The properties that Triton and launchers read."""
        found = device_properties()
        return TargetProperties(
            max_shared_mem=found.shared_bytes_per_block,
            multiprocessor_count=found.multiprocessors,
            max_num_regs=self._registers,
            warpSize=found.warp_size,
        )


class TargetDriver(DriverBase):
    """A Triton driver whose device is a compile target.

    Args:
        launcher: makes the callable that stands for a kernel's launch, from Triton's (source, metadata).
        loader: takes a binary as Triton's `load_binary` does.
        benchmarker: stands for `do_bench`.
    """

    def __init__(self, device: Device, launcher: Any, loader: Any, benchmarker: Any) -> None:
        super().__init__()
        self.target = gpu_target(device)
        self.index = _index(device.gpu_target, device.properties)
        self.launcher_cls = launcher
        self.utils = TargetUtils(device, loader)
        self._benchmarker = benchmarker

    @classmethod
    def is_active(cls) -> bool:
        """Never found by Triton's own search for a driver."""
        return False

    def get_current_target(self) -> GPUTarget:
        """The target to compile for."""
        return self.target

    def get_current_device(self) -> int:
        """An index that no real GPU has and no other target in this process."""
        return self.index

    def set_current_device(self, _device: int) -> None:
        """There is one device."""

    def get_current_stream(self, _device: int | None = None) -> int:
        """The default stream."""
        return 0

    def get_device_capability(self, _device: int | None = None) -> tuple[int, int]:
        """Major and minor version of the architecture."""
        return capability(self.target)

    def get_active_torch_device(self) -> torch.device:
        """Where tensors live."""
        return torch.device("meta")

    def get_device_interface(self) -> Any:
        """The torch module that speaks of the device."""
        return torch.cuda

    def get_benchmarker(self) -> Any:
        """What an autotuner times a configuration with."""
        return self._benchmarker

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Only a launcher in C needs this; there is none.

        Raises:
            HarnessError: always.
        """
        raise HarnessError(f"the C++ type of {ty}", "a compile target launches nothing", "build no C launcher in a static job")


@functools.cache
def _index(_target: tuple[str, int | str, int], _properties: DeviceProperties) -> int:
    return FIRST_INDEX + next(_indices)


_indices = itertools.count()


def gpu_target(device: Device) -> GPUTarget:
    """The device as Triton's compile target.

    Raises:
        HarnessError: nothing is compiled for it (the interpreter).
    """
    if device.gpu_target is None:
        raise HarnessError(f"compile for device {device.name}", "its row has no triton_target", "name a GPU of devices.toml")
    return GPUTarget(*device.gpu_target)


def capability(target: GPUTarget) -> tuple[int, int]:
    """Major and minor version as torch.cuda.get_device_capability gives them: 86 -> (8, 6), gfx942 -> (9, 4)."""
    if target.backend == "cuda":
        return divmod(target.arch, 10)
    digits = target.arch.removeprefix("gfx")
    return int(digits[:-2]), int(digits[-2], 16)


@contextlib.contextmanager
def targeting(device: Device, driver: TargetDriver) -> Iterator[None]:
    """Let Triton launch through `driver`, and torch and the harness answer for `device`, inside the block."""
    load_meta_operations()
    with contextlib.ExitStack() as stack:
        stack.enter_context(pretend(device.properties))
        stack.enter_context(replaced(triton_driver, "_active", driver))
        stack.enter_context(replaced(torch.Tensor, "data_ptr", _data_ptr))
        for owner, name, value in _torch_answers(device, driver.target):
            stack.enter_context(replaced(owner, name, value))
        yield


@functools.cache
def load_meta_operations() -> None:
    """Let torch import what operations on meta tensors need, which it does late: it must see this host, not the target."""
    torch.add(torch.empty(1, device="meta"), 1)


def _data_ptr(tensor: torch.Tensor) -> int:
    """The address that a meta tensor would have: aligned as an allocator aligns, offset as the view is."""
    if tensor.device.type != "meta":
        return _real_data_ptr(tensor)
    if tensor.numel() == 0:
        return 0
    # The storage's own address tells storages apart, so that a launcher's test for aliasing has its usual answer.
    base = tensor.untyped_storage()._cdata << STORAGE_ALIGNMENT_BITS
    return int(base + tensor.storage_offset() * tensor.element_size())


_real_data_ptr = torch.Tensor.data_ptr


def _torch_answers(device: Device, target: GPUTarget) -> list[tuple[Any, str, Any]]:
    """What torch says of the device, as (module, name, value)."""
    is_hip = target.backend == "hip"
    # A launcher may ask whether it runs on ROCm or CUDA, but no version is known: a comparison fails instead of guessing.
    versions = [(torch.version, "hip", "unknown" if is_hip else None), (torch.version, "cuda", None if is_hip else "unknown")]
    return [
        *versions,
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "device", lambda _device: contextlib.nullcontext()),
        (torch.cuda, "get_device_name", lambda _device=None: device.model),
        (torch.cuda, "get_device_capability", lambda _device=None: capability(target)),
        (torch.cuda, "get_device_properties", lambda _device=None: _torch_properties(device, target)),
    ]


def _torch_properties(device: Device, target: GPUTarget) -> types.SimpleNamespace:
    """The device as torch.cuda.get_device_properties shows it; what devices.toml does not say is absent."""
    found = device_properties()
    major, minor = capability(target)
    is_cuda = target.backend == "cuda"
    shared = {"shared_memory_per_block": STATIC_SHARED_BYTES, "shared_memory_per_block_optin": found.shared_bytes_per_block}
    return types.SimpleNamespace(
        name=device.model,
        major=major,
        minor=minor,
        gcnArchName=device.model if is_cuda else target.arch,
        total_memory=device.usable_memory_bytes,
        multi_processor_count=found.multiprocessors,
        warp_size=found.warp_size,
        L2_cache_size=found.last_level_cache_bytes,
        regs_per_multiprocessor=device.registers_per_multiprocessor,
        shared_memory_per_multiprocessor=device.shared_bytes_per_multiprocessor,
        max_threads_per_multi_processor=device.max_warps_per_multiprocessor * found.warp_size,
        **(shared if is_cuda else {"shared_memory_per_block": found.shared_bytes_per_block}),
    )
