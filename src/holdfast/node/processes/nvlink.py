"""Which NVLink fabric the GPUs of this node are in, asked of the driver's own library (NVML).

Asked in a process of its own: a driver that hangs does not hang the launcher, and nothing of it
stays there. Needs no package.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from holdfast.base.bounded import output_within

LIMIT_S = 10.0
"""How long the driver may take; without its persistence daemon it wakes the GPUs first."""
_LIBRARY = "libnvidia-ml.so.1"
_ROOT = str(Path(__file__).resolve().parents[3])
_COMPLETED = 3
"""``NVML_GPU_FABRIC_STATE_COMPLETED``"""
_STATES = ("not supported", "not started", "in progress")


class FabricUnknownError(LookupError):
    """The GPUs are in no NVLink fabric, or it cannot be found out; the text says which and why."""


class _FabricInfo(ctypes.Structure):
    """``nvmlGpuFabricInfo_t``; https://docs.nvidia.com/deploy/nvml-api has its fields."""

    _fields_ = (
        ("cluster_uuid", ctypes.c_ubyte * 16),
        ("status", ctypes.c_int),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
        ("_room", ctypes.c_ubyte * 64),
    )


def fabric(library: str = _LIBRARY, limit_s: float = LIMIT_S) -> str:
    """Name of the fabric that all GPUs of this node are in: ``<cluster UUID>.<clique>``.

    Raises:
        FabricUnknownError: There is none, it is not one, or the driver does not say.
    """
    boot = (
        f"import sys; sys.path.append({_ROOT!r}); "
        f"from holdfast.node.processes import nvlink; nvlink.print_fabrics({library!r})"
    )
    try:
        output, why_not = output_within(limit_s, [sys.executable, "-I", "-c", boot], os.environ)
    except TimeoutError:
        raise FabricUnknownError(f"the NVIDIA driver did not answer for {limit_s:g} s") from None
    except OSError as error:
        raise FabricUnknownError(f"no process to ask the driver from: {error}") from error
    if why_not is not None:
        raise FabricUnknownError(f"asking the NVIDIA driver: {why_not}")
    names = sorted(set(output.decode().split()))
    if len(names) != 1:
        raise FabricUnknownError(f"its GPUs are in {len(names)} NVLink fabrics: {', '.join(names)}")
    return names[0]


def print_fabrics(library: str) -> None:
    """In the process that asks: print the names, or end with the reason why there are none."""
    try:
        names = _ask(library)
    except (OSError, AttributeError, FabricUnknownError) as error:
        sys.exit(str(error))
    sys.stdout.write("\n".join(names))


def _ask(library: str) -> list[str]:
    nvml = ctypes.CDLL(library)
    _check(nvml.nvmlInit_v2(), "nvmlInit")
    count = ctypes.c_uint()
    _check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount")
    found = []
    for index in range(count.value):
        device, info = ctypes.c_void_p(), _FabricInfo()
        _check(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)), f"GPU {index}")
        _check(nvml.nvmlDeviceGetGpuFabricInfo(device, ctypes.byref(info)), f"fabric of {index}")
        found.append(_name(index, info))
    if not found:
        raise FabricUnknownError("the NVIDIA driver knows no GPU")
    return found


def _name(gpu: int, info: _FabricInfo) -> str:
    if info.state != _COMPLETED:
        state = _STATES[info.state] if info.state < len(_STATES) else str(info.state)
        raise FabricUnknownError(f"NVLink fabric of GPU {gpu}: {state}")
    _check(info.status, f"NVLink fabric of GPU {gpu}")
    uuid = bytes(info.cluster_uuid)
    if not any(uuid):
        raise FabricUnknownError(f"GPU {gpu} is in no NVLink fabric of several nodes")
    digits = uuid.hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return f"{'-'.join(parts)}.{info.clique}"


def _check(code: int, call: str) -> None:
    if code:
        raise FabricUnknownError(f"NVML says {code} ({call})")
