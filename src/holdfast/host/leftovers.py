"""End everything below this process, and say what does not end."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from holdfast.host import child, clock, proc, wait_for

_CHUNK = 8
"""How many are named before the rest is counted."""
_LISTED = 20
_COMMAND_CHARS = 200


def end_all(limit_s: float) -> list[int]:
    """SIGKILL all processes below this one until none is left; all children are reaped.

    Sleeps until one of them has ended, and looks again: it may have started others meanwhile. A
    process that ended but is not reaped by its own parent is not waited for.

    Args:
        limit_s: Give up after so many seconds: a process in uninterruptible sleep does not end.

    Returns:
        Pids of what is left.
    """
    give_up_at = clock.monotonic() + limit_s
    held: dict[int, proc.Process] = {}
    try:
        while True:
            _reap(held)
            left = _hold(child.descendants(), held)
            left_s = give_up_at - clock.monotonic()
            if not left or left_s <= 0:
                _reap(held)  # who ended since: children of the dead are ours by now
                return [process.pid for process in left if process.pid in held]
            for process in left:
                process.send(signal.SIGKILL)
            _await_one(left, left_s)
    finally:
        for process in held.values():
            process.close()


def describe(pids: list[int]) -> str:
    """``python (pid 4711, state D in nfs_wait_on_request), ... and 3 more``."""
    named = [_describe(pid) for pid in pids[:_CHUNK]]
    more = len(pids) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def still_running(pids: list[int]) -> list[int]:
    """Without those that have ended or are about to: zombies, and Python's resource trackers."""
    states = ((pid, proc.stat(pid)) for pid in pids)
    living = [pid for pid, stat in states if stat is not None and stat.state != "Z"]
    return [pid for pid in living if not child.is_resource_tracker(pid)]


def describe_each(pids: list[int]) -> list[str]:
    """One line for each: ``pid 4711, child of 4700, state S, 12 s old: python -c ...``.

    Twenty at most, and how many more there are. Never waits for a process that is stuck.
    """
    lines = [_describe_at_length(pid) for pid in pids[:_LISTED]]
    more = len(pids) - len(lines)
    return [*lines, f"... and {more} more"] if more else lines


def _describe_at_length(pid: int) -> str:
    stat = proc.stat(pid)
    if stat is None:
        return f"pid {pid}, which has just ended"
    age_s = clock.since_boot() - stat.start_ticks / os.sysconf("SC_CLK_TCK")
    command = " ".join(" ".join(proc.command_line(pid)).split())  # no line breaks in a line
    if len(command) > _COMMAND_CHARS:
        command = f"{command[:_COMMAND_CHARS]}..."
    return (
        f"pid {pid}, child of {stat.parent}, state {stat.state}, {age_s:.0f} s old: "
        f"{command or f'({stat.name})'}"
    )


def _reap(held: dict[int, proc.Process]) -> None:
    for reaped in child.reap():
        if (process := held.pop(reaped.pid, None)) is not None:
            process.close()


def _has_ended(process: proc.Process) -> bool:
    """All its threads have; one whose main thread alone has ended looks like a zombie in /proc."""
    if process.fileno() >= 0:
        return wait_for.readable(process.fileno(), 0.0)
    return not process.is_alive()


def _hold(pids: list[int], held: dict[int, proc.Process]) -> list[proc.Process]:
    """Take hold of those that have not ended."""
    living = []
    for pid in pids:
        if pid not in held:
            with contextlib.suppress(ProcessLookupError):
                held[pid] = proc.Process(pid)
        if pid in held and not _has_ended(held[pid]):
            living.append(held[pid])
    return living


def _await_one(processes: list[proc.Process], timeout_s: float) -> None:
    descriptors = [process.fileno() for process in processes if process.fileno() >= 0]
    wait_for.any_readable(descriptors, timeout_s)


def _describe(pid: int) -> str:
    name = "?"
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    state = proc.process_state(pid)
    where = f" in {state.wchan}" if state and state.wchan else ""
    return f"{name} (pid {pid}, state {state.state if state else 'unknown'}{where})"
