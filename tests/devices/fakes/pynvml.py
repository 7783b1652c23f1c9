"""A machine of two NVIDIA GPUs as pynvml shows it: the names, arguments and kinds of answer are the library's."""

from types import SimpleNamespace

NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_DEPRECATED = 26
NVML_DEVICE_MIG_ENABLE = 1
NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_TEMPERATURE_GPU = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0


class NVMLError(Exception):
    def __init__(self, value):
        self.value = value

    def __str__(self):
        return {15: "GPU is lost", 3: "Not Supported"}.get(self.value, f"NVML Error with code {self.value}")


failing = {}
"""Name of a function -> the code with which it fails."""
gpus = [
    SimpleNamespace(uuid="GPU-aaaa0000", name="NVIDIA H200", memory=150_000_000_000, mig=[0, 0], instances={}, parent=None),
    SimpleNamespace(uuid="GPU-bbbb1111", name="NVIDIA H200", memory=150_000_000_000, mig=[0, 0], instances={}, parent=None),
]
clocks = {NVML_CLOCK_SM: 1980, NVML_CLOCK_MEM: 3201}
application_clock = {"set": 1980, "default": 1980}
modes = {"ecc": [1, 1], "persistence": 1, "limit": 700_000}
reasons = [0]
"""Bits of the throttle reasons, one a sample; the last stays."""
computing = [9, 7]
"""Ids of the processes that compute on every GPU."""
asked = []
"""Name of every function asked of a GPU."""


def _check(name):
    asked.append(name)
    if name in failing:
        raise NVMLError(failing[name])


def divide(index, **instances):
    """Divide a GPU: slot -> UUID of its instance."""
    gpu = gpus[index]
    gpu.mig = [1, 1]
    for slot, uuid in instances.items():
        gpu.instances[int(slot[1:])] = SimpleNamespace(uuid=uuid, name=f"{gpu.name} MIG 1g.18gb", memory=18_000_000_000, parent=gpu)


def nvmlInit():
    _check("nvmlInit")


def nvmlSystemGetDriverVersion():
    return "570.10"


def nvmlDeviceGetCount():
    return len(gpus)


def nvmlDeviceGetHandleByIndex(index):
    _check("nvmlDeviceGetHandleByIndex")
    return gpus[index]


def nvmlDeviceGetHandleByUUID(uuid):
    for found in [*gpus, *(instance for gpu in gpus for instance in gpu.instances.values())]:
        if found.uuid == uuid:
            return found
    raise NVMLError(NVML_ERROR_NOT_FOUND)


def nvmlDeviceGetUUID(handle):
    return handle.uuid.encode()  # older versions give bytes


def nvmlDeviceGetName(handle):
    return handle.name


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(total=handle.memory, free=handle.memory, used=0)


def nvmlDeviceGetMigMode(handle):
    _check("nvmlDeviceGetMigMode")
    return list(handle.mig)


def nvmlDeviceGetMaxMigDeviceCount(handle):
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(handle, index):
    if index not in handle.instances:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return handle.instances[index]


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle):
    return handle.parent


def nvmlDeviceGetAttributes(handle):
    return SimpleNamespace(multiprocessorCount=16, memorySizeMB=18_000)


def nvmlDeviceGetClockInfo(handle, type):
    _check("nvmlDeviceGetClockInfo")
    assert handle in gpus, "an instance has no clock of its own"
    return clocks[type]


def nvmlDeviceGetPowerUsage(handle):
    _check("nvmlDeviceGetPowerUsage")
    return 345_678


def nvmlDeviceGetTemperature(handle, sensor):
    _check("nvmlDeviceGetTemperature")
    return 41


def nvmlDeviceGetCurrentClocksEventReasons(handle):
    _check("nvmlDeviceGetCurrentClocksEventReasons")
    return reasons.pop(0) if len(reasons) > 1 else reasons[0]


def nvmlDeviceGetUtilizationRates(handle):
    _check("nvmlDeviceGetUtilizationRates")
    return SimpleNamespace(gpu=87, memory=12)


def nvmlDeviceGetTotalEccErrors(handle, errorType, counterType):
    _check("nvmlDeviceGetTotalEccErrors")
    return 0


def nvmlDeviceGetComputeRunningProcesses(handle):
    _check("nvmlDeviceGetComputeRunningProcesses")
    return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in computing]


def nvmlSystemGetCudaDriverVersion():
    return 13_000


def nvmlDeviceGetMaxClockInfo(handle, type):
    _check("nvmlDeviceGetMaxClockInfo")
    return {NVML_CLOCK_SM: 1980, NVML_CLOCK_MEM: 3201}[type]


def nvmlDeviceGetApplicationsClock(handle, type):
    _check("nvmlDeviceGetApplicationsClock")
    return application_clock["set"]


def nvmlDeviceGetDefaultApplicationsClock(handle, type):
    _check("nvmlDeviceGetDefaultApplicationsClock")
    return application_clock["default"]


def nvmlDeviceGetEccMode(handle):
    _check("nvmlDeviceGetEccMode")
    return list(modes["ecc"])


def nvmlDeviceGetPersistenceMode(handle):
    _check("nvmlDeviceGetPersistenceMode")
    return modes["persistence"]


def nvmlDeviceGetPowerManagementLimit(handle):
    _check("nvmlDeviceGetPowerManagementLimit")
    return modes["limit"]


def nvmlDeviceGetPowerManagementDefaultLimit(handle):
    _check("nvmlDeviceGetPowerManagementDefaultLimit")
    return 700_000
