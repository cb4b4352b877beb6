"""How late a hang is found, and how often a monitor wakes that has nothing to find.

The rank is a process with the real client that opens a section and hangs. It tells the instant
itself; the limit's end is that plus the limit, so that the monitor does not judge itself.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from pathlib import Path

from bench.figures import Bar, Report
from bench.monitor import Monitor
from holdfast.fault_tolerance import RankMonitorClient

HANGS = 200
LIMITS_S: dict[str, float | None] = {"short": 0.05, "long": 1.5}
"""Long sleeps are planned differently from short ones (kernel timer slack), so both are tried."""
LONG_EVERY = 20
WINDOW_S = 65.0
HEALTHY_LIMIT_S = 60.0
_INSTANT = struct.Struct("d")


def _hanging_rank(monitor: Monitor, section: str) -> tuple[int, float]:
    """Pid of a child that hangs in ``section``, and when it entered."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.environ.update(monitor.rank_environment)
            client = RankMonitorClient()
            client.init_workload_monitoring()
            client.start_section(section)
            os.write(writer, _INSTANT.pack(time.monotonic()))
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        return pid, _INSTANT.unpack(pipe.read(_INSTANT.size))[0]


def _switches(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(
        int(line.split()[1])
        for line in status.splitlines()
        if line.startswith("voluntary_ctxt_switches")
    )


def _wake_ups_per_minute(window_s: float) -> float:
    """Of the monitor of a rank that beats and steps every 10 ms."""
    with Monitor({"step": HEALTHY_LIMIT_S}, rank_heartbeat_timeout=HEALTHY_LIMIT_S) as monitor:
        os.environ.update(monitor.rank_environment)
        monitor.begin_cycle()
        client = RankMonitorClient()
        client.init_workload_monitoring()
        client.send_heartbeat()
        nobody_sets_it = threading.Event()
        nobody_sets_it.wait(0.5)  # the monitor has planned its sleep
        before = _switches(monitor.pid)
        until = time.monotonic() + window_s
        while time.monotonic() < until:
            client.send_heartbeat()
            with client.section("step"):
                nobody_sets_it.wait(0.01)
        woken = _switches(monitor.pid) - before
        client.shutdown_workload_monitoring()
    return woken * 60.0 / window_s


def measure(hangs: int = HANGS, window_s: float = WINDOW_S) -> Report:
    """Hang ``hangs`` ranks, one after the other, then watch a healthy one for ``window_s``."""
    verdicts: list[float] = []
    told: list[float] = []
    ended: list[float] = []
    with Monitor(LIMITS_S) as monitor:
        for i in range(hangs):
            section = "long" if i % LONG_EVERY == LONG_EVERY - 1 else "short"
            monitor.begin_cycle()
            pid, entered_at = _hanging_rank(monitor, section)
            told_at, message = monitor.wait_for("overdue")
            os.waitpid(pid, 0)
            ended_at = time.monotonic()
            limit_at = entered_at + (LIMITS_S[section] or 0.0)
            verdicts.append((message["detected_at"] - limit_at) * 1e3)
            told.append((told_at - limit_at) * 1e3)
            ended.append((ended_at - limit_at) * 1e3)
    woken = _wake_ups_per_minute(window_s)

    report = Report(
        f"{hangs} hangs with limits of {LIMITS_S['short']:g} s, every {LONG_EVERY}th "
        f"{LIMITS_S['long']:g} s; {window_s:g} s of a healthy rank, limit {HEALTHY_LIMIT_S:g} s"
    )
    report.add("limit to verdict", "ms", verdicts, Bar(2), Bar(20, "p99"))
    report.add("limit to the launcher knowing", "ms", told)
    report.add("limit to rank dead, evidence taken", "ms", ended)
    report.add("wake-ups of a healthy monitor", "/min", woken, Bar(2))
    return report
