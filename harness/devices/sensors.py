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


DEFAULT = "default"
"""What `settings` says of clocks that nobody has set."""
WHOLE = "spx"
"""amdsmi's name of a card that is one device."""


class Sensors(Protocol):
    """What can be asked of one GPU; all raise CannotList when it answers no more."""

    def fast(self) -> Values:
        """Of a `Sample`: clocks, power, temperature, throttled and utilisation."""

    def slow(self) -> Values:
        """Of a `Sample`: ecc_uncorrected, partition and processes."""

    def settings(self) -> Values:
        """What its owner has set, None where it does not tell: sm_clock_max_mhz, memory_clock_max_mhz, clock_setting
        (DEFAULT, or in words), power_limit_w, power_limit_default_w, ecc (whether it is on), persistence (whether the driver
        stays loaded without a client) and newest_runtime (the newest CUDA that the driver serves, `13.0`).
        """


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
        # application clocks are on their way out: newer drivers may lack the call, or refuse it as deprecated
        gone = (nvml.NVML_ERROR_FUNCTION_NOT_FOUND, getattr(nvml, "NVML_ERROR_DEPRECATED", None))
        self._untold = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION, *gone)
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
        mode = self._ask(nvml.nvmlDeviceGetMigMode)
        return {
            "ecc_uncorrected": self._ask(nvml.nvmlDeviceGetTotalEccErrors, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
            "partition": None if mode is None else "mig" if mode[0] == nvml.NVML_DEVICE_MIG_ENABLE else "none",
            "processes": None if processes is None else sorted(process.pid for process in processes),
        }

    def settings(self) -> Values:
        """See Sensors."""
        nvml = self.nvml
        ecc = self._ask(nvml.nvmlDeviceGetEccMode)
        persistence = self._ask(nvml.nvmlDeviceGetPersistenceMode)
        limit, default_limit = self._ask(nvml.nvmlDeviceGetPowerManagementLimit), self._ask(nvml.nvmlDeviceGetPowerManagementDefaultLimit)
        version = nvml.nvmlSystemGetCudaDriverVersion()
        return {
            "sm_clock_max_mhz": self._ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
            "memory_clock_max_mhz": self._ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM),
            "clock_setting": self._clock_setting(),
            "power_limit_w": None if limit is None else limit / 1000,
            "power_limit_default_w": None if default_limit is None else default_limit / 1000,
            "ecc": None if ecc is None else bool(ecc[0]),
            "persistence": None if persistence is None else bool(persistence),
            "newest_runtime": f"{version // 1000}.{version % 1000 // 10}",
        }

    def _clock_setting(self) -> str | None:
        nvml = self.nvml
        clock, default = (
            self._ask(question, nvml.NVML_CLOCK_SM)
            for question in (nvml.nvmlDeviceGetApplicationsClock, nvml.nvmlDeviceGetDefaultApplicationsClock)
        )
        if clock is None or default is None:
            return None
        return DEFAULT if clock == default else f"application clock {clock} MHz, by default {default}"

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
        partition = self._ask(self.smi.amdsmi_get_gpu_compute_partition)
        return {
            "ecc_uncorrected": None if errors is None else errors["uncorrectable_count"],
            "partition": None if partition is None else "none" if partition.lower() == WHOLE else partition.lower(),
            "processes": None if processes is None else sorted(process["pid"] for process in processes),
        }

    def settings(self) -> Values:
        """See Sensors; a power limit is that of the first sensor, the socket's."""
        smi = self.smi
        core, memory = (self._ask(smi.amdsmi_get_clock_info, kind) or {} for kind in (smi.AmdSmiClkType.GFX, smi.AmdSmiClkType.MEM))
        limits = self._ask(smi.amdsmi_get_power_cap_info) or {}
        level = self._ask(smi.amdsmi_get_gpu_perf_level)
        ecc = self._ask(smi.amdsmi_get_gpu_ecc_enabled)
        name = None if level is None else str(level).removeprefix("AMDSMI_DEV_PERF_LEVEL_")
        return {
            "sm_clock_max_mhz": _number(core.get("max_clk")),
            "memory_clock_max_mhz": _number(memory.get("max_clk")),
            "clock_setting": DEFAULT if name == "AUTO" else name and f"performance level {name}, by default AUTO",
            "power_limit_w": _watts(limits.get("power_cap")),
            "power_limit_default_w": _watts(limits.get("default_power_cap")),
            "ecc": bool(ecc) if isinstance(ecc, int) else None,  # a mask of the blocks that have it
            "persistence": None,  # the driver of AMD GPUs is always loaded
            "newest_runtime": None,
        }

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(self.handle, *arguments)
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


def _watts(microwatts: Any) -> float | None:
    """A limit of amdsmi; 0 where there is none."""
    number = _number(microwatts)
    return number / 1e6 if number else None


def _first(metrics: Values, *names: str) -> float | None:
    return next((number for name in names if (number := _number(metrics.get(name))) is not None), None)
