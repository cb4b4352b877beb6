"""The GPU and its processes, as this suite sees them from outside. Makes no CUDA context.

Nothing here changes a setting of the GPU: no reset, no mode, no clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from holdfast.health import gpu_memory, nvml

ROOT = Path(__file__).resolve().parents[2]
MODES = ("cuda", "stand-in")
_NODES = ("/dev/nvidiactl", "/dev/dxg")
_PROBE_S = 90.0
_PROBE = """
import json, torch
facts = {"torch": torch.__version__, "cuda": torch.version.cuda}
if torch.cuda.is_available():
    facts["gpu"] = torch.cuda.get_device_name(0)
    facts["n_gpus"] = torch.cuda.device_count()
    facts["compute_capability"] = "%d.%d" % torch.cuda.get_device_capability(0)
    free, total = torch.cuda.mem_get_info(0)
    facts["free_mib"], facts["total_mib"] = free >> 20, total >> 20
    try:
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    except Exception as error:
        facts["nccl"] = repr(error)
print(json.dumps(facts))
"""


class NoGpuError(Exception):
    """No GPU can be used here; the text says why."""


def mode() -> str:
    """``HOLDFAST_GPU``: ``cuda``, ``stand-in``; empty: nobody wants this suite."""
    return os.environ.get("HOLDFAST_GPU", "")


def is_stand_in() -> bool:
    """Ranks run on the CPU, and NVML is the fake."""
    return mode() == "stand-in"


def facts() -> dict[str, Any]:
    """Versions and sizes, asked of torch in a child process.

    Raises:
        NoGpuError: There is none, or torch cannot use it.
    """
    if is_stand_in():
        return {"gpu": "CPU stand-in", "is_stand_in": True, "n_gpus": 1}
    if not any(map(os.path.exists, _NODES)):
        raise NoGpuError(f"no NVIDIA driver here: none of {', '.join(_NODES)}")
    command = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoGpuError(f"torch did not answer within {_PROBE_S:g} s") from None
    if done.returncode:
        raise NoGpuError(f"torch fails: {(done.stderr.strip() or 'no word').splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "gpu" not in found:
        raise NoGpuError(f"torch {found['torch']} (CUDA {found['cuda']}) sees no GPU")
    try:
        found["driver"] = nvml.load().driver_version()[1]
    except nvml.NvmlError as error:
        found["driver"] = f"unknown ({error})"
    return found


def n_gpus() -> int:
    """How many GPUs ranks see."""
    try:
        return len(nvml.load().visible(os.environ.get("CUDA_VISIBLE_DEVICES")))
    except nvml.NvmlError:
        return 1


def used_mib() -> float:
    """In use on the first GPU that ranks see, without the driver's own part."""
    used = gpu_memory.used_mib(os.environ.get("CUDA_VISIBLE_DEVICES"), 1)
    if not used:
        raise RuntimeError("NVML does not tell the memory in use: is nvidia-ml-py installed?")
    return next(iter(used.values()))


def holders() -> set[int]:
    """Processes that the driver lists as having a context; in a container perhaps none."""
    return set(gpu_memory.holders(os.environ.get("CUDA_VISIBLE_DEVICES"), 1))


def listed_by_smi() -> str:
    """Processes with a context, as nvidia-smi lists them; reads, and sets nothing."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not told: {error}"
    return "; ".join((done.stdout or done.stderr).split("\n")).strip("; ") or "none"


def device_files(pid: int) -> dict[str, int]:
    """Which of the driver's device files a process has open, and how often."""
    counts: dict[str, int] = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith(("/dev/nvidia", "/dev/dxg")):
            counts[target] = counts.get(target, 0) + 1
    return counts


def has_context(pid: int) -> bool:
    """The process has initialised CUDA: it is listed, or has the driver's memory file open."""
    return pid in holders() or any("uvm" in file for file in device_files(pid))


def environment() -> dict[str, str]:
    """What a child process of the suite needs to find holdfast, and this package."""
    given = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path.startswith("/")]
    paths = [str(ROOT / "src"), str(ROOT), *given]
    return {"PYTHONPATH": ":".join(dict.fromkeys(paths)), "OMP_NUM_THREADS": "1"}
