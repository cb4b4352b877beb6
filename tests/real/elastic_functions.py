"""Functions that tests hand to ranks; a module of its own, because every rank imports it."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

from holdfast.fault_tolerance import RankMonitorClient


def place(word: str) -> tuple[str, str, str]:
    """Where a rank stands, and what it was given."""
    return os.environ["RANK"], os.environ["WORLD_SIZE"], word


def descriptors() -> tuple[int, int]:
    """How many a rank may have open, and how many its launcher may."""
    return tuple(resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] for pid in (0, os.getppid()))


def fail_on_rank_1(text: str) -> None:
    """The other rank waits for ever."""
    if os.environ["RANK"] == "1":
        raise ValueError(text)
    threading.Event().wait()


def fall_silent() -> None:
    """After one heartbeat."""
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.send_heartbeat()
    threading.Event().wait()


def limit_in_second_cycle() -> tuple[str, float | None]:
    """Fails at first; then gives the cycle and the limit that its monitor watches."""
    cycle = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if cycle == "0":
        raise RuntimeError("not yet")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert client.hb_timeouts is not None
    limit_s = client.hb_timeouts.subsequent
    client.shutdown_workload_monitoring()
    return cycle, limit_s


def note_pid_and_wait(folder: str) -> None:
    """Until it is ended."""
    path = Path(folder, os.environ["RANK"])
    path.with_suffix(".part").write_text(str(os.getpid()))
    path.with_suffix(".part").rename(path)
    threading.Event().wait()
