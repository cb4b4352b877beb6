"""Start processes, and learn of their end.

Started with ``posix_spawn`` in a session of their own: no ``fork`` of this process's threads and
locks, no ``preexec_fn`` (18 ms from a large parent), descriptors closed unless named. Always from
the main thread: a death signal fires when the *thread* that started a process ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.base.processes import rank_boot, system_calls
from holdfast.base.processes.process_defaults import give_limit_back

_DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these, and an ignored signal stays ignored across exec."""
_PR_GET_CHILD_SUBREAPER = 37


@dataclass(frozen=True)
class Reaped:
    """A process that has ended. ``exit_code`` is -N for death by signal N."""

    pid: int
    exit_code: int
    peak_rss_kib: int


def spawn(command: Sequence[str], env: Mapping[str, str], descriptors: Mapping[int, int]) -> int:
    """Start ``command``, with an absolute path, in a session of its own; its pid.

    Args:
        command: The program, and its arguments.
        env: Its whole environment.
        descriptors: Number in the child -> descriptor here; 0 is /dev/null unless named.

    Raises:
        OSError: The program cannot be started.
    """
    actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = []
    if 0 not in descriptors:
        actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
    actions += [(os.POSIX_SPAWN_DUP2, here, there) for there, here in descriptors.items()]
    return system_calls.spawn_in_session(command[0], command, env, actions, _DEFAULTS)


def death_tie() -> list[str]:
    """The command that, before a rank's own, ties the rank's life to this process.

    util-linux's ``setpriv`` where it knows how (1-2 ms), else ``rank_boot.py`` (10 ms). Asked
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
    the limit of descriptors that it would have under a shell: set while ``tie`` runs, long
    before the rank's own program does.
    """
    pid = spawn([*tie, *command], env, descriptors)
    give_limit_back(pid)
    return pid


def become_subreaper(*, on: bool = True) -> bool:
    """Have orphans below this process handed to it, not to init; False where it can't be had."""
    return rank_boot.prctl(rank_boot.PR_SET_CHILD_SUBREAPER, int(on))


def is_subreaper() -> bool:
    """Orphans below this process are handed to it."""
    import ctypes  # noqa: PLC0415 - takes 7 ms, and is asked by launchers in programs alone

    flag = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(flag), 0, 0, 0)
    return bool(flag.value)


def end_descriptor(pid: int) -> int:
    """A descriptor that can be read when child ``pid`` has ended, reaped or not.

    Where the kernel has no pidfds, a thread waits for the child.

    Raises:
        ProcessLookupError: There is no such process.
    """
    try:
        return system_calls.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        import threading  # noqa: PLC0415 - hardly ever needed

        from holdfast.base.bounded import start_thread  # noqa: PLC0415 - likewise

        os.kill(pid, 0)
        reader, writer = os.pipe2(os.O_CLOEXEC)
        start_thread(threading.Thread(target=_wait_for_end, args=(pid, writer), daemon=True))
        return reader


def _wait_for_end(pid: int, writer: int) -> None:
    with contextlib.suppress(ChildProcessError):  # reaped elsewhere in this process
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(OSError):  # the reading end is closed
        os.write(writer, b"e")  # closing would not do: a fork may hold it open
    os.close(writer)


def reap(pids: Iterable[int] | None = None) -> Iterator[Reaped]:
    """Those of ``pids`` that have ended by now; None: of all children, and adopted orphans."""
    if pids is not None:
        return filter(None, map(_reap_one, pids))
    return iter(lambda: _reap_one(-1), None)


def _reap_one(pid: int) -> Reaped | None:
    try:
        pid, status, usage = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    if pid == 0:
        return None
    return Reaped(pid, os.waitstatus_to_exitcode(status), usage.ru_maxrss)


def kill(pid: int) -> bool:
    """See :func:`send_signal`."""
    return send_signal(pid, rank_boot.SIGKILL)


def send_signal(pid: int, signum: int, *, group: bool = False) -> bool:
    """Signal a child that is not reaped yet, or its process group; False: gone, or not permitted.

    A pid that was not reaped cannot have been given to another process.
    """
    try:
        (os.killpg if group else os.kill)(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True
