"""A machine of two AMD GPUs as amdsmi shows it: the names, arguments and kinds of answer are the library's."""

from enum import IntEnum
from types import SimpleNamespace

amdsmi_wrapper = SimpleNamespace(
    AMDSMI_STATUS_NOT_SUPPORTED=2, AMDSMI_STATUS_NOT_YET_IMPLEMENTED=3, AMDSMI_STATUS_NO_PERM=10, AMDSMI_STATUS_DRIVER_NOT_LOADED=34
)


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code):
        super().__init__(err_code)
        self.err_code = err_code

    def __str__(self):
        return f"Error code:\n\t{self.err_code} | AMDSMI_STATUS_SOME"


class AmdSmiMemoryType(IntEnum):
    VRAM = 0


class AmdSmiClkType(IntEnum):
    SYS = 0
    GFX = 0
    MEM = 4


failing = {}
"""Name of a function -> the code with which it fails."""
gpus = [
    SimpleNamespace(uuid="4bff74a1-0000", hip={"hip_id": 1, "hip_uuid": "GPU-4bff"}, partition="SPX"),
    SimpleNamespace(uuid="5cff74a1-0000", hip={"hip_id": 0, "hip_uuid": "GPU-5cff"}, partition="SPX"),
]
"""In amdsmi's order, which is not HIP's."""
metrics = {
    "current_gfxclk": "N/A",
    "current_gfxclks": [2100, 2095, 2104, 0, "N/A", "N/A", "N/A", "N/A"],
    "current_uclk": 900,
    "current_socket_power": 612,
    "average_socket_power": "N/A",
    "temperature_edge": "N/A",
    "temperature_hotspot": 63,
    "average_gfx_activity": 99,
    "throttle_status": "N/A",
    "indep_throttle_status": "N/A",
    "prochot_residency_acc": 0,
    "ppt_residency_acc": 500,
    "socket_thm_residency_acc": 20,
    "vr_thm_residency_acc": 0,
    "hbm_thm_residency_acc": 0,
}


computing = [12, 3]
"""Ids of the processes that compute on every GPU."""
perf_level = ["AMDSMI_DEV_PERF_LEVEL_AUTO"]
power_cap = {"power_cap": 750_000_000, "default_power_cap": 750_000_000, "dpm_cap": 0, "min_power_cap": 0, "max_power_cap": 750_000_000}


def _check(name):
    if name in failing:
        raise AmdSmiLibraryException(failing[name])


def amdsmi_init():
    _check("amdsmi_init")


def amdsmi_get_processor_handles():
    return gpus


def amdsmi_get_gpu_asic_info(handle):
    return {"market_name": "AMD Instinct MI300X", "num_compute_units": 304, "asic_serial": "0x00"}


def amdsmi_get_gpu_device_uuid(handle):
    return handle.uuid


def amdsmi_get_gpu_enumeration_info(handle):
    return {"drm_render": 128, "drm_card": 1, "hsa_id": 2, **handle.hip}


def amdsmi_get_gpu_memory_total(handle, mem_type):
    assert mem_type is AmdSmiMemoryType.VRAM
    return 206_000_000_000


def amdsmi_get_gpu_driver_info(handle):
    return {"driver_name": "amdgpu", "driver_version": "6.14.0", "driver_date": "N/A"}


def amdsmi_get_gpu_compute_partition(handle):
    _check("amdsmi_get_gpu_compute_partition")
    return handle.partition


def amdsmi_get_gpu_metrics_info(handle):
    _check("amdsmi_get_gpu_metrics_info")
    return dict(metrics)


def amdsmi_get_gpu_total_ecc_count(handle):
    _check("amdsmi_get_gpu_total_ecc_count")
    return {"correctable_count": 4, "uncorrectable_count": 1, "deferred_count": 0}


def amdsmi_get_gpu_process_list(handle):
    _check("amdsmi_get_gpu_process_list")
    return [{"name": "N/A", "pid": pid, "mem": 1} for pid in computing]


def amdsmi_get_clock_info(handle, clock_type):
    _check("amdsmi_get_clock_info")
    highest = {AmdSmiClkType.GFX: 2100, AmdSmiClkType.MEM: 1300}[clock_type]
    return {"clk": 132, "min_clk": 132, "max_clk": highest, "clk_locked": False, "clk_deep_sleep": "N/A"}


def amdsmi_get_power_cap_info(handle):
    _check("amdsmi_get_power_cap_info")
    return dict(power_cap)


def amdsmi_get_gpu_perf_level(handle):
    _check("amdsmi_get_gpu_perf_level")
    return perf_level[0]


def amdsmi_get_gpu_ecc_enabled(handle):
    _check("amdsmi_get_gpu_ecc_enabled")
    return 1
