"""Lists the GPUs of this machine as JSON: NVIDIA's by NVML, AMD's by amdsmi, else by torch. Runs as a child process.

    python -m harness.devices.probe

Its last line is a list of units, or an object that says why there is none: {"found", "do"}. Only what the caller's mask
(CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES) leaves visible is listed: a masked GPU belongs to somebody else.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.devices.table import Vendor

Found = dict[str, Any]

DRIVERS = {Vendor.NVIDIA: Path("/dev/nvidiactl"), Vendor.AMD: Path("/dev/kfd")}
"""The file by which a vendor's driver shows itself."""

CUDA, HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
FOREIGN = ("ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
"""Masks below HIP's: they renumber what HIP's mask counts, and a launch would not inherit them."""


class CannotList(Exception):
    """The GPUs cannot be listed.

    Args:
        found: what is there instead, with the value.
        do: the next step that would help.
    """

    def __init__(self, found: str, do: str) -> None:
        self.found, self.do = found, do
        super().__init__(f"{found}; {do}")


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one instance of a divided one, that a mask may name.

    Args:
        index: its number in a mask; instances have that of their GPU.
        names: its UUIDs, as a mask may write them.
        found: what is listed of it.
    """

    index: int
    names: tuple[str, ...]
    found: Found


def probe(environ: Mapping[str, str]) -> list[Found]:
    """Every visible GPU: uuid, model, multiprocessors, memory_bytes, driver, partition, and the environment that selects it.

    Args:
        environ: the caller's environment, of which masks are read.

    Raises:
        CannotList: a library failed, no library is installed, or a mask cannot be followed.
    """
    ask = {Vendor.NVIDIA: _nvml, Vendor.AMD: _amdsmi}
    found: list[Found] = []
    for vendor, driver in DRIVERS.items():
        if driver.exists():
            listed = ask[vendor](environ)
            found += _torch(vendor, environ) if listed is None else listed
    return found


def library(name: str) -> Any:
    """The module, or None where it is not installed.

    Raises:
        CannotList: it is installed but cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return None
        raise CannotList(f"{name} cannot be imported: {error}", f"install what {name} needs") from error
    except Exception as error:  # amdsmi without its shared library fails in several ways
        raise CannotList(f"{name} cannot be imported: {error!r}", f"repair {name}, or remove it") from error


def visible(gpus: Sequence[Gpu], variable: str, mask: str | None) -> list[Gpu]:
    """The GPUs that a mask leaves, in its order; as the vendors' runtimes do, the list ends at the first entry that is
    neither a number nor a UUID (`-1`, `NoDevFiles`, nothing).

    Raises:
        CannotList: an entry names no GPU, several, or one twice.
    """
    if mask is None:
        return list(gpus)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in mask.split(",")):
        if entry.isdecimal():
            matches = [gpu for gpu in gpus if gpu.index == int(entry)]
        elif entry.upper().startswith(("GPU-", "MIG-")):
            matches = [gpu for gpu in gpus if any(name.lower().startswith(entry.lower()) for name in gpu.names)]
        else:
            break
        if len(matches) != 1 or matches[0] in chosen:
            known = ", ".join(f"{gpu.index}: {gpu.names[0]}" for gpu in gpus) or "(none)"
            what = "names one twice" if len(matches) == 1 else f"names {len(matches)} GPUs or instances"
            raise CannotList(f"{variable}={mask}, of which {entry} {what}; here are {known}", f"correct {variable}")
        chosen += matches
    return chosen


def _nvml(environ: Mapping[str, str]) -> list[Found] | None:
    nvml = library("pynvml")
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:  # a container with the compute capability alone
            return None
        if error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
            return []
        raise CannotList(f"NVML does not start: {error}", "repair the driver: nvidia-smi must list the GPUs") from error
    try:
        gpus = [gpu for index in range(nvml.nvmlDeviceGetCount()) for gpu in _nvml_gpus(nvml, index)]
    except nvml.NVMLError as error:
        raise CannotList(f"NVML does not list the GPUs: {error}", "repair the driver: nvidia-smi must list the GPUs") from error
    mask = environ.get(CUDA)
    by_number = mask is not None and any(entry.strip().isdecimal() for entry in mask.split(","))
    models = {gpu.found["model"].partition(" MIG ")[0] for gpu in gpus}
    if by_number and len(models) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        found = f"{CUDA}={mask} on a machine of several models, which CUDA numbers by speed and NVML by slot"
        raise CannotList(found, f"set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name UUIDs in {CUDA}")
    return [gpu.found for gpu in visible(gpus, CUDA, mask)]


def _nvml_gpus(nvml: Any, index: int) -> list[Gpu]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    driver = _text(nvml.nvmlSystemGetDriverVersion())
    if not _divided(nvml, handle):
        return [_nvml_gpu(nvml, index, handle, None, driver, "none")]  # NVML counts no multiprocessors of a whole GPU
    gpus = []
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NOT_FOUND:  # an empty slot
                continue
            raise
        multiprocessors = int(nvml.nvmlDeviceGetAttributes(instance).multiprocessorCount)
        gpus.append(_nvml_gpu(nvml, index, instance, multiprocessors, driver, "mig"))
    return gpus


def _nvml_gpu(nvml: Any, index: int, handle: Any, multiprocessors: int | None, driver: str, partition: str) -> Gpu:
    uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    found = {
        "uuid": uuid,
        "model": _text(nvml.nvmlDeviceGetName(handle)),
        "multiprocessors": multiprocessors,
        "memory_bytes": int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "driver": driver,
        "partition": partition,
        "environment": {CUDA: uuid},
    }
    return Gpu(index, (uuid,), found)


def _divided(nvml: Any, handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
            return False
        raise
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _amdsmi(environ: Mapping[str, str]) -> list[Found] | None:
    smi = library("amdsmi")
    if smi is None:
        return None
    try:
        smi.amdsmi_init()
        handles = smi.amdsmi_get_processor_handles()
        gpus = [_amdsmi_gpu(smi, handle, len(handles)) for handle in handles]
    except smi.AmdSmiException as error:
        if getattr(error, "err_code", None) == smi.amdsmi_wrapper.AMDSMI_STATUS_DRIVER_NOT_LOADED:
            return []
        found = f"amdsmi does not list the GPUs: {' '.join(str(error).split())}"
        raise CannotList(found, "repair the driver: amd-smi must list the GPUs") from error
    return [gpu.found for gpu in visible(gpus, *_hip_mask(environ))]


def _amdsmi_gpu(smi: Any, handle: Any, count: int) -> Gpu:
    board = smi.amdsmi_get_gpu_asic_info(handle)
    uuid = _text(smi.amdsmi_get_gpu_device_uuid(handle))
    units = board["num_compute_units"]
    index, names = _hip_identity(smi, handle, count)
    found = {
        "uuid": uuid,
        "model": _text(board["market_name"]),
        "multiprocessors": units if isinstance(units, int) else None,
        "memory_bytes": int(smi.amdsmi_get_gpu_memory_total(handle, smi.AmdSmiMemoryType.VRAM)),
        "driver": _text(smi.amdsmi_get_gpu_driver_info(handle)["driver_version"]),
        "partition": _compute_partition(smi, handle),
        "environment": {HIP: str(index)},
    }
    return Gpu(index, (*names, uuid, f"GPU-{uuid}"), found)


def _hip_identity(smi: Any, handle: Any, count: int) -> tuple[int, tuple[str, ...]]:
    """HIP's number and UUID of a GPU; amdsmi's own order is another (it counts by bus, HIP by the driver's nodes)."""
    ask = getattr(smi, "amdsmi_get_gpu_enumeration_info", None)  # ROCm 6.4
    known = ask(handle) if ask else {"hip_id": "N/A", "hip_uuid": ""}
    if isinstance(known["hip_id"], int):
        return known["hip_id"], (known["hip_uuid"],) if known["hip_uuid"] else ()
    if count == 1:
        return 0, ()
    raise CannotList(f"amdsmi does not say which of {count} GPUs is which number in {HIP}", "install amdsmi of ROCm 6.4 or later")


def _compute_partition(smi: Any, handle: Any) -> str:
    try:
        partition = _text(smi.amdsmi_get_gpu_compute_partition(handle)).lower()
    except smi.AmdSmiException as error:
        if getattr(error, "err_code", None) == smi.amdsmi_wrapper.AMDSMI_STATUS_NOT_SUPPORTED:
            return "none"
        raise
    return "none" if partition == "spx" else partition


def _hip_mask(environ: Mapping[str, str]) -> tuple[str, str | None]:
    """The variable that HIP reads and its value; HIP's own comes before CUDA's.

    Raises:
        CannotList: a mask of another layer is set.
    """
    for name in FOREIGN:
        if name in environ:
            raise CannotList(f"{name}={environ[name]}, which renumbers the GPUs", f"unset {name} and set {HIP} instead")
    variable = HIP if HIP in environ else CUDA
    return variable, environ.get(variable)


def _torch(vendor: Vendor, environ: Mapping[str, str]) -> list[Found]:
    """The GPUs that torch sees, which is what the mask leaves; none where torch is built for another vendor."""
    torch = library("torch")
    if torch is None:
        tool = "nvidia-ml-py" if vendor is Vendor.NVIDIA else "amdsmi"
        raise CannotList(f"a driver of {vendor}, but neither {tool} nor torch", f"install {tool}")
    built_for = Vendor.AMD if torch.version.hip else Vendor.NVIDIA if torch.version.cuda else None
    if built_for is not vendor:
        return []
    variable, mask = _hip_mask(environ) if vendor is Vendor.AMD else (CUDA, environ.get(CUDA))
    entries = None if mask is None else [entry.strip() for entry in mask.split(",")]
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        if " MIG " in properties.name:
            raise CannotList(f"{properties.name}, an instance whose UUID torch does not tell", "install nvidia-ml-py")
        uuid = f"GPU-{properties.uuid}"
        number = str(index) if entries is None else entries[index]
        found.append(
            {
                "uuid": uuid,
                "model": properties.name,
                "multiprocessors": int(properties.multi_processor_count),
                "memory_bytes": int(properties.total_memory),
                "driver": None,
                "partition": None,
                "environment": {variable: number if vendor is Vendor.AMD else uuid},
            }
        )
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def main() -> None:
    """Print the list, or why there is none."""
    try:
        answer: Any = probe(os.environ)
    except CannotList as error:
        answer = {"found": error.found, "do": error.do}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
