"""Start helper processes with a control connection: monitors, health process, observer."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.base.processes.bare_process import start_bare
from holdfast.base.processes.proc import MARKER
from holdfast.base.processes.process_defaults import give_limit_back
from holdfast.base.pure import codec
from holdfast.base.pure.value import Value
from holdfast.net.pure.frames import encode
from holdfast.watch.pure.monitor_messages import ConfigureMonitor

_MONITOR = "from holdfast.watch.monitor.monitor_main import main; main()"
_HEALTH = "from holdfast.health.host_health_main import main; main()"
_COPIES = "from holdfast.arena.peer_copies_main import main; main()"
_OBSERVER = "from holdfast.tools.observer.observer_main import main; main()"


class ControlledProcess(Value):
    """A running process, which the caller reaps.

    ``control`` is the launcher's end of its control connection, non-blocking; closing it ends the
    process.
    """

    pid: int
    control: socket.socket


def start_controlled(
    boot: str, handed: Sequence[int], env: Mapping[str, str], first: Mapping[str, Any]
) -> ControlledProcess:
    """Start a bare process (``base/processes/bare_process.py``) with the code ``boot``.

    It has the descriptors ``handed`` as 3, 4, ..., then its end of the control connection, with
    ``first``, encoded, as the first message. Raises OSError.
    """
    own, theirs = socket.socketpair()
    with theirs:
        try:
            pid = start_bare(boot, (*handed, theirs.fileno()), env)
        except OSError:
            own.close()
            raise
    # The buffer of a new socket takes it whole, so this does not wait for the process.
    with contextlib.suppress(ConnectionError):  # it died already; its channel sees that
        own.sendall(encode(first))
    own.settimeout(0.0)
    return ControlledProcess(pid, own)


def start_monitor(
    listener_fd: int, config: ConfigureMonitor, env: Mapping[str, str] | None = None
) -> ControlledProcess:
    """Start a monitor in a session of its own; it sends ``Ready`` first.

    ``listener_fd`` listens for its rank. The launcher keeps it for a successor. Raises OSError.
    """
    env = os.environ if env is None else env
    return start_controlled(_MONITOR, (listener_fd,), env, codec.encode(config))


def start_health_process(first: Mapping[str, object], job: str) -> ControlledProcess:
    """Start a node's health process (messages: ``health/messages.py``); raises OSError.

    ``job`` marks its environment, so that it is found if it outlives the launcher.
    """
    process = start_controlled(_HEALTH, (), _marked(job, "health"), first)
    give_limit_back(process.pid)  # it looks at its own, and means that of ranks
    return process


def start_copies(listener_fd: int, first: Mapping[str, object], job: str) -> ControlledProcess:
    """Start a node's process for copies of snapshots (messages: ``arena/pure/peer_messages.py``).

    ``listener_fd`` listens for those of other nodes. Raises OSError.
    """
    return start_controlled(_COPIES, (listener_fd,), _marked(job, "copies"), first)


def start_observer(first: Mapping[str, object], job: str) -> ControlledProcess:
    """Start a node's observer (messages: ``events/observer_messages.py``); raises OSError."""
    return start_controlled(_OBSERVER, (), _marked(job, "observer"), first)


def _marked(job: str, name: str) -> dict[str, str]:
    return {**os.environ, MARKER: f"{job}.{name}.0"}
