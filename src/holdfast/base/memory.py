"""How much memory processes could have, and how often the kernel killed one for want of it."""

from __future__ import annotations

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


def ran_out(before: dict[str, int]) -> bool:
    """Whether a process was killed for want of memory: of this cgroup, where that is counted."""
    return (CGROUP if CGROUP in before else HOST) in oom_since(before)


def _event_files() -> Iterator[str]:
    for controllers, path in _memberships():
        if controllers:
            yield f"{_CGROUPS}/memory{path}/memory.oom_control"
        else:
            yield f"{_CGROUPS}{path}/memory.events"
            yield f"{_CGROUPS}/unified{path}/memory.events"


def _kills(path: str) -> int | None:
    return field(path, "oom_kill")


def _memberships() -> list[tuple[str, str]]:
    """Controllers and path of this process's memory cgroups; version 2 names no controllers."""
    return [
        (controllers, path)
        for controllers, path in proc.cgroups(os.getpid()).items()
        if not controllers or "memory" in controllers.split(",")
    ]


def field(path: str, name: str) -> int | None:
    """A number of a file with a name and a number per line; None: it is not there."""
    try:
        with open(path) as file:
            for line in file:
                words = line.split()
                if words[0] == name:
                    return int(words[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def number(path: str) -> int | None:
    """The number that a file holds; None: it is not there, or is ``max``."""
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def available_kib() -> int | None:
    """Memory that is free or is given back when asked for, in KiB; None: not known.

    The least of: the node's, the rest of its commit limit, and those of the control groups that
    this process is in leave. With more, the kernel ends a process, or allocations fail.
    """
    found = [
        _of_the_node(),
        _of_the_commit_limit(),
        *(_of_a_group(each) for each in groups()),
    ]
    return min((kib for kib in found if kib is not None), default=None)


def _of_the_node() -> int | None:
    return field("/proc/meminfo", "MemAvailable:")


def commit_is_limited() -> bool:
    """Whether allocations beyond a limit fail."""
    return number("/proc/sys/vm/overcommit_memory") == _COMMIT_IS_LIMITED


def _of_the_commit_limit() -> int | None:
    if not commit_is_limited():
        return None
    limit = field("/proc/meminfo", "CommitLimit:")
    use = field("/proc/meminfo", "Committed_AS:")
    return None if limit is None or use is None else max(0, limit - use)


def _of_a_group(folder: str) -> int | None:
    for limit_files, use_file, reclaimable in _FILES:
        limits = [number(f"{folder}/{name}") for name in limit_files]
        limit = min((each for each in limits if each is not None), default=None)
        use = number(f"{folder}/{use_file}")
        if limit is not None and use is not None:
            given_back = field(f"{folder}/memory.stat", reclaimable) or 0
            return max(0, limit - use + given_back) >> 10
    return None
