"""Run a process only when a processor has nothing else to do (SCHED_IDLE), for a while.

Where the kernel groups processes by session (``sched_autogroup_enabled``), SCHED_IDLE counts within
a session alone; there, the group gets nice 19, too (1.5 % of a busy processor). Requests to disks
get the lowest class as well. Leaving SCHED_IDLE needs CAP_SYS_NICE or a limit (``ulimit -e``) that
few systems give: ask :func:`can_return` first.
"""

from __future__ import annotations

import contextlib
import os
import resource

from holdfast.base.processes import proc

_CAP_SYS_ADMIN = 21
_CAP_SYS_NICE = 23
_LIMIT_OF_NICE_0 = 20


def can_return() -> bool:
    """Whether a process may leave SCHED_IDLE, as far as its own status tells.

    In a container with its own users it may be refused even so; see :func:`does_return`.
    False where this process does not have the usual policy, which its children are to have again.
    """
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if soft == resource.RLIM_INFINITY or soft >= _LIMIT_OF_NICE_0 - os.nice(0):
        return True
    return _has(_CAP_SYS_NICE)


def lower(pid: int) -> None:
    """Give a process that has one thread SCHED_IDLE, and its session, if it has its own, nice 19.

    Raises:
        OSError: It has ended, or the system does not allow it.
    """
    os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    if _has(_CAP_SYS_ADMIN):  # without it, one change in 100 ms is allowed, on all of the host
        _set_nice_of_session(pid, 19)


def does_return(pid: int) -> bool:
    """Whether a process with SCHED_IDLE and one thread can leave it, by trying; False: it stays."""
    try:
        restore(pid)
        lower(pid)
    except (PermissionError, BlockingIOError):
        return False
    except OSError:  # it has ended
        pass
    return True


def share(pid: int) -> tuple[float, float, bool] | None:
    """How long a process's first thread ran and waited for a processor, in seconds.

    And whether it runs or waits for one now: that wait is not counted yet. None where the process
    has ended, or the kernel does not count (CONFIG_SCHED_INFO).
    """
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            ran_ns, waited_ns, _ = file.read().split()
    except (OSError, ValueError):
        return None
    found = proc.stat(pid)
    return int(ran_ns) / 1e9, int(waited_ns) / 1e9, found is not None and found.state == "R"


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
    if _has(_CAP_SYS_ADMIN):
        _set_nice_of_session(pid, 0)


def _set_nice_of_session(pid: int, nice: int) -> None:
    if os.getsid(pid) != pid:
        return
    with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/autogroup", "w") as file:
        file.write(str(nice))


def _has(capability: int) -> bool:
    return bool(int(proc.status("self")[b"CapEff"], 16) >> capability & 1)
