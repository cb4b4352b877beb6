"""How much memory a new process could have, and how often the kernel killed one for want of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from holdfast.base.processes import proc

_CGROUPS = "/sys/fs/cgroup"
_FILES = (
    (("memory.max", "memory.high"), "memory.current", "inactive_file"),
    (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
)
"""Limits, use, and the field of memory.stat that says how much of it is given back when asked for:
of version 2 and version 1. Above ``memory.high`` processes are slowed down."""
_COMMIT_IS_LIMITED = 2
"""In /proc/sys/vm/overcommit_memory: an allocation beyond the limit fails, and nothing is ended."""
CGROUP = "cgroup"
HOST = "host"
_STALLED_US = 200_000
_WINDOW_US = 2_000_000
_PRESSURE = "/proc/pressure/memory"


def available_kib() -> int | None:
    """Memory that is free or is given back when asked for, in KiB; None: not known.

    The least of: the node's, the rest of its commit limit, and those of the control groups that
    this process is in leave. With more, the kernel ends a process, or allocations fail.
    """
    found = [_of_the_node(), _of_the_commit_limit(), *(_of_a_group(each) for each in groups())]
    return min((kib for kib in found if kib is not None), default=None)


def why_score_decides_nothing() -> str | None:
    """Why an out-of-memory kill may strike another than the process with the highest OOM score.

    None: a process with the highest ``oom_score_adj``, started by this one, is ended first.
    """
    if (score := _number("/proc/self/oom_score_adj")) is not None and score > 0:
        return f"ranks have oom_score_adj {score}: a large one may score as high as any process"
    if _commit_is_limited():
        return "vm.overcommit_memory is 2: allocations of ranks fail instead"
    for folder in groups():
        if _number(f"{folder}/memory.oom.group") == 1:
            return f"{folder}/memory.oom.group is 1: the kernel ends the whole control group"
        if _field(f"{folder}/memory.oom_control", "oom_kill_disable") == 1:
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


def _of_the_node() -> int | None:
    return _field("/proc/meminfo", "MemAvailable:")


def _commit_is_limited() -> bool:
    return _number("/proc/sys/vm/overcommit_memory") == _COMMIT_IS_LIMITED


def _of_the_commit_limit() -> int | None:
    if not _commit_is_limited():
        return None
    limit = _field("/proc/meminfo", "CommitLimit:")
    use = _field("/proc/meminfo", "Committed_AS:")
    return None if limit is None or use is None else max(0, limit - use)


def _of_a_group(folder: str) -> int | None:
    for limit_files, use_file, reclaimable in _FILES:
        limits = [_number(f"{folder}/{name}") for name in limit_files]
        limit = min((each for each in limits if each is not None), default=None)
        use = _number(f"{folder}/{use_file}")
        if limit is not None and use is not None:
            given_back = _field(f"{folder}/memory.stat", reclaimable) or 0
            return max(0, limit - use + given_back) >> 10
    return None


def groups() -> list[str]:
    """Folders of this process's control groups for memory and of all above them, innermost first.

    Of both versions, whether or not they are there.
    """
    folders = []
    for controllers, path in _memberships():
        root = f"{_CGROUPS}/memory" if controllers else _CGROUPS
        while path not in ("", "/"):
            folders.append(root + path)
            path = os.path.dirname(path)  # noqa: PLW2901 - one step up
        folders.append(root)  # in a container its own group is mounted here
    return folders


def oom_kills() -> dict[str, int]:
    """Processes killed so far, per scope: this cgroup (version 2 or 1) and the whole host.

    Counters to compare, not events. A scope that cannot be read is not there.
    """
    found = {
        CGROUP: next((n for path in _event_files() if (n := _kills(path)) is not None), None),
        HOST: _kills("/proc/vmstat"),
    }
    return {scope: n for scope, n in found.items() if n is not None}


def oom_since(before: dict[str, int]) -> list[str]:
    """Scopes with more kills than ``before``, the closest first."""
    return [scope for scope, kills in oom_kills().items() if kills > before.get(scope, 0)]


def pressure_triggers() -> list[int]:
    """Have the kernel report when processes wait for memory (PSI), as far as this system allows.

    Without CAP_SYS_RESOURCE, kernels before 6.5 refuse triggers, and later ones take windows of
    2 s only.

    Returns:
        Descriptors that are ready, for EPOLLPRI, when processes waited for memory more than 0.2 s
        within 2 s: all of the host's at once, or any of this process's control group (version 2).
        The caller closes them, which takes the kernel 11 to 16 ms each.
    """
    own = next(iter(groups()), None)
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


def _event_files() -> Iterator[str]:
    for controllers, path in _memberships():
        if controllers:
            yield f"{_CGROUPS}/memory{path}/memory.oom_control"
        else:
            yield f"{_CGROUPS}{path}/memory.events"
            yield f"{_CGROUPS}/unified{path}/memory.events"


def _kills(path: str) -> int | None:
    return _field(path, "oom_kill")


def _memberships() -> list[tuple[str, str]]:
    """Controllers and path of this process's memory cgroups; version 2 names no controllers."""
    return [
        (controllers, path)
        for controllers, path in proc.cgroups(os.getpid()).items()
        if not controllers or "memory" in controllers.split(",")
    ]


def _field(path: str, name: str) -> int | None:
    try:
        with open(path) as file:
            for line in file:
                words = line.split()
                if words[0] == name:
                    return int(words[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def _number(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):  # "max": no limit
        return None
