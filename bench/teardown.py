"""A launcher is SIGKILLed under load: how long until everything it started is gone.

Each rank has two busy forked children, as data loaders are, and a child in a session of its own
that ignores SIGTERM. Under torchrun the survivors are counted, and ended here.
"""

from __future__ import annotations

import os
import select
import signal
import time

from bench.figures import Bar, Report
from bench.memory import _helpers_of
from bench.processes import HOLDFAST, TORCHRUN, Launch, launch
from holdfast.node.records import run_dirs

KILLS = 8
RANKS = 2
PROCESSES_PER_RANK = 4
GONE_BOUND_S = 10.0
LEFTOVERS_AFTER_S = 2.0

_SCRIPT = """
def loader():
    batch = bytearray(1 << 20)
    stamp("alive")
    while True:
        batch[:] = bytes(1 << 20)
        sum(batch[::64])

def stray():
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stamp("alive")
    while True:
        signal.pause()

for child in loader, loader, stray:
    if os.fork() == 0:
        child()
stamp("alive")
while True:
    sum(range(1000))
"""


def _await_deaths(pidfds: dict[int, int], bound_s: float) -> tuple[float, set[int]]:
    """When the last of these ended, as the kernel tells it, and who has not by then."""
    poll = select.poll()
    for pidfd in pidfds.values():
        poll.register(pidfd, select.POLLIN)
    left = set(pidfds.values())
    ended_at = time.monotonic()
    give_up_at = ended_at + bound_s
    while left and (left_s := give_up_at - time.monotonic()) > 0:
        for pidfd, _ in poll.poll(left_s * 1e3):
            poll.unregister(pidfd)
            left.discard(pidfd)
            ended_at = time.monotonic()
    return ended_at, {pid for pid, pidfd in pidfds.items() if pidfd in left}


def _kill_launcher(launched: Launch, bound_s: float) -> tuple[float, int, int]:
    """Milliseconds until all were gone, how many were left, of how many."""
    alive = launched.wait_for_all("alive", RANKS * PROCESSES_PER_RANK, 0)
    pids = [stamp.pid for stamp in alive] + _helpers_of(launched.process.pid, "monitor_main")
    pidfds = {pid: os.pidfd_open(pid) for pid in pids}
    try:
        killed_at = time.monotonic()
        launched.process.kill()
        ended_at, left = _await_deaths(pidfds, bound_s)
        for pid in left:
            signal.pidfd_send_signal(pidfds[pid], signal.SIGKILL)
        if left:
            _await_deaths({pid: pidfds[pid] for pid in left}, GONE_BOUND_S)
    finally:
        for pidfd in pidfds.values():
            os.close(pidfd)
    return (ended_at - killed_at) * 1e3, len(left), len(pids)


def measure(kills: int = KILLS) -> Report:
    """Ours ``kills`` times, torchrun once for comparison."""
    gone: list[float] = []
    left: list[int] = []
    ours = 0
    for _ in range(kills):
        with launch(HOLDFAST, _SCRIPT, f"--nproc-per-node={RANKS}") as launched:
            gone_ms, left_over, ours = _kill_launcher(launched, GONE_BOUND_S)
            gone.append(gone_ms)
            left.append(left_over)
    run_dirs.remove_orphaned_runtime_dirs()  # as the next launcher would
    with launch(TORCHRUN, _SCRIPT, f"--nproc-per-node={RANKS}") as launched:
        _, theirs_left, theirs = _kill_launcher(launched, LEFTOVERS_AFTER_S)

    report = Report(
        f"{RANKS} ranks, each with 2 busy children and one with a session of its own; launcher "
        "SIGKILLed"
    )
    report.add("holdfast: until everything is gone", "ms", gone, Bar(500, "max"))
    report.add(f"holdfast: processes left of {ours}", "", left, Bar(0, "max"))
    report.add(f"torchrun: left of {theirs} after {LEFTOVERS_AFTER_S:g} s", "", theirs_left)
    return report
