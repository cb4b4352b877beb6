"""Start processes, and learn of their end.

Started with ``posix_spawn`` in a session of their own: no ``fork`` of this process's threads and
locks, no ``preexec_fn`` (18 ms from a large parent), descriptors closed unless named. Always from
the main thread: a death signal fires when the *thread* that started a process ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.host import proc, rank_boot
from holdfast.host.descriptor_limit import give_limit_back

_DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these, and an ignored signal stays ignored across exec."""


@dataclass(frozen=True)
class Reaped:
    """A process that has ended. ``exit_code`` is -N for death by signal N."""

    pid: int
    exit_code: int
    peak_rss_kib: int


def spawn(command: Sequence[str], env: Mapping[str, str], descriptors: Mapping[int, int]) -> int:
    """Start ``command`` in a session of its own and return its pid.

    Args:
        command: Absolute path of the program, and its arguments.
        env: Its whole environment.
        descriptors: Number in the child -> our descriptor; 0 is /dev/null unless named.

    Raises:
        OSError: The program cannot be started.
    """
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
    if 0 not in descriptors:
        actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
    actions += [(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in descriptors.items()]
    return os.posix_spawn(
        command[0],
        list(command),
        dict(env),
        file_actions=actions,
        setsid=True,
        setsigmask=(),
        setsigdef=_DEFAULTS,
    )


def death_tie() -> list[str]:
    """The command that, before a rank's own, ties the rank's life to this process.

    util-linux's ``setpriv`` where it knows how (1-2 ms), else our ``rank_boot.py`` (10 ms). Asked
    once: old versions and busybox have a setpriv that does not know ``--pdeathsig``.
    """
    boot = [sys.executable, "-I", "-S", rank_boot.__file__, str(os.getpid())]
    program = shutil.which("setpriv")
    if program is None:
        return boot
    tie = [program, "--pdeathsig", "KILL", "--"]
    try:
        with open(os.devnull, "wb") as null:
            silent = {1: null.fileno(), 2: null.fileno()}
            trial = spawn([*tie, program, "--version"], os.environ, silent)
        _, status = os.waitpid(trial, 0)
    except OSError:
        return boot
    return tie if status == 0 else boot


def spawn_rank(
    tie: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str],
    descriptors: Mapping[int, int],
) -> int:
    """Start a rank: ``command`` (found on PATH), which dies when this process does.

    A rank that is started while this process dies may miss the signal; its monitor ends it. It has
    the limit of descriptors that it would have without us: set from here while ``tie`` runs, long
    before the rank's own program does.
    """
    pid = spawn([*tie, *command], env, descriptors)
    give_limit_back(pid)
    return pid


def become_subreaper() -> bool:
    """Have orphans of our ranks handed to us instead of to init; False where it can't be had."""
    return rank_boot.prctl(rank_boot.PR_SET_CHILD_SUBREAPER, 1)


def reap() -> Iterator[Reaped]:
    """Every child that has ended by now: ranks, monitors, and orphans handed to a subreaper."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield Reaped(pid, os.waitstatus_to_exitcode(status), usage.ru_maxrss)


def send_signal(pid: int, signum: int, *, group: bool = False) -> bool:
    """Signal a child that has not been reaped yet, or its process group; False: gone, or not ours.

    A pid that was not reaped cannot have been given to another process.
    """
    try:
        (os.killpg if group else os.kill)(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def is_resource_tracker(pid: int) -> bool | None:
    """One of Python's multiprocessing: removes shared memory of a dead process when that is gone.

    It ends by itself as soon as nobody who could use it is alive; killed before that, it leaks.

    Returns:
        None: that cannot be said yet. While the kernel loads a program (a moment, but on a busy
        machine long enough for the one who started it to die) its process has no command line; and
        that of a process which is stuck is not read.
    """
    command = proc.command_line(pid)
    if not command:
        try:
            os.readlink(f"/proc/{pid}/exe")  # a process that has ended has no program
        except OSError:
            return False
        return None
    return any("multiprocessing.resource_tracker" in word for word in command)


def descendants(root: int | None = None, leave: frozenset[int] = frozenset()) -> list[int]:
    """Living processes below ``root`` (us), without those in ``leave`` and what is below them.

    With us as subreaper nothing that a rank started can leave this tree, whatever session,
    process group or environment it gave itself.
    """
    found = []
    pending = [root or os.getpid()]
    while pending:
        for pid in _children(pending.pop()):
            if pid not in leave:
                found.append(pid)
                pending.append(pid)
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        for thread in threads:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
    except OSError:  # it ended while we looked
        pass
    return children
