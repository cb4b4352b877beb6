"""Start a rank monitor: a bare interpreter of its own, not a fork of this process.

Not a fork, because a forked monitor would carry torch, locks and threads of its parent. Exec to
ready is some 15 ms; the monitor's own modules are found through ``sys.path``, nothing else of this
environment is (``-I -S``).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.wire.frames import encode

LISTENER_FD = 3
CONTROL_FD = 4
_FIRST_FREE_FD = 10
_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from holdfast.fault_tolerance.monitor_main import main; main()"
)


class MonitorProcess:
    """A running monitor.

    Attributes:
        pid: The caller reaps it.
        control: Our end of its control connection, non-blocking; closing it ends the monitor.
    """

    __slots__ = ("control", "pid")

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control


def start_monitor(
    listener_fd: int, config: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> MonitorProcess:
    """Start a monitor in a session of its own; it says ``{"op": "ready"}`` when it is.

    Args:
        listener_fd: Listening Unix socket on which its rank will call. It stays ours as well, so
            that a successor can be given the same one.
        config: Fields of the ``configure`` frame.
        env: Environment of the process; ours by default.

    Raises:
        OSError: The process cannot be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        # Out of the way of 3 and 4: a dup2 must not overwrite the source of the next one.
        listener = fcntl.fcntl(listener_fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD)
        control = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD)
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", _BOOT, _ROOT],
                dict(os.environ if env is None else env),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, listener, LISTENER_FD),
                    (os.POSIX_SPAWN_DUP2, control, CONTROL_FD),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        except OSError:
            ours.close()
            raise
        finally:
            os.close(listener)
            os.close(control)
    # The buffer of a new socket takes it whole, so this does not wait for the monitor.
    with contextlib.suppress(ConnectionError):  # it died already; who reads from ours will see it
        ours.sendall(encode({**config, "op": "configure"}))
    ours.settimeout(0.0)
    return MonitorProcess(pid, ours)
