"""Who is ended when memory runs out, and how the kernel says that it gets short."""

from __future__ import annotations

import contextlib
import os

from holdfast.base import memory
from holdfast.base.memory import field, number

_STALLED_US = 200_000
_WINDOW_US = 2_000_000
_PRESSURE = "/proc/pressure/memory"


def why_score_decides_nothing() -> str | None:
    """Why an out-of-memory kill may strike another than the process with the highest OOM score.

    None: a process with the highest ``oom_score_adj``, started by this one, is ended first.
    """
    if (score := number("/proc/self/oom_score_adj")) is not None and score > 0:
        return f"ranks have oom_score_adj {score}: a large one may score as high as any process"
    if memory.commit_is_limited():
        return "vm.overcommit_memory is 2: allocations of ranks fail instead"
    for folder in memory.groups():
        if number(f"{folder}/memory.oom.group") == 1:
            return f"{folder}/memory.oom.group is 1: the kernel kills the whole control group"
        if field(f"{folder}/memory.oom_control", "oom_kill_disable") == 1:
            return f"{folder}/memory.oom_control: the kernel stops all processes instead"
    return None


def unshared_kib(pid: int) -> int:
    """Memory of a process that it shares with no file and no other process, in KiB; 0: it ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = (int(word) for word in file.read().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * (os.sysconf("SC_PAGESIZE") >> 10)


def pressure_triggers() -> list[int]:
    """Have the kernel report when processes wait for memory (PSI), as far as this system allows.

    Without CAP_SYS_RESOURCE, kernels before 6.5 refuse triggers, and later ones take windows of
    2 s only.

    Returns:
        Descriptors that are ready, for EPOLLPRI, when processes waited for memory more than 0.2 s
        within 2 s: all of the host's at once, or any of this process's control group (version 2).
        The caller closes them, which takes the kernel 11 to 16 ms each.
    """
    own = next(iter(memory.groups()), None)
    paths = [(_PRESSURE, "full"), *([(f"{own}/memory.pressure", "some")] if own else [])]
    found = []
    for path, kind in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(descriptor, f"{kind} {_STALLED_US} {_WINDOW_US}\0".encode())
            except OSError:
                os.close(descriptor)
                raise
            found.append(descriptor)
    return found
