"""The sensors of one GPU: NVIDIA's by NVML, AMD's by amdsmi. Neither makes a context on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol

from harness.devices.probe import DRIVERS, CannotList, library
from harness.devices.table import Vendor

Values = dict[str, Any]


class Throttle(StrEnum):
    """Why clocks are below what the GPU could run at. Closed."""

    THERMAL = "thermal"
    HARDWARE_SLOWDOWN = "hardware_slowdown"
    POWER_CAP = "power_cap"
    POWER_BRAKE = "power_brake"
    CLOCK_SETTING = "clock_setting"
    IDLE = "idle"
    OTHER = "other"


NVML_REASONS = {
    0x001: Throttle.IDLE,
    0x002: Throttle.CLOCK_SETTING,
    0x004: Throttle.POWER_CAP,
    0x008: Throttle.HARDWARE_SLOWDOWN,
    0x020: Throttle.THERMAL,
    0x040: Throttle.THERMAL,
    0x080: Throttle.POWER_BRAKE,
    0x100: Throttle.CLOCK_SETTING,
}
"""Bits of nvmlClocksEventReasons (nvml.h); any other bit is `other`."""

RESIDENCIES = {
    "prochot_residency_acc": Throttle.HARDWARE_SLOWDOWN,
    "ppt_residency_acc": Throttle.POWER_CAP,
    "socket_thm_residency_acc": Throttle.THERMAL,
    "vr_thm_residency_acc": Throttle.THERMAL,
    "hbm_thm_residency_acc": Throttle.THERMAL,
}
"""amdsmi's counters of the time spent throttled (metrics 1.6 on): one that has grown since the last look names a reason."""


class Sensors(Protocol):
    """What can be asked of one GPU; both raise CannotList when it answers no more."""

    def fast(self) -> Values:
        """Of a `Sample`: clocks, power, temperature, throttled and utilisation."""

    def slow(self) -> Values:
        """Of a `Sample`: ecc_uncorrected and processes."""


def open_sensors(uuid: str) -> Sensors:
    """The sensors of the unit of that UUID.

    Raises:
        CannotList: no library is installed, one failed, or none knows the unit.
    """
    missing = []
    known: dict[Vendor, tuple[str, type[Nvml] | type[Amdsmi]]] = {Vendor.NVIDIA: ("pynvml", Nvml), Vendor.AMD: ("amdsmi", Amdsmi)}
    for vendor, (name, sensors) in known.items():
        if not DRIVERS[vendor].exists():
            continue
        module = library(name)
        if module is None:
            missing.append(name)
        elif found := sensors.open(module, uuid):
            return found
    why = f"{' and '.join(missing)} not installed" if missing else "no driver's library knows the unit"
    raise CannotList(f"no sensors of {uuid}: {why}", "install nvidia-ml-py or amdsmi")


class Nvml:
    """NVML's sensors of one GPU; of an instance, those of the GPU it is a part of.

    Args:
        nvml: the module `pynvml`, initialised.
        handle: of the GPU.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle
        self._untold = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION)
        # the name until driver 535
        self._reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or nvml.nvmlDeviceGetCurrentClocksThrottleReasons

    @classmethod
    def open(cls, nvml: Any, uuid: str) -> Nvml | None:
        """The sensors of a unit; None where NVML does not know it."""
        try:
            nvml.nvmlInit()
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            return cls(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if uuid.startswith("MIG-") else handle)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):  # the latter of a UUID in another's form
                return None
            raise CannotList(f"NVML: {error}", "repair the driver: nvidia-smi must list the GPUs") from error

    def fast(self) -> Values:
        """See Sensors."""
        nvml = self.nvml
        power = self._ask(nvml.nvmlDeviceGetPowerUsage)
        utilisation = self._ask(nvml.nvmlDeviceGetUtilizationRates)
        return {
            "sm_clock_mhz": self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            "power_w": None if power is None else power / 1000,
            "temperature_c": self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            "throttled": self._names(self._ask(self._reasons) or 0),
            "utilisation": None if utilisation is None else utilisation.gpu,
        }

    def slow(self) -> Values:
        """See Sensors."""
        nvml = self.nvml
        processes = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses)
        return {
            "ecc_uncorrected": self._ask(nvml.nvmlDeviceGetTotalEccErrors, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
            "processes": None if processes is None else sorted(process.pid for process in processes),
        }

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            if error.value in self._untold:
                return None
            raise CannotList(f"NVML: {error}", "see what nvidia-smi says of the GPU") from error

    def _names(self, bits: int) -> list[str]:
        set_bits = [1 << place for place in range(bits.bit_length()) if bits >> place & 1]
        return sorted({str(NVML_REASONS.get(bit, Throttle.OTHER)) for bit in set_bits})


class Amdsmi:
    """amdsmi's sensors of one GPU, nearly all out of the driver's one table of metrics.

    Args:
        smi: the module `amdsmi`, initialised.
        handle: of the GPU.
    """

    def __init__(self, smi: Any, handle: Any) -> None:
        self.smi, self.handle = smi, handle
        self._residencies: dict[str, int] = {}

    @classmethod
    def open(cls, smi: Any, uuid: str) -> Amdsmi | None:
        """The sensors of a unit; None where amdsmi does not know it."""
        try:
            smi.amdsmi_init()
            handles = smi.amdsmi_get_processor_handles()
            return next((cls(smi, handle) for handle in handles if smi.amdsmi_get_gpu_device_uuid(handle) == uuid), None)
        except smi.AmdSmiException as error:
            raise CannotList(f"amdsmi: {' '.join(str(error).split())}", "repair the driver: amd-smi must list the GPUs") from error

    def fast(self) -> Values:
        """See Sensors."""
        metrics = self._ask(self.smi.amdsmi_get_gpu_metrics_info) or {}
        clocks = [clock for clock in map(_number, metrics.get("current_gfxclks") or []) if clock]  # one a die; 0 where there is none
        return {
            "sm_clock_mhz": min(clocks) if clocks else _number(metrics.get("current_gfxclk")),
            "memory_clock_mhz": _number(metrics.get("current_uclk")),
            "power_w": _first(metrics, "current_socket_power", "average_socket_power"),
            "temperature_c": _first(metrics, "temperature_hotspot", "temperature_edge"),
            "throttled": self._reasons(metrics),
            "utilisation": _number(metrics.get("average_gfx_activity")),
        }

    def slow(self) -> Values:
        """See Sensors."""
        errors = self._ask(self.smi.amdsmi_get_gpu_total_ecc_count)
        processes = self._ask(self.smi.amdsmi_get_gpu_process_list)
        return {
            "ecc_uncorrected": None if errors is None else errors["uncorrectable_count"],
            "processes": None if processes is None else sorted(process["pid"] for process in processes),
        }

    def _ask(self, question: Callable[..., Any]) -> Any:
        try:
            return question(self.handle)
        except self.smi.AmdSmiException as error:
            wrapper = self.smi.amdsmi_wrapper
            untold = (wrapper.AMDSMI_STATUS_NOT_SUPPORTED, wrapper.AMDSMI_STATUS_NOT_YET_IMPLEMENTED, wrapper.AMDSMI_STATUS_NO_PERM)
            if getattr(error, "err_code", None) in untold:
                return None
            raise CannotList(f"amdsmi: {' '.join(str(error).split())}", "see what amd-smi says of the GPU") from error

    def _reasons(self, metrics: Values) -> list[str]:
        counters = {name: metrics[name] for name in RESIDENCIES if isinstance(metrics.get(name), int)}
        grown = {str(RESIDENCIES[name]) for name, count in counters.items() if count > self._residencies.get(name, count)}
        self._residencies = counters
        if not counters and metrics.get("throttle_status") is True:  # older tables say that it throttles, the library not why
            grown.add(str(Throttle.OTHER))
        return sorted(grown)


def _number(value: Any) -> float | None:
    """A figure of amdsmi, which writes "N/A" for what is not told."""
    return float(value) if isinstance(value, int | float) else None


def _first(metrics: Values, *names: str) -> float | None:
    return next((number for name in names if (number := _number(metrics.get(name))) is not None), None)
