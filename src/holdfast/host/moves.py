"""What a process and its children have done until now, in /proc: see ``core/monitor/movement.py``.

Reads nothing that lies in a process's memory, so it waits for nothing.
"""

from __future__ import annotations

import os

from holdfast.core.monitor.movement import Moves
from holdfast.host.proc import ROOT, _read, children
from holdfast.host.sight import look_at

_PROCESSES_MAX = 64
_CPU_FIELDS = slice(11, 15)
"""After the name: user and system time, its own and of children that have ended."""


def moves_of(pid: int) -> Moves | None:
    """Of the process and all below it; None: it is gone, or has too many children to look at."""
    main = look_at(pid)
    if main is None:
        return None
    found: list[int] = []
    pending = [pid]
    ticks, n_bytes, wakes, is_in_kernel = 0, 0, 0, False
    while pending:
        one = pending.pop()
        line = _read(f"{ROOT}/{one}/stat")
        if not line:
            continue
        found.append(one)
        if len(found) > _PROCESSES_MAX:
            return None
        fields = line[line.rindex(b")") + 2 :].split(None, 16)
        ticks += sum(map(int, fields[_CPU_FIELDS]))
        is_in_kernel = is_in_kernel or fields[0] == b"D"
        n_bytes += _bytes_of(one)
        if one != pid and (child := look_at(one)) is not None:
            wakes += child.switches
        pending += children(one)
    all_s = ticks / os.sysconf("SC_CLK_TCK")
    pids = tuple(sorted(found))
    return Moves(main.switches, main.cpu_ns / 1e9, all_s, n_bytes, wakes, pids, is_in_kernel)


def _bytes_of(pid: int) -> int:
    """Read and written by system calls, whatever it was from."""
    lines = (_read(f"{ROOT}/{pid}/io") or b"").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith((b"rchar", b"wchar")))
