"""Faults on purpose in this process, to test how a training recovers.

::

    from holdfast.testing.inject import Fault, inject

    inject(Fault.SEGFAULT, after_s=30.0)  # of this rank, half a minute from now

A script that is not to be changed gets its faults from the environment, as
``KIND@SECONDS:RANK[:CYCLE]``. Python finds the hook for that on its path
(``base/processes/start_hook``)::

    export PYTHONPATH=$(python -m holdfast.testing.inject)
    export HOLDFAST_INJECT="segfault@30:1 lock@60:0:1"
    ft_launcher ... train.py

``holdfast chaos`` draws faults from a seed, and measures how a job recovers from each.
"""

from __future__ import annotations

import ctypes
import enum
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from holdfast.base.processes import start_hook

VARIABLE = "HOLDFAST_INJECT"
"""Environment variable with faults for :func:`from_environment`."""
HOOK = Path(start_hook.FOLDER).resolve()
"""Folder to put on PYTHONPATH."""
EXIT_CODE = 3
"""Of :attr:`Fault.EXIT`."""
_PREFERRED_SIGNAL = 12
"""Above SIGRTMIN; the other signals that holdfast takes are below."""
_OF_A_LAUNCHER = "TORCHELASTIC_RUN_ID"
_FOR_EVER_S = 1 << 30
_GPU_CYCLES = 1 << 62
_MUTEX_BYTES = 64
_LOOK_S = 0.005
_OF_A_SCRIPT = ("runpy", "threading")
"""Modules of the standard library that the interpreter calls for a script, or after it."""


class Fault(enum.Enum):
    """A fault. The value is its name on command lines and in HOLDFAST_INJECT."""

    GPU_ERROR = "gpu-error"
    """A kernel fails: every later call to CUDA of this process does, too."""
    GPU_SLEEP = "gpu-sleep"
    """A kernel that never ends."""
    WORKLOAD_EXC = "workload-exception"
    """:func:`maybe_raise` raises, where the training calls it."""
    ASYNC_EXC = "async-exception"
    """An asynchronous exception in the main thread."""
    SIGNAL_EXC = "exception"
    """A signal to the main thread; its handler raises."""
    EXIT = "exit"
    """The main thread calls ``sys.exit(3)``."""
    OS_ABORT = "abort"
    """``abort(3)``."""
    SEGFAULT = "segfault"
    """A read from address 0."""
    LOCK_GIL = "interpreter-lock"
    """A C call that keeps the interpreter lock for ever: no Python thread runs."""
    LOCK = "lock"
    """The main thread waits for a lock that is never released."""
    SLEEP = "sleep"
    """The main thread sleeps for ever, in a system call."""
    BUSY_LOOP = "busy-loop"
    """The main thread computes for ever."""
    SIGINT = "sigint"
    SIGKILL = "sigkill"
    SIGTERM = "sigterm"
    SIGSTOP = "sigstop"
    NODE = "node"
    """SIGKILL to the launcher of this rank, with which all ranks of its node end."""

    @staticmethod
    def named(text: str) -> Fault:
        """The fault with this value or, in any case, this member's name.

        Raises:
            ValueError: There is none; the text lists all.
        """
        for fault in Fault:
            if text.lower() in (fault.value, fault.name.lower()):
                return fault
        known = ", ".join(fault.value for fault in Fault)
        raise ValueError(f"unknown fault {text!r}; known are {known}")


SIGNALS: Mapping[Fault, int] = {
    Fault.SIGINT: signal.SIGINT,
    Fault.SIGKILL: signal.SIGKILL,
    Fault.SIGTERM: signal.SIGTERM,
    Fault.SIGSTOP: signal.SIGSTOP,
}
"""Those that another process can cause as well."""
ON_GPU = frozenset({Fault.GPU_ERROR, Fault.GPU_SLEEP})
"""Those that need a GPU."""


class InjectedException(RuntimeError):  # noqa: N818 - it is no error of holdfast
    """Raised on purpose."""


def why_not(fault: Fault) -> str | None:
    """Why this process cannot have the fault; ``None``: it can."""
    if fault in ON_GPU and not has_gpu():
        return f"{fault.value} needs a GPU, and torch is not imported or sees none"
    if fault is Fault.NODE and _OF_A_LAUNCHER not in os.environ:
        return f"{fault.value} needs a launcher, and this process is no rank of one"
    return None


def has_gpu() -> bool:
    """The process has imported torch, which sees a GPU."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def inject(
    fault: Fault, after_s: float = 0.0, before: Callable[[], object] | None = None
) -> threading.Thread:
    """Have a fault happen in this process, some seconds from now. Returns at once.

    Args:
        fault: Which one.
        after_s: Seconds.
        before: Called in a thread right before the fault.

    Returns:
        The thread that waits and injects.

    Raises:
        RuntimeError: The fault needs a GPU, and there is none; it happens in the main thread, and
            this is another one, or no real-time signal is free.
    """
    if reason := why_not(fault):
        raise RuntimeError(reason)
    act = _prepare(fault)
    # Thread.start() makes a KeyError of an exception that is raised in it: no fault before its end.
    has_started = threading.Lock()
    has_started.acquire()

    def run() -> None:
        has_started.acquire()
        clock = threading.Event()  # that is never set
        clock.wait(max(0.0, after_s))
        while _is_starting():
            clock.wait(_LOOK_S)
        if before is not None:
            before()
        _say(f"injecting fault {fault.name}")
        act()

    thread = threading.Thread(target=run, name=f"inject-{fault.value}", daemon=True)
    thread.start()
    has_started.release()
    return thread


def strike(fault: Fault) -> None:
    """Have a fault happen now, in this thread: call it in the main thread.

    Raises:
        InjectedException: The fault is SIGNAL_EXC.
        RuntimeError: The fault needs a GPU, and there is none.
        SystemExit: The fault is EXIT.
    """
    if reason := why_not(fault):
        raise RuntimeError(reason)
    if fault in SIGNALS:
        os.kill(os.getpid(), SIGNALS[fault])
    else:
        _ACTS[fault]()


# ---------------------------------------------------------------- a fault where the training asks
_workload_exception: BaseException | None = None


def maybe_raise() -> None:
    """Raise the exception that :attr:`Fault.WORKLOAD_EXC` has left, if there is one.

    Raises:
        InjectedException: There is one; the next call raises nothing.
    """
    global _workload_exception
    error, _workload_exception = _workload_exception, None
    if error is not None:
        raise error


def clear() -> None:
    """Forget the exception that :func:`maybe_raise` would raise."""
    global _workload_exception  # noqa: PLW0603 - one per process
    _workload_exception = None


def _leave_workload_exception() -> None:
    global _workload_exception  # noqa: PLW0603 - one per process
    _workload_exception = InjectedException("injected fault: WORKLOAD_EXC")


# ---------------------------------------------------------------- how each is done
def _prepare(fault: Fault) -> Callable[[], object]:
    """A call for another thread that makes it happen; this thread's part in it is done."""
    if fault in _IN_MAIN:
        return _through_main_thread(fault)
    if fault in ON_GPU:
        device = _torch().cuda.current_device()
        return lambda: _on_device(device, fault)
    return lambda: strike(fault)


def _through_main_thread(fault: Fault) -> Callable[[], object]:
    """A signal to the main thread; its handler has the fault."""
    from holdfast.evidence.dump_signal import free_signal  # noqa: PLC0415 - seldom needed

    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(f"{fault.name} installs a signal handler: inject it in the main thread")
    number = free_signal(_PREFERRED_SIGNAL)
    if not number:
        raise RuntimeError(f"{fault.name} needs a real-time signal, and none is free")

    def handler(signum: int, _frame: object) -> None:
        signal.signal(signum, signal.SIG_DFL)
        strike(fault)

    signal.signal(number, handler)
    return lambda: signal.pthread_kill(_main_thread(), number)


def _is_starting() -> bool:
    """The interpreter is before its script, and swallows exceptions.

    It imports ``site``, looks whether the script is a zip file, decodes its text, or is between
    these (no frame): all code that it calls then is of the standard library.
    """
    frame = sys._current_frames().get(_main_thread())  # noqa: SLF001 - documented
    if frame is None:
        return True
    while frame.f_back is not None:
        frame = frame.f_back
    module = str(frame.f_globals.get("__name__")).partition(".")[0]
    return module in sys.stdlib_module_names and module not in _OF_A_SCRIPT


def _main_thread() -> int:
    return threading.main_thread().ident or 0


def _raise_in_main_thread() -> None:
    set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
    set_exception(ctypes.c_ulong(_main_thread()), ctypes.py_object(InjectedException))


def _raise() -> NoReturn:
    raise InjectedException("injected fault: SIGNAL_EXC")


def _hold_interpreter_lock() -> None:
    libc = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the interpreter lock during the call
    mutex = ctypes.create_string_buffer(_MUTEX_BYTES)  # of zeros: not held
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)  # waits for itself; unlike a sleep, also after a signal


def _wait_for_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _compute() -> NoReturn:
    while True:
        pass


def _torch() -> Any:
    import torch  # noqa: PLC0415 - only faults of a GPU need it

    return torch


def _on_device(device: int, fault: Fault) -> None:
    torch = _torch()
    with torch.cuda.device(device):
        if fault is Fault.GPU_SLEEP:
            from holdfast.base.torch_private import sleep_on_device  # noqa: PLC0415

            sleep_on_device(_GPU_CYCLES)
        else:
            values = torch.zeros(1, device="cuda")
            values[torch.full((1,), 1 << 20, device="cuda", dtype=torch.long)]
        torch.cuda.synchronize()


def _on_this_device(fault: Fault) -> None:
    _on_device(_torch().cuda.current_device(), fault)


_ACTS: Mapping[Fault, Callable[[], object]] = {
    Fault.GPU_ERROR: lambda: _on_this_device(Fault.GPU_ERROR),
    Fault.GPU_SLEEP: lambda: _on_this_device(Fault.GPU_SLEEP),
    Fault.WORKLOAD_EXC: _leave_workload_exception,
    Fault.ASYNC_EXC: _raise_in_main_thread,
    Fault.SIGNAL_EXC: _raise,
    Fault.EXIT: lambda: sys.exit(EXIT_CODE),
    Fault.OS_ABORT: os.abort,
    Fault.SEGFAULT: lambda: ctypes.string_at(0),
    Fault.LOCK_GIL: _hold_interpreter_lock,
    Fault.LOCK: _wait_for_lock,
    Fault.SLEEP: lambda: time.sleep(_FOR_EVER_S),  # noqa: TID251 - it is the fault
    Fault.BUSY_LOOP: _compute,
    Fault.NODE: lambda: os.kill(os.getppid(), signal.SIGKILL),
}
_IN_MAIN = frozenset({Fault.SIGNAL_EXC, Fault.EXIT, Fault.LOCK, Fault.SLEEP, Fault.BUSY_LOOP})


def _say(text: str) -> None:
    rank = os.environ.get("RANK", "?")
    line = f"holdfast: rank {rank} (pid {os.getpid()}): {text}\n"
    os.write(2, line.encode())  # sys.stderr may be held by the thread that is about to hang


# ---------------------------------------------------------------- from the environment
class Planned(NamedTuple):
    """A fault of HOLDFAST_INJECT: ``after_s`` seconds from the start of a rank in a cycle."""

    fault: Fault
    after_s: float
    rank: int
    cycle: int


def parse_plan(text: str) -> list[Planned]:
    """Read ``KIND@SECONDS:RANK[:CYCLE] ...``; the cycle is 0 where it is not given.

    Raises:
        ValueError: A word has another form, or names an unknown fault.
    """
    return [_planned(word) for word in text.replace(",", " ").split()]


def _planned(word: str) -> Planned:
    kind, _, when = word.partition("@")
    seconds, *numbers = when.split(":")
    try:
        after_s, (rank, cycle) = float(seconds), map(int, [*numbers, "0"][:2])
    except ValueError:
        after_s = rank = cycle = -1
    if min(after_s, rank, cycle) < 0 or len(numbers) > 2:
        raise ValueError(
            f"{word!r} is not of the form KIND@SECONDS:RANK or KIND@SECONDS:RANK:CYCLE"
        )
    return Planned(Fault.named(kind), after_s, rank, cycle)


def from_environment(environ: Mapping[str, str] | None = None) -> list[threading.Thread]:
    """Inject the faults that HOLDFAST_INJECT names for this rank and cycle. Returns at once.

    Args:
        environ: ``None``: this process's.

    Returns:
        A thread for each, see :func:`inject`.

    Raises:
        ValueError: HOLDFAST_INJECT cannot be read.
        RuntimeError: See :func:`inject`.
    """
    env = os.environ if environ is None else environ
    rank, cycle = env.get("RANK"), env.get("TORCHELASTIC_RESTART_COUNT", "0")
    return [
        inject(each.fault, each.after_s)
        for each in parse_plan(env.get(VARIABLE, ""))
        if (str(each.rank), str(each.cycle)) == (rank, cycle)
    ]


if __name__ == "__main__":
    sys.stdout.write(f"{HOOK}\n")
