"""For how long a process was ready to run, and no processor was free for it.

The kernel counts it for each thread (``/proc/PID/task/TID/schedstat``, CONFIG_SCHED_INFO). A wait
that still lasts is counted when it ends. Sleep, a stop and the freezer are none.
"""

from __future__ import annotations

from holdfast.base.processes.proc import ROOT, read_whole, threads


class RunDelay:
    """Of one process, which may have ended, from the construction on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = _waited_ns(pid)

    def since_s(self) -> float:
        """Of the thread that waited most, in seconds; 0.0: none did, or it is not known."""
        before = self._before
        waited = (ns - before.get(tid, 0) for tid, ns in _waited_ns(self._pid).items())
        return max(0, *waited, 0) / 1e9


def _waited_ns(pid: int) -> dict[str, int]:
    found = {}
    for tid in threads(pid, ROOT):
        fields = (read_whole(f"{ROOT}/{pid}/task/{tid}/schedstat") or b"").split()
        if len(fields) == 3 and fields[1].isdigit():
            found[tid] = int(fields[1])
    return found
