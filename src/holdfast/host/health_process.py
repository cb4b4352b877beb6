"""Start a node's health process, by exec (``host/bare_process.py``)."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from holdfast.host.bare_process import start_bare
from holdfast.host.proc import MARKER
from holdfast.wire.frames import encode

_BOOT = "from holdfast.health.host_health_main import main; main()"


class HealthProcess:
    """A running health process.

    Attributes:
        pid: The caller reaps it.
        control: Our end of its control connection, non-blocking; closing it ends the process.
    """

    __slots__ = ("control", "pid")

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control


def start_health_process(wanted: Mapping[str, Any], job: str) -> HealthProcess:
    """Start one; see ``health/host_health_main.py`` for what it takes and says.

    Args:
        wanted: Wire form of :class:`holdfast.health.wanted.Wanted`.
        job: Marks its environment, so that it is found if it outlives us.

    Raises:
        OSError: The process cannot be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            pid = start_bare(_BOOT, (theirs.fileno(),), {**os.environ, MARKER: f"{job}.health.0"})
        except OSError:
            ours.close()
            raise
    # The buffer of a new socket takes it whole, so this does not wait for the process.
    with contextlib.suppress(ConnectionError):  # it died already; who reads from ours will see it
        ours.sendall(encode({"op": "configure", "wanted": wanted, "path": sys.path}))
    ours.settimeout(0.0)
    return HealthProcess(pid, ours)
