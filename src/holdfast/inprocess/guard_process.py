"""Find the guard of this node, or be the one that starts it.

Ranks of one node and job agree without knowing how many they are: a Unix socket in the abstract
namespace, named after the job's secret token, can be bound by one process only. Who binds it starts
the guard and hands it the listening socket; everybody connects. A rank that dies between the two
takes the name with it, and the next one binds it.
"""

from __future__ import annotations

import hashlib
import os
import socket

from holdfast.host.bare_process import start_bare
from holdfast.host.proc import MARKER

_BOOT = (
    # Nobody's child: it outlives the rank that starts it, and no rank has a zombie to reap.
    "import os; os.fork() and os._exit(0); from holdfast.inprocess.guard_main import main; main()"
)
_BACKLOG = 1024
_TRIES = 100


class GuardError(OSError):
    """The guard of this node cannot be started or reached."""


def guard_address(token: str) -> str:
    """Abstract address of the guard; the token itself is not readable from it."""
    return "\0holdfast-guard-" + hashlib.sha256(token.encode()).hexdigest()[:32]


def connect_to_guard(token: str) -> socket.socket:
    """A connection to the guard of this node and job, started if need be.

    Raises:
        GuardError: It cannot be started.
    """
    address = guard_address(token)
    for _ in range(_TRIES):
        _start_if_first(address)
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.connect(address)
        except ConnectionRefusedError:
            # Who bound it died before it handed the socket on: nobody listens, so we may bind.
            connected.close()
        except OSError as error:
            connected.close()
            raise GuardError(f"cannot reach the guard of this node: {error}") from error
        else:
            return connected
    raise GuardError(f"the guard of this node did not come up in {_TRIES} tries")


def _start_if_first(address: str) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener:
        try:
            listener.bind(address)
        except OSError:
            return  # somebody else was first
        listener.listen(_BACKLOG)
        try:
            pid = start_bare(_BOOT, (listener.fileno(),), _environment(), quiet=True)
        except OSError as error:
            raise GuardError(f"cannot start the guard of this node: {error}") from error
        os.waitpid(pid, 0)


def _environment() -> dict[str, str]:
    """Ours; but marked as nobody's rank: it must not be swept away with the rank that starts it."""
    env = dict(os.environ)
    marker = env.get(MARKER)
    if marker is not None:
        env[MARKER] = f"{marker.rpartition('.')[0]}.guard"
    return env
