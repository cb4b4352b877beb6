"""Faults on purpose, in this process, some seconds from now: for tests of recovery."""

from __future__ import annotations

import ctypes
import enum
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.host.dump_signal import free_signal
from holdfast.host.rank_log import rank_logger
from nvidia_resiliency_ext._former import ignore
from nvidia_resiliency_ext.inprocess.monitor_thread import async_raise

__all__ = [
    "Fault",
    "InjectedException",
    "clear_workload_exception",
    "dispatch_fault_injection",
    "inject_fault",
    "maybe_raise_workload_exception",
]

_LOGGER = rank_logger("holdfast.compat")
_FOR_EVER_S = 1 << 30
_PREFERRED_SIGNAL = 12
"""Above SIGRTMIN; those of holdfast are below."""
_GPU_CYCLES = 1 << 62


class Fault(enum.IntEnum):
    """What goes wrong."""

    GPU_ERROR = 1
    """A kernel fails: every later call to CUDA of this process does, too."""
    GPU_SLEEP = 2
    """A kernel that never ends."""
    WORKLOAD_EXC = 3
    """:func:`maybe_raise_workload_exception` raises, where the training calls it."""
    ASYNC_EXC = 4
    """An asynchronous exception in the main thread."""
    SIGNAL_EXC = 5
    """A signal to the main thread, whose handler raises."""
    OS_ABORT = 6
    """``abort(3)``."""
    LOCK_GIL = 7
    """A C call that keeps the interpreter lock for ever."""
    SEGFAULT = 8
    """A read from address 0."""
    SIGINT = 9
    SIGKILL = 10
    SIGTERM = 11
    SIGSTOP = 12


_ON_GPU = frozenset({Fault.GPU_ERROR, Fault.GPU_SLEEP})
_SIGNALS = {
    Fault.SIGINT: signal.SIGINT,
    Fault.SIGKILL: signal.SIGKILL,
    Fault.SIGTERM: signal.SIGTERM,
    Fault.SIGSTOP: signal.SIGSTOP,
}


class InjectedException(RuntimeError):  # noqa: N818 - it is no error of ours
    """Raised on purpose."""


_workload_exception: BaseException | None = None


def maybe_raise_workload_exception() -> None:
    """Raise the exception that :attr:`Fault.WORKLOAD_EXC` has left, if there is one.

    Raises:
        InjectedException: There is one; the next call raises nothing.
    """
    global _workload_exception
    error, _workload_exception = _workload_exception, None
    if error is not None:
        raise error


def clear_workload_exception() -> None:
    """Forget the exception that :func:`maybe_raise_workload_exception` would raise."""
    global _workload_exception  # noqa: PLW0603 - one per process
    _workload_exception = None


def dispatch_fault_injection(
    fault: Fault | int | str,
    delay: float = 0.0,
    callback: Callable[[], object] | None = None,
) -> threading.Thread:
    """Have a fault happen in this process, ``delay`` seconds from now. Returns at once.

    Args:
        fault: Which one; also its number or name.
        delay: Seconds.
        callback: Called in a thread right before the fault.

    Returns:
        The thread that waits and injects.

    Raises:
        ValueError, KeyError: There is no such fault.
        RuntimeError: It needs a GPU and there is none, or a signal and none is free.
    """
    what = Fault[fault] if isinstance(fault, str) else Fault(fault)
    inject = _injection(what)

    def run() -> None:
        threading.Event().wait(max(0.0, delay))
        if callback is not None:
            callback()
        _LOGGER.warning(
            "rank %s (pid %d): injecting fault %s", os.environ.get("RANK"), os.getpid(), what.name
        )
        inject()

    thread = threading.Thread(target=run, name=f"inject-{what.name}", daemon=True)
    thread.start()
    return thread


def inject_fault(
    faults: Iterable[Fault | int | str] | None = None,
    num_faults: int | tuple[int, int] = 1,
    delay: float | tuple[float, float] = 0.0,
    seed: int | None = None,
    callback: Callable[[], object] | None = None,
    **others: object,
) -> Fault | None:
    """Inject a fault of several, drawn by a seed, on ranks that are drawn by the same seed.

    All ranks call it with the same arguments, and agree without talking.

    Args:
        faults: To draw from; ``None``: all that this process can have.
        num_faults: On how many ranks of ``WORLD_SIZE``, or the range to draw that from.
        delay: Seconds from now, or the range to draw them from.
        seed: ``None``: 0.
        callback: See :func:`dispatch_fault_injection`.
        **others: Without effect, with one warning each.

    Returns:
        The fault that will happen on this rank; ``None``: none.
    """
    ignore(others, "inject_fault")
    drawn = random.Random(0 if seed is None else seed)  # noqa: S311 - no secret
    kinds = [Fault[each] if isinstance(each, str) else Fault(each) for each in faults or ()]
    kinds = kinds or [each for each in Fault if each not in _ON_GPU or _has_gpu()]
    count = drawn.randint(*num_faults) if isinstance(num_faults, tuple) else num_faults
    rank = int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    plan = {
        unlucky: (
            drawn.choice(kinds),
            drawn.uniform(*delay) if isinstance(delay, tuple) else float(delay),
        )
        for unlucky in drawn.sample(range(world), min(count, world))
    }
    if rank not in plan:
        return None
    fault, delay_s = plan[rank]
    dispatch_fault_injection(fault, delay_s, callback)
    return fault


# ---------------------------------------------------------------- how each is done
def _injection(fault: Fault) -> Callable[[], object]:
    """What makes it happen, in a thread; what is to be prepared in this one is."""
    if fault in _SIGNALS:
        return lambda: os.kill(os.getpid(), _SIGNALS[fault])
    if fault in _ON_GPU:
        return _gpu_fault(fault)
    if fault is Fault.SIGNAL_EXC:
        return _signal_that_raises()
    return {
        Fault.WORKLOAD_EXC: _leave_workload_exception,
        Fault.ASYNC_EXC: lambda: async_raise(_main_thread(), InjectedException),
        Fault.OS_ABORT: os.abort,
        Fault.LOCK_GIL: _lock_gil,
        Fault.SEGFAULT: lambda: ctypes.string_at(0),
    }[fault]


def _main_thread() -> int:
    return threading.main_thread().ident or 0


def _leave_workload_exception() -> None:
    global _workload_exception  # noqa: PLW0603 - one per process
    _workload_exception = InjectedException("injected fault: WORKLOAD_EXC")


def _lock_gil() -> None:
    library = ctypes.PyDLL(None)  # keeps the interpreter lock in its calls
    while True:
        library.sleep(_FOR_EVER_S)


def _signal_that_raises() -> Callable[[], object]:
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("SIGNAL_EXC installs a signal handler: dispatch it in the main thread")
    number = free_signal(_PREFERRED_SIGNAL)
    if not number:
        raise RuntimeError("SIGNAL_EXC needs a real-time signal, and none is free")

    def handler(signum: int, _frame: object) -> None:
        signal.signal(signum, signal.SIG_DFL)
        raise InjectedException("injected fault: SIGNAL_EXC")

    signal.signal(number, handler)
    return lambda: signal.pthread_kill(_main_thread(), number)


def _has_gpu() -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def _gpu_fault(fault: Fault) -> Callable[[], object]:
    import torch  # noqa: PLC0415 - only these faults need it

    from holdfast.torch_edge.torch_private import sleep_on_device  # noqa: PLC0415

    if not torch.cuda.is_available():
        raise RuntimeError(f"{fault.name} needs a GPU, and torch sees none")
    device = torch.cuda.current_device()

    def inject() -> None:
        with torch.cuda.device(device):
            if fault is Fault.GPU_SLEEP:
                sleep_on_device(_GPU_CYCLES)
            else:
                values = torch.zeros(1, device="cuda")
                values[torch.full((1,), 1 << 20, device="cuda", dtype=torch.long)]
            torch.cuda.synchronize()

    return inject
