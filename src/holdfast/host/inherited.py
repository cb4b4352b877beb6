"""What a process has from its parent at birth and keeps: to be compared, not to be understood."""

from __future__ import annotations

import os
import resource

_LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


def inherited() -> dict[str, str]:
    """By name, what a process that we start now would have from us."""
    found = {name: str(resource.getrlimit(number)) for name, number in _LIMITS.items()}
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    for name in ("Umask", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Mems_allowed"):
        found[name] = status.get(name, "")
    place = os.stat(".")
    found["working directory"] = f"{os.getcwd()} {place.st_dev} {place.st_ino}"
    found["CPUs"] = str(sorted(os.sched_getaffinity(0)))
    found["priority"] = str(os.getpriority(os.PRIO_PROCESS, 0))
    for name in ("oom_score_adj", "cgroup"):
        try:
            with open(f"/proc/self/{name}") as file:
                found[name] = file.read()
        except OSError:
            continue
    return found
