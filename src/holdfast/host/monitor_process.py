"""Start a rank monitor, by exec (``host/bare_process.py``)."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Any

from holdfast.host.bare_process import start_bare
from holdfast.wire.frames import encode

LISTENER_FD = 3
CONTROL_FD = 4
_BOOT = "from holdfast.fault_tolerance.monitor_main import main; main()"


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
        try:
            handed = (listener_fd, theirs.fileno())
            pid = start_bare(_BOOT, handed, os.environ if env is None else env)
        except OSError:
            ours.close()
            raise
    # The buffer of a new socket takes it whole, so this does not wait for the monitor.
    with contextlib.suppress(ConnectionError):  # it died already; who reads from ours will see it
        ours.sendall(encode({**config, "op": "configure"}))
    ours.settimeout(0.0)
    return MonitorProcess(pid, ours)
