"""Run a process only when a processor has nothing else to do (SCHED_IDLE), for a while.

Its requests to disks then have the lowest class as well, unless it has set one. Leaving SCHED_IDLE
needs CAP_SYS_NICE or a limit (``ulimit -e``) that few systems give: ask :func:`can_return` first.
"""

from __future__ import annotations

import os
import resource

_CAP_SYS_NICE = 23
_LIMIT_OF_NICE_0 = 20


def can_return() -> bool:
    """Whether a process may leave SCHED_IDLE, as far as its own status tells.

    In a container with its own users, :func:`restore` may fail all the same.
    False where this process does not have the usual policy, which its children are to have again.
    """
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if soft == resource.RLIM_INFINITY or soft >= _LIMIT_OF_NICE_0 - os.nice(0):
        return True
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    return bool(int(status["CapEff"], 16) >> _CAP_SYS_NICE & 1)


def lower(pid: int) -> None:
    """Give a process that has one thread SCHED_IDLE.

    Raises:
        OSError: It has ended, or the system does not allow it.
    """
    os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def restore(pid: int) -> None:
    """Give all threads of a process the usual policy again.

    Raises:
        OSError: It has ended, or the system does not allow it.
    """
    done: set[str] = set()
    while rest := set(os.listdir(f"/proc/{pid}/task")) - done:  # a thread may have started another
        for thread in rest:
            try:
                os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))
            except ProcessLookupError:
                if int(thread) == pid:
                    raise
        done |= rest
