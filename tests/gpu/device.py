"""The GPU as ranks of this suite use it, and a stand-in on the CPU that behaves like one.

Ranks name neither ``torch.cuda`` nor NCCL: they use :data:`gpu`. On a machine without a GPU,
``HOLDFAST_GPU=stand-in`` gives them :class:`CpuStandIn`, so that each scenario is really executed:
launchers, limits, health checks, the fake NVML, the reading of logs, and the table.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

_CYCLES_PER_S = 2.0e9
"""Of ``torch.cuda._sleep``: the fastest clock in use, so that no kernel ends too early."""
_GIB = 1 << 30


class CudaDevice:
    """An NVIDIA GPU, with NCCL."""

    backend = "nccl"

    def begin(self) -> None:
        """Make the CUDA context; ranks beyond the number of GPUs share them."""
        number = int(os.environ.get("LOCAL_RANK") or os.environ.get("RANK") or 0)
        torch.cuda.set_device(number % max(1, torch.cuda.device_count()))
        torch.zeros(1, device="cuda").item()

    def tensor(self, *values: float) -> torch.Tensor:
        """On the device."""
        return torch.tensor(values, device="cuda")

    def free_bytes(self) -> int:
        """What the device has free."""
        return int(torch.cuda.mem_get_info()[0])

    def used_mib(self) -> float:
        """What all processes use of the device."""
        free, total = torch.cuda.mem_get_info()
        return (total - free) / (1 << 20)

    def reserved_bytes(self) -> int:
        """What the caching allocator holds."""
        return int(torch.cuda.memory_reserved())

    def allocate(self, n_bytes: int) -> object:
        """Hold memory for as long as the result lives."""
        return torch.empty(n_bytes, dtype=torch.uint8, device="cuda")

    def hang_kernel(self, seconds: float) -> None:
        """Start a kernel that runs for at least so long."""
        cuda: Any = torch.cuda
        cuda._sleep(int(seconds * _CYCLES_PER_S))

    def synchronize(self) -> None:
        """Wait for all kernels."""
        torch.cuda.synchronize()

    def fail_assert(self) -> None:
        """A device-side assert, and what reports it."""
        index = torch.tensor([1 << 20], device="cuda")
        torch.zeros(4, device="cuda")[index].sum().item()

    def access_illegally(self) -> None:
        """Write a terabyte behind a valid address, and what reports it."""
        small = torch.zeros(4, device="cuda")
        pointer = {"shape": (1 << 40,), "typestr": "|u1", "data": (small.data_ptr(), False)}
        lying = SimpleNamespace(__cuda_array_interface__={**pointer, "version": 3, "strides": None})
        torch.as_tensor(lying, device="cuda")[-4096:].fill_(1)
        torch.cuda.synchronize()

    def run_out_of_memory(self) -> None:
        """Ask for more than there is."""
        held = self.allocate(int(torch.cuda.mem_get_info()[1]) + _GIB)
        raise AssertionError(f"more memory than the device has: {held}")

    def side_stream(self) -> Any:
        """To be entered; what is started inside runs beside the rest."""
        cuda: Any = torch.cuda
        return cuda.stream(cuda.Stream())


class CpuStandIn:
    """What a rank sees of a GPU, on the CPU; memory is that of the fake NVML.

    Kernels are instants at which they end; to wait for them blocks in C, where no signal interrupts
    it, as in the driver. After an assert each call fails, also those of ``torch.cuda`` that
    holdfast makes: they are replaced.
    """

    backend = "gloo"

    def __init__(self) -> None:
        self._lost = ""
        self._busy_until = 0.0
        self._mutex = ctypes.create_string_buffer(64)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.pthread_mutex_lock(self._mutex)

    def begin(self) -> None:
        """Replace what holdfast asks of ``torch.cuda``."""
        self._change(lambda gpu: gpu["processes"].append([os.getpid(), 500]))
        cuda: Any = torch.cuda
        cuda.is_initialized = lambda: True
        cuda.current_device = lambda: 0
        cuda.device_count = lambda: 1
        cuda.set_device = lambda _device: None
        cuda.is_current_stream_capturing = lambda: False
        cuda.current_stream = lambda: SimpleNamespace(query=self._query)
        cuda.synchronize = lambda _device=None: self.synchronize()

    def tensor(self, *values: float) -> torch.Tensor:
        self._raise_if_lost()
        return torch.tensor(values)

    def free_bytes(self) -> int:
        return 4 * _GIB

    def used_mib(self) -> float:
        return 500.0

    def reserved_bytes(self) -> int:
        return 2 << 20

    def allocate(self, n_bytes: int) -> object:
        self._raise_if_lost()
        self._change(lambda gpu: gpu["processes"].append([os.getpid(), n_bytes >> 20]))
        return n_bytes

    def hang_kernel(self, seconds: float) -> None:
        self._raise_if_lost()
        self._busy_until = max(self._busy_until, time.time()) + seconds

    def synchronize(self) -> None:
        until = (ctypes.c_long * 2)(int(self._busy_until), int(self._busy_until % 1 * 1e9))
        self._libc.pthread_mutex_timedlock(self._mutex, until)  # it is locked: this always waits
        self._raise_if_lost()

    def fail_assert(self) -> None:
        self._lost = "CUDA error: device-side assert triggered"
        self._raise_if_lost()

    def access_illegally(self) -> None:
        self._lost = "CUDA error: an illegal memory access was encountered"
        self._raise_if_lost()

    def run_out_of_memory(self) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5.00 GiB.")

    def side_stream(self) -> Any:
        return contextlib.nullcontext()

    def _query(self) -> bool:
        self._raise_if_lost()
        return time.time() >= self._busy_until

    def _raise_if_lost(self) -> None:
        if self._lost:
            raise RuntimeError(f"{self._lost}\nnot really: this is a stand-in on the CPU")

    def _change(self, change: Any) -> None:
        path = Path(os.environ["FAKE_NVML"])
        with path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = json.loads(path.read_text())
            change(state["gpus"][0])
            new = path.with_name(f"{path.name}.new")
            new.write_text(json.dumps(state))
            new.rename(path)


gpu: CudaDevice | CpuStandIn = (
    CpuStandIn() if os.environ.get("HOLDFAST_GPU") == "stand-in" else CudaDevice()
)
"""Of this process; nothing is initialised before :meth:`CudaDevice.begin`."""
