"""End all processes of the job below this one, and report those that do not end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable

from holdfast.base import clock
from holdfast.base.processes import file_read, proc
from holdfast.base.processes.file_read import FileRead

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.base.pure.ownership import Identity

_CHUNK = 8
"""How many are named before the rest is counted."""
_LISTED = 20
_COMMAND_CHARS = 200
_ENDS_BY_ITSELF_S = 0.05
"""Python's resource trackers do, within so long after their last user, if the host is not busy."""
_LOADING_S = 0.005
"""When to look again at a process whose program is being loaded."""
_LOADING_S_MAX = 1.0
"""A process that has no command line for so long hides it, and is like any other."""


def end_all(
    limit_s: float, below: Callable[[], dict[int, Identity]], reap: Callable[[], object]
) -> list[int]:
    """SIGKILL all processes of the job below this one until none is left; all children are reaped.

    Sleeps until one of them has ended, and looks again: it may have started others meanwhile. A
    process that ended but is not reaped by its own parent is not waited for. Returns the pids that
    are left after ``limit_s``: a process in uninterruptible sleep does not end.
    """
    give_up_at = clock.monotonic() + limit_s
    held: dict[Identity, proc.Process] = {}
    try:
        while True:
            reap()
            left = _hold(below().values(), held)
            left_s = give_up_at - clock.monotonic()
            if not left or left_s <= 0:
                reap()  # those that ended since: children of the dead are this process's by now
                return [process.pid for process in left if proc.stat(process.pid) is not None]
            for process in left:
                process.kill()
            proc.await_any(left, left_s)
    finally:
        for process in held.values():
            process.close()


def await_end(
    limit_s: float, below: Callable[[], dict[int, Identity]], reap: Callable[[], object]
) -> None:
    """Wait, for ``limit_s`` at most, until none of these is left; all children are reaped."""
    give_up_at = clock.monotonic() + limit_s
    held: dict[Identity, proc.Process] = {}
    try:
        while (left := _hold(below().values(), held)) and clock.monotonic() < give_up_at:
            proc.await_any(left, give_up_at - clock.monotonic())
            reap()
    finally:
        for process in held.values():
            process.close()


def kill(identity: Identity) -> None:
    """SIGKILL a process if it is still the one that was found."""
    if (process := proc.hold(identity)) is not None:
        process.kill()
        process.close()


class Trackers:
    """Tells Python's resource trackers from other processes that have outlived their rank.

    A tracker removes shared memory of a dead process, ends by itself as soon as no process that
    could use it is alive, and leaks it if it is killed before. From its start it blocks or ignores
    SIGINT and SIGTERM; only of a process that does, and does not end at once, the command line is
    read, by a process that may be stuck in it (``watch``: see :class:`.FileRead`).
    """

    def __init__(self, watch: Callable[[int, bool], None]) -> None:
        self._watch = watch
        self._seen_at: dict[Identity, float] = {}
        self._is_tracker: dict[Identity, bool] = {}
        self._read: FileRead | None = None
        self._asked: dict[str, Identity] = {}

    def sort(self, found: Iterable[Identity], now: float) -> tuple[list[Identity], float | None]:
        """Those that may be killed, and when to look at the rest again."""
        self._finish_read()
        to_kill, suspects = [], []
        for identity in found:
            if self._is_tracker.get(identity):
                continue
            if identity in self._is_tracker or not _may_be_tracker(identity[0]):
                to_kill.append(identity)
            else:
                self._seen_at.setdefault(identity, now)
                suspects.append(identity)
        if not suspects:
            return to_kill, None
        first = min(self._seen_at[identity] for identity in suspects)
        if now < first + _ENDS_BY_ITSELF_S:
            return to_kill, first + _ENDS_BY_ITSELF_S
        if self._read is None:
            self._asked = {file_read.command_line_path(each[0]): each for each in suspects}
            self._read = FileRead(list(self._asked), self._watch)
        deadline = self._read.next_deadline()
        return to_kill, now + _LOADING_S if deadline is None else deadline

    def _finish_read(self) -> None:
        if self._read is None:
            return
        self._read.step()
        if self._read.is_done:
            read, self._read = self._read, None
            self._conclude(read)

    def close(self) -> None:
        """Ask no more."""
        if self._read is not None:
            self._read.close()
            self._read = None
        self._seen_at.clear()
        self._is_tracker.clear()

    def _conclude(self, read: FileRead) -> None:
        now = clock.monotonic()
        for path, identity in self._asked.items():
            line = read.found.get(path)
            is_loading = line == b"" and now < self._seen_at[identity] + _LOADING_S_MAX
            if not is_loading:
                words = file_read.words(line)
                self._is_tracker[identity] = is_resource_tracker(words)


def is_resource_tracker(command_line: list[str]) -> bool:
    """One of Python's multiprocessing, or of joblib's (``loky.backend.resource_tracker``)."""
    return any(".resource_tracker" in word for word in command_line)


def _may_be_tracker(pid: int) -> bool:
    state = proc.process_state(pid)
    return (
        state is not None
        and state.state != "Z"
        and state.ignores_or_blocks(signal.SIGINT)
        and state.ignores_or_blocks(signal.SIGTERM)
    )


def describe(pids: list[int]) -> str:
    """``python (pid 4711, state D in nfs_wait_on_request), ... and 3 more``."""
    named = [_describe(pid) for pid in pids[:_CHUNK]]
    more = len(pids) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def running(pids: Iterable[int]) -> dict[int, list[str]]:
    """Command lines of those that have not ended nor are about to.

    Without zombies and Python's resource trackers. Waits half a second for each that is stuck.
    """
    stats = {pid: proc.stat(pid) for pid in pids}
    living = [pid for pid, stat in stats.items() if stat is not None and stat.state != "Z"]
    paths = {pid: file_read.command_line_path(pid) for pid in living}
    found = file_read.read_all(list(paths.values()))
    words = {pid: file_read.words(found.get(path)) for pid, path in paths.items()}
    return {pid: line for pid, line in words.items() if not is_resource_tracker(line)}


def describe_each(command_lines: dict[int, list[str]]) -> list[str]:
    """One line for each: ``pid 4711, child of 4700, state S, 12 s old: python -c ...``.

    Twenty at most, and how many more there are.
    """
    lines = [_describe_at_length(pid, words) for pid, words in command_lines.items()][:_LISTED]
    more = len(command_lines) - len(lines)
    return [*lines, f"... and {more} more"] if more else lines


def _describe_at_length(pid: int, words: list[str]) -> str:
    stat = proc.stat(pid)
    if stat is None:
        return f"pid {pid}, which has just ended"
    age_s = clock.since_boot() - stat.started / os.sysconf("SC_CLK_TCK")
    command = " ".join(" ".join(words).split())  # no line breaks in a line
    if len(command) > _COMMAND_CHARS:
        command = f"{command[:_COMMAND_CHARS]}..."
    return (
        f"pid {pid}, child of {stat.parent}, state {stat.state}, {age_s:.0f} s old: "
        f"{command or f'({stat.name})'}"
    )


def _hold(found: Iterable[Identity], held: dict[Identity, proc.Process]) -> list[proc.Process]:
    """Take hold of those that have not ended."""
    for identity in found:
        if identity not in held and (process := proc.hold(identity)) is not None:
            held[identity] = process
    return [held[each] for each in found if each in held and not held[each].has_ended()]


def _describe(pid: int) -> str:
    stat, state = proc.stat(pid), proc.process_state(pid)
    where = f" in {state.wchan}" if state and state.wchan else ""
    name = stat.name if stat else "?"
    return f"{name} (pid {pid}, state {state.state if state else 'unknown'}{where})"
