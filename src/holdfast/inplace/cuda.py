"""CUDA as far as it is in use already: nothing here imports torch or initialises a device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any


def cuda_in_use() -> Any:
    """``torch.cuda`` where this process has initialised it, else ``None``."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def own_device() -> int:
    """``LOCAL_RANK`` where that is a device this process can see, else the current device.

    CUDA is in use. A process that sees only its own device has number 0 for it, whatever its local
    rank.
    """
    cuda = cuda_in_use()
    local_rank = os.environ.get("LOCAL_RANK", "")
    if local_rank.isdecimal() and int(local_rank) < cuda.device_count():
        return int(local_rank)
    return int(cuda.current_device())


def context_problem() -> str | None:
    """Why no call to the device works any more in this process; ``None``: it may work.

    A device-side assert or an illegal access ends the CUDA context: each later call fails with the
    same error, until the process ends. Waits for nothing: kernels that still run are no error. An
    error that does not stay (memory that could not be had) is gone when it was reported once.
    """
    cuda = cuda_in_use()
    if cuda is None:
        return None
    said = ""
    for _ in range(2):
        try:
            if cuda.is_current_stream_capturing():
                return None  # a query is an error then, and says nothing about the context
            cuda.current_stream().query()
        except RuntimeError as error:
            said = str(error).strip().partition("\n")[0] or repr(error)
        else:
            return None
    return said


def on_current_device(function: Callable[[], object]) -> Callable[[], object]:
    """``function`` for another thread, which would otherwise have device 0 as the current one."""
    cuda = cuda_in_use()
    if cuda is None:
        return function
    device = cuda.current_device()

    def call() -> object:
        cuda.set_device(device)
        return function()

    return call
