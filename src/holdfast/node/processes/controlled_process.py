"""Our processes at the other end of a control connection: monitors, a node's health process."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.base.processes.bare_process import start_bare
from holdfast.base.processes.inheritance import give_limit_back
from holdfast.base.processes.proc import MARKER
from holdfast.base.pure import codec
from holdfast.base.pure.value import Value
from holdfast.net.pure.frames import encode
from holdfast.watch.pure.monitor_messages import Configure

LISTENER_FD = 3
CONTROL_FD = 4
"""Of a monitor."""
_MONITOR = "from holdfast.watch.monitor.monitor_main import main; main()"
_HEALTH = "from holdfast.health.host_health_main import main; main()"
_OBSERVER = "from holdfast.tools.observer.observer_main import main; main()"


class ControlledProcess(Value):
    """One that runs.

    Attributes:
        pid: The caller reaps it.
        control: Our end of its control connection, non-blocking; closing it ends the process.
    """

    pid: int
    control: socket.socket


def start_controlled(
    boot: str, handed: Sequence[int], env: Mapping[str, str], first: Mapping[str, Any]
) -> ControlledProcess:
    """Start a bare process (``base/processes/bare_process.py``).

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


def start_monitor(
    listener_fd: int, config: Configure, env: Mapping[str, str] | None = None
) -> ControlledProcess:
    """Start a monitor in a session of its own; it says ``Ready`` when it is.

    Args:
        listener_fd: Listening Unix socket on which its rank will call. It stays ours as well, so
            that a successor can be given the same one.
        config: The first message to it.
        env: Environment of the process; ours by default.

    Raises:
        OSError: The process cannot be started.
    """
    env = os.environ if env is None else env
    return start_controlled(_MONITOR, (listener_fd,), env, codec.encode(config))


def start_health_process(first: Mapping[str, object], job: str) -> ControlledProcess:
    """Start a node's health process; ``health/messages.py``: what it takes and says.

    Args:
        first: The first message to it, encoded.
        job: Marks its environment, so that it is found if it outlives us.

    Raises:
        OSError: The process cannot be started.
    """
    process = start_controlled(_HEALTH, (), _marked(job, "health"), first)
    give_limit_back(process.pid)  # it looks at its own, and means that of ranks
    return process


def start_observer(first: Mapping[str, object], job: str) -> ControlledProcess:
    """Start a node's observer; ``events/observer_messages.py``: what it takes and says.

    Args:
        first: The first message to it, encoded.
        job: Marks its environment, so that it is found if it outlives us.

    Raises:
        OSError: The process cannot be started.
    """
    return start_controlled(_OBSERVER, (), _marked(job, "observer"), first)


def _marked(job: str, name: str) -> dict[str, str]:
    return {**os.environ, MARKER: f"{job}.{name}.0"}
