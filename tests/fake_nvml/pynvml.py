"""A stand-in for ``pynvml`` (nvidia-ml-py): GPUs that are described by a JSON file.

Put this folder first on ``PYTHONPATH`` and the path of the file into ``FAKE_NVML``. The file is
read at each call, so that a test changes what a running process sees: write another file, and
rename it to that name. Without ``FAKE_NVML``, or without the file, there is no driver library.

    {"driver": "570.86.10",             # default
     "init_error": 9,                   # NVML_ERROR_*: nvmlInit fails with it
     "gpus": [{                         # all keys have defaults
        "uuid": "GPU-0000...", "name": "NVIDIA H100", "pci": "00000000:1B:00.0",
        "used_mib": 4, "total_mib": 81559, "reserved_mib": 551,
        "processes": [[4711, 1024]],    # pid, MiB: counted as long as the process is alive
        "recovery_action": 0,           # null: the field is not supported
        "ecc_uncorrected": 0,           # null: no ECC
        "remapped_rows": [0, 0, 0, 0],  # corrected, uncorrected, pending, failed; null: none
        "retired_pending": null,        # 0 or 1 where pages are retired instead
        "nvlinks": [1, 1],              # active or not
        "xids": [13, 79],               # those added after it was registered for are told, once
        "mig": [{"uuid": "MIG-...", "used_mib": 1}],
        "error": 15,                    # NVML_ERROR_*: of every call, its handle included
        "errors": {"nvmlDeviceGetMemoryInfo": 3},  # of single calls
        "hangs_s": {"nvmlDeviceGetFieldValues": 60}  # of single calls: how long they do
     }]}
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

NVML_SUCCESS = 0
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_TIMEOUT = 10
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_RESET_REQUIRED = 16
NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
NVML_ERROR_UNKNOWN = 999

NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_NVLINK_MAX_LINKS = 36
nvmlMemory_v2 = 0x02000028
nvmlEventTypeXidCriticalError = 0x8

_TEXTS = {
    NVML_ERROR_UNINITIALIZED: "Uninitialized",
    NVML_ERROR_INVALID_ARGUMENT: "Invalid Argument",
    NVML_ERROR_NOT_SUPPORTED: "Not Supported",
    NVML_ERROR_NO_PERMISSION: "Insufficient Permissions",
    NVML_ERROR_NOT_FOUND: "Not Found",
    NVML_ERROR_DRIVER_NOT_LOADED: "Driver Not Loaded",
    NVML_ERROR_TIMEOUT: "Timeout",
    NVML_ERROR_LIBRARY_NOT_FOUND: "NVML Shared Library Not Found",
    NVML_ERROR_FUNCTION_NOT_FOUND: "Function Not Found",
    NVML_ERROR_GPU_IS_LOST: "GPU is lost",
    NVML_ERROR_RESET_REQUIRED: "GPU requires restart",
    NVML_ERROR_LIB_RM_VERSION_MISMATCH: "RM has detected an NVML/RM version mismatch.",
    NVML_ERROR_UNKNOWN: "Unknown Error",
}
_MIB = 1 << 20
_is_initialised = False


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value

    def __str__(self):
        return _TEXTS.get(self.value, f"NVML Error with code {self.value}")


class _Handle:
    """Of a GPU, or of one of its MIG instances; for ctypes a pointer, as the real one is."""

    def __init__(self, index, instance=None):
        self.index, self.instance = index, instance
        self._as_parameter_ = 0x1000 * (index + 1) + (0 if instance is None else instance + 1)


def _state():
    try:
        return json.loads(Path(os.environ["FAKE_NVML"]).read_text())
    except (KeyError, FileNotFoundError):
        raise NVMLError(NVML_ERROR_LIBRARY_NOT_FOUND) from None


def _gpus():
    if not _is_initialised:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    return _state()["gpus"]


def _gpu(handle, function):
    """What is known about it; raises what this call of it raises."""
    gpus = _gpus()
    if handle.index >= len(gpus):
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    gpu = gpus[handle.index]
    time.sleep(gpu.get("hangs_s", {}).get(function, 0.0))
    error = gpu.get("error") or gpu.get("errors", {}).get(function)
    if error:
        raise NVMLError(error)
    return gpu


def _told(value):
    if value is None:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return value


def nvmlInit():
    global _is_initialised
    error = _state().get("init_error")
    if error:
        raise NVMLError(error)
    _is_initialised = True


def nvmlShutdown():
    global _is_initialised
    _is_initialised = False


def nvmlSystemGetDriverVersion():
    _gpus()
    return _state().get("driver", "570.86.10")


def nvmlDeviceGetCount():
    return len(_gpus())


def nvmlDeviceGetHandleByIndex(index):
    if not 0 <= index < len(_gpus()):
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    handle = _Handle(index)
    _gpu(handle, "nvmlDeviceGetHandleByIndex")
    return handle


def nvmlDeviceGetHandleByUUID(uuid):
    for index, gpu in enumerate(_gpus()):
        handle = _Handle(index)
        if gpu.get("error"):
            continue
        if _uuid(index, gpu) == uuid:
            return handle
        for number, instance in enumerate(gpu.get("mig", [])):
            if instance["uuid"] == uuid:
                return _Handle(index, number)
    raise NVMLError(NVML_ERROR_NOT_FOUND)


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(migDevice):
    if migDevice.instance is None:
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return _Handle(migDevice.index)


def nvmlDeviceGetIndex(handle):
    _gpu(handle, "nvmlDeviceGetIndex")
    return handle.index


def _uuid(index, gpu):
    return gpu.get("uuid", f"GPU-{index:08x}-0000-0000-0000-000000000000")


def nvmlDeviceGetUUID(handle):
    gpu = _gpu(handle, "nvmlDeviceGetUUID")
    if handle.instance is not None:
        return gpu["mig"][handle.instance]["uuid"]
    return _uuid(handle.index, gpu)


def nvmlDeviceGetName(handle):
    return _gpu(handle, "nvmlDeviceGetName").get("name", "NVIDIA H100")


def nvmlDeviceGetPciInfo(handle):
    gpu = _gpu(handle, "nvmlDeviceGetPciInfo")
    address = gpu.get("pci", f"00000000:{0x10 + handle.index:02X}:00.0")
    return SimpleNamespace(busId=address.encode())


def nvmlDeviceGetMemoryInfo(handle, version=None):
    gpu = _gpu(handle, "nvmlDeviceGetMemoryInfo")
    whole = gpu if handle.instance is None else gpu["mig"][handle.instance]
    used = whole.get("used_mib", 4) + sum(mib for pid, mib in _alive(whole))
    total, reserved = whole.get("total_mib", 81559), whole.get("reserved_mib", 551)
    if version is None:  # as drivers since 510 tell: with their own part
        used += reserved
    elif version != nvmlMemory_v2:
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return SimpleNamespace(
        total=total * _MIB, reserved=reserved * _MIB, used=used * _MIB, free=(total - used) * _MIB
    )


def nvmlDeviceGetComputeRunningProcesses(handle):
    gpu = _gpu(handle, "nvmlDeviceGetComputeRunningProcesses")
    whole = gpu if handle.instance is None else gpu["mig"][handle.instance]
    return [SimpleNamespace(pid=pid, usedGpuMemory=mib * _MIB) for pid, mib in _alive(whole)]


def _alive(whole):
    return [entry for entry in whole.get("processes", []) if _is_alive(entry[0])]


def _is_alive(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return text.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def nvmlDeviceGetFieldValues(handle, fieldIds):
    gpu = _gpu(handle, "nvmlDeviceGetFieldValues")
    values = []
    for number in fieldIds:
        known = number == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        value = gpu.get("recovery_action", 0) if known else None
        code = NVML_SUCCESS if value is not None else NVML_ERROR_NOT_SUPPORTED
        union = SimpleNamespace(uiVal=value or 0)
        values.append(SimpleNamespace(fieldId=number, nvmlReturn=code, value=union))
    return values


def nvmlDeviceGetTotalEccErrors(handle, errorType, counterType):
    gpu = _gpu(handle, "nvmlDeviceGetTotalEccErrors")
    if (errorType, counterType) != (NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC):
        return 0
    return _told(gpu.get("ecc_uncorrected", 0))


def nvmlDeviceGetRemappedRows(device):
    gpu = _gpu(device, "nvmlDeviceGetRemappedRows")
    return tuple(_told(gpu.get("remapped_rows", [0, 0, 0, 0])))


def nvmlDeviceGetRetiredPagesPendingStatus(device):
    gpu = _gpu(device, "nvmlDeviceGetRetiredPagesPendingStatus")
    return _told(gpu.get("retired_pending"))


def nvmlDeviceGetNvLinkState(device, link):
    gpu = _gpu(device, "nvmlDeviceGetNvLinkState")
    links = gpu.get("nvlinks", [])
    if link >= len(links):
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return links[link]


def nvmlEventSetCreate():
    _gpus()
    return {}  # how many events of each GPU have been told


def nvmlDeviceRegisterEvents(handle, eventTypes, eventSet):
    gpu = _gpu(handle, "nvmlDeviceRegisterEvents")
    if eventTypes != nvmlEventTypeXidCriticalError or handle.instance is not None:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    eventSet[handle.index] = len(gpu.get("xids", []))


def nvmlEventSetWait_v2(eventSet, timeoutms):
    gpus = _gpus()
    for index, n_told in eventSet.items():
        xids = gpus[index].get("xids", []) if index < len(gpus) else []
        if n_told < len(xids):
            eventSet[index] += 1
            return SimpleNamespace(
                device=_Handle(index),
                eventType=nvmlEventTypeXidCriticalError,
                eventData=xids[n_told],
            )
    raise NVMLError(NVML_ERROR_TIMEOUT)
