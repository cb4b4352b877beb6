"""How much memory a new process could have: of the node, and within our control group."""

from __future__ import annotations

import os

_CGROUPS = "/sys/fs/cgroup"
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Limit, use, and the field of memory.stat that says how much of it is given back when asked for:
of version 2 and version 1."""


def available_kib() -> int | None:
    """Memory that is free or is given back when asked for, in KiB; None: nobody can tell.

    The least of what the node has and what the control groups that we are in leave; the kernel
    kills whoever asks for more.
    """
    found = [_of_the_node(), *(_of_a_group(folder) for folder in _groups())]
    return min((kib for kib in found if kib is not None), default=None)


def _of_the_node() -> int | None:
    return _field("/proc/meminfo", "MemAvailable:")


def _of_a_group(folder: str) -> int | None:
    for limit_file, use_file, reclaimable in _FILES:
        limit, use = (_number(f"{folder}/{name}") for name in (limit_file, use_file))
        if limit is not None and use is not None:
            given_back = _field(f"{folder}/memory.stat", reclaimable) or 0
            return max(0, limit - use + given_back) >> 10
    return None


def _groups() -> list[str]:
    """Folders of our control groups for memory and of all above them."""
    try:
        with open("/proc/self/cgroup") as file:
            memberships = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    folders = []
    for _, controllers, path in memberships:
        if controllers and "memory" not in controllers.split(","):
            continue
        root = f"{_CGROUPS}/memory" if controllers else _CGROUPS
        while path not in ("", "/"):
            folders.append(root + path)
            path = os.path.dirname(path)  # noqa: PLW2901 - one step up
        folders.append(root)  # in a container its own group is mounted here
    return folders


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
