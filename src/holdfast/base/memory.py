"""Control groups for memory, and how often the kernel killed a process for want of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from holdfast.base.processes import proc

_CGROUPS = "/sys/fs/cgroup"
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
