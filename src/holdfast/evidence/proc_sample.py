"""One process in /proc at one instant: two samples show its activity in between.

Reads nothing that lies in the process's memory (see ``proc.py``), so it waits for nothing. Views of
a whole process mislead (libraries poll in threads of their own): this is of its main thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.base.processes.proc import ROOT, Stat, cgroups, read_whole, status, threads
from holdfast.evidence.pure.rank_digest import Sight

APART_S = 0.05
"""Between two looks."""
_TABLE_BYTES_MAX = 4 << 20
_READ = {"x86_64": {0: 0}, "aarch64": {63: 0}}
"""System calls that wait for a descriptor, by number; of which argument."""
_ARGUMENTS = 7
_THREADS_MAX = 512
_CGROUPS = "/sys/fs/cgroup"
STDIN = "the standard input"


def look_at(pid: int, thread_id: int | None = None) -> Sight | None:
    """Look, at the main thread or another one; None: there is no such process."""
    thread = f"{ROOT}/{pid}/task/{thread_id or pid}"
    fields = status(pid, thread_id or pid)
    if not fields:
        return None
    state = fields[b"State"][:1].decode()
    wchan = (read_whole(f"{thread}/wchan") or b"").decode(errors="replace")
    schedule = (read_whole(f"{thread}/schedstat") or b"0").split()
    switches = sum(int(fields.get(name, b"0")) for name in _SWITCHES)
    reads = _reads(pid) if state == "S" else ""
    if not reads and "pipe" in wchan and _opened(pid, 0).startswith("pipe:"):
        reads = STDIN  # it reads an unknown pipe, which may be that
    return Sight(
        state,
        "" if wchan == "0" else wchan,
        int(schedule[0]) if schedule else 0,
        switches,
        reads,
    )


_SWITCHES = (b"voluntary_ctxt_switches", b"nonvoluntary_ctxt_switches")


def is_frozen(pid: int) -> bool:
    """Its control group, or one above, is frozen. The kernel shows such a process in state D."""
    for controllers, path in cgroups(pid).items():
        if controllers == "freezer":
            state = read_whole(f"{_CGROUPS}/freezer{path}/freezer.state") or b""
            return state.startswith(b"FROZEN")
        if not controllers and b"frozen 1" in (
            read_whole(f"{_CGROUPS}{path}/cgroup.events") or b""
        ):
            return True
    return False


def _reads(pid: int) -> str:
    """The object that a sleeping process reads from, where the kernel says."""
    numbers = _READ.get(os.uname().machine, {})
    call = (read_whole(f"{ROOT}/{pid}/syscall") or b"").split()
    if len(call) < _ARGUMENTS or not call[0].isdigit() or int(call[0]) not in numbers:
        return ""
    number = int(call[1 + numbers[int(call[0])]], 16)
    return STDIN if number == 0 else _opened(pid, number)


def _opened(pid: int, number: int | str) -> str:
    """The object behind a descriptor; "": it was closed meanwhile, or that can't be read."""
    try:
        return os.readlink(f"{ROOT}/{pid}/fd/{number}")
    except OSError:
        return ""


def look_at_thread(pid: int, name: str) -> Sight | None:
    """Look at the thread of this name; None: there is none."""
    thread_id = thread_of(pid, name)
    return look_at(pid, thread_id) if thread_id else None


def thread_of(pid: int, name: str) -> int:
    """The thread of this name; 0: there is none."""
    comm = name.encode() + b"\n"
    return next(
        (
            int(it)
            for it in threads(pid, ROOT)
            if read_whole(f"{ROOT}/{pid}/task/{it}/comm") == comm
        ),
        0,
    )


def sleeps_of_others(pid: int) -> dict[str, int]:
    """How often each thread but the main one has gone to sleep so far, by the thread's number."""
    return {it: _sleeps(pid, it) for it in _others(pid)}


def others_run(pid: int, but: str, before: Mapping[str, int], wakes: int) -> bool:
    """Whether another thread than the main one and the one of this name runs, or could run.

    One that has slept ``wakes`` times since ``before`` only wakes to ask for the interpreter's
    lock, each 5 ms.
    """
    for it in _others(pid):
        stat = read_whole(f"{ROOT}/{pid}/task/{it}/stat")
        known = Stat(stat) if stat else None
        if known is None or known.state != "R" or known.name == but:
            continue
        sleeps = _sleeps(pid, it)
        if sleeps < before.get(it, sleeps) + wakes:
            return True
    return False


def _others(pid: int) -> list[str]:
    return [it for it in threads(pid, ROOT)[:_THREADS_MAX] if it != str(pid)]


def _sleeps(pid: int, thread: str) -> int:
    return int(status(pid, int(thread)).get(_SWITCHES[0], b"0"))


def unread_bytes(pid: int) -> int:
    """In the receive queues of a process's TCP connections: something has come and is not taken."""
    inodes = _sockets(pid)
    if not inodes:
        return 0
    found = 0
    for name in ("tcp", "tcp6"):
        try:
            with open(f"{ROOT}/{pid}/net/{name}", "rb") as file:
                lines = file.read(_TABLE_BYTES_MAX).splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split(None, 10)
            # Of one that listens, it is the queue of connections.
            if len(fields) > 9 and fields[3] != b"0A" and fields[9] in inodes:
                found += int(fields[4].partition(b":")[2], 16)
    return found


def _sockets(pid: int) -> set[bytes]:
    try:
        opened = [_opened(pid, name) for name in os.listdir(f"{ROOT}/{pid}/fd")]
    except OSError:  # it has ended
        return set()
    return {it[len("socket:[") : -1].encode() for it in opened if it.startswith("socket:[")}
