"""Start a helper process: a bare interpreter, not a fork of this process.

Not a fork, because a forked process would carry torch, locks and threads of its parent. Exec to
ready is some 15 ms; holdfast's own modules are found through ``sys.path``, nothing else of this
environment is (``-I -S``).
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from holdfast.base.processes import system_calls

FIRST_FD = 3
TO_JOBS = (
    *(signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
"""Sent to all processes of a job (by Slurm, a terminal); the launcher decides when helpers end."""
_FIRST_FREE_FD = 10
_ROOT = os.path.realpath(__file__)
for _ in "processes", "base", "holdfast", "src":
    _ROOT = os.path.dirname(_ROOT)


def start_bare(
    boot: str, handed: Sequence[int], env: Mapping[str, str], *, quiet: bool = False
) -> int:
    """Start ``python -I -S -c`` with holdfast on its path, in a session of its own.

    From its first instruction on it does not notice signals that are sent to all processes of a
    job (SIGTERM, SIGINT, ...): they are blocked until it calls :func:`ignore_signals`.

    Args:
        boot: The code; ``sys.path`` already leads to holdfast.
        handed: Descriptors it has as 3, 4, ...; they stay open here as well.
        env: Its environment, whole.
        quiet: Its output goes nowhere; otherwise where this process's does. Its input is empty.

    Returns:
        Its pid; the caller reaps it.

    Raises:
        OSError: The process cannot be started.
    """
    copies: list[int] = []
    actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    ]
    if quiet:
        actions += [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    try:
        for number, fd in enumerate(handed, FIRST_FD):
            # Out of the way: a dup2 must not overwrite the source of the next one.
            copies.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD))
            actions.append((os.POSIX_SPAWN_DUP2, copies[-1], number))
        return system_calls.spawn_in_session(
            sys.executable,
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                f"import sys; sys.path.append(sys.argv[1]); {boot}",
                _ROOT,
            ],
            env,
            actions,
            signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            TO_JOBS,
        )
    finally:
        for copy in copies:
            os.close(copy)


def ignore_signals() -> None:
    """To be called first in a process of :func:`start_bare` that lives as long as the job."""
    for signum in TO_JOBS:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TO_JOBS)
