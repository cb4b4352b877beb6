"""A bare process of our own at the other end of a control connection, on which frames travel."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.host.bare_process import start_bare
from holdfast.wire.frames import encode


class ControlledProcess:
    """One that runs.

    Attributes:
        pid: The caller reaps it.
        control: Our end of its control connection, non-blocking; closing it ends the process.
    """

    __slots__ = ("control", "pid")

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control


def start_controlled(
    boot: str, handed: Sequence[int], env: Mapping[str, str], first: Mapping[str, Any]
) -> ControlledProcess:
    """Start a bare process (``host/bare_process.py``).

    Args:
        boot: Its code.
        handed: Descriptors it has as 3, 4, ...; its end of the control connection follows them.
        env: Its environment, whole.
        first: The first message to it, encoded.

    Raises:
        OSError: The process cannot be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            pid = start_bare(boot, (*handed, theirs.fileno()), env)
        except OSError:
            ours.close()
            raise
    # The buffer of a new socket takes it whole, so this does not wait for the process.
    with contextlib.suppress(ConnectionError):  # it died already; who reads from ours will see it
        ours.sendall(encode(first))
    ours.settimeout(0.0)
    return ControlledProcess(pid, ours)
