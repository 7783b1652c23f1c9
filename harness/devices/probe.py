"""Lists the GPUs of this machine as JSON: NVIDIA's by NVML, AMD's by amdsmi, else torch's. Runs as a child process.

python -m harness.devices.probe
"""

from __future__ import annotations

import importlib
import json
from typing import Any

Found = dict[str, Any]


def probe() -> list[Found]:
    """Every GPU the machine shows: uuid, model, multiprocessors, memory_bytes, driver, partition, and the environment
    that selects it."""
    for ask in (_nvml, _amdsmi):
        if found := ask():
            return found
    return _torch()


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _nvml() -> list[Found]:
    nvml = _library("pynvml")
    if nvml is None:
        return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        found.append(
            {
                "uuid": uuid,
                "model": _text(nvml.nvmlDeviceGetName(handle)),
                "multiprocessors": None,  # NVML does not count them
                "memory_bytes": int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                "driver": _text(nvml.nvmlSystemGetDriverVersion()),
                "partition": _mig(nvml, handle),
                "environment": {"CUDA_VISIBLE_DEVICES": uuid},
            }
        )
    return found


def _amdsmi() -> list[Found]:
    smi = _library("amdsmi")
    if smi is None:
        return []
    try:
        smi.amdsmi_init()
    except smi.AmdSmiException:
        return []
    found = []
    for index, handle in enumerate(smi.amdsmi_get_processor_handles()):
        board = smi.amdsmi_get_gpu_asic_info(handle)
        memory = smi.amdsmi_get_gpu_memory_total(handle, smi.AmdSmiMemoryType.VRAM)
        found.append(
            {
                "uuid": _text(smi.amdsmi_get_gpu_device_uuid(handle)),
                "model": _text(board["market_name"]),
                "multiprocessors": int(board["num_compute_units"]),
                "memory_bytes": int(memory),
                "driver": _text(smi.amdsmi_get_gpu_driver_info(handle)["driver_version"]),
                "partition": _text(smi.amdsmi_get_gpu_compute_partition(handle)).lower().replace("spx", "none"),
                "environment": {"HIP_VISIBLE_DEVICES": str(index)},
            }
        )
    return found


def _mig(nvml: Any, handle: Any) -> str:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # a GPU that cannot be divided
        return "none"
    return "mig" if current == nvml.NVML_DEVICE_MIG_ENABLE else "none"


def _torch() -> list[Found]:
    import torch

    variable = "HIP_VISIBLE_DEVICES" if torch.version.hip else "CUDA_VISIBLE_DEVICES"
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        selected = str(index) if torch.version.hip else f"GPU-{properties.uuid}"
        found.append(
            {
                "uuid": f"GPU-{properties.uuid}",
                "model": properties.name,
                "multiprocessors": int(properties.multi_processor_count),
                "memory_bytes": int(properties.total_memory),
                "driver": None,
                "partition": None,
                "environment": {variable: selected},
            }
        )
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    print(json.dumps(probe()))  # noqa: T201 -- the parent reads it
