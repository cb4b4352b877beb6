"""How often the kernel killed a process for want of memory: counters to compare, not events."""

from __future__ import annotations

CGROUP = "cgroup"
HOST = "host"


def oom_kills() -> dict[str, int]:
    """Kills so far, per scope: our cgroup (version 2 or 1) and the whole host.

    A scope that cannot be read is not there.
    """
    counts = {}
    for path in _cgroup_files():
        if (count := _counter(path)) is not None:
            counts[CGROUP] = count
            break
    if (count := _counter("/proc/vmstat")) is not None:
        counts[HOST] = count
    return counts


def since(before: dict[str, int]) -> list[str]:
    """Scopes with more kills than ``before``, the closest first."""
    now = oom_kills()
    return [scope for scope in (CGROUP, HOST) if now.get(scope, 0) > before.get(scope, 0)]


def _cgroup_files() -> list[str]:
    files = []
    try:
        with open("/proc/self/cgroup") as file:
            memberships = file.read().splitlines()
    except OSError:
        return []
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if not controllers:
            files.append(f"/sys/fs/cgroup{path}/memory.events")
            files.append(f"/sys/fs/cgroup/unified{path}/memory.events")
        elif "memory" in controllers.split(","):
            files.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
    return files


def _counter(path: str) -> int | None:
    try:
        with open(path) as file:
            for line in file:
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    except (OSError, ValueError):
        pass
    return None
