"""Find the guard of this node, or be the one that starts it.

Ranks of one node and job agree without knowing how many they are: a Unix socket in the abstract
namespace, named after the job's secret token, can be bound by one process only. The rank that binds
it starts the guard and hands it the listening socket; all ranks connect. A rank that dies between
the two takes the name with it, and the next one binds it.

The namespace belongs to the network, not to a user or a container. So the name also depends on the
user and on the pid namespace (pods that share a network of one host have guards of their own, which
see their processes), guard and rank prove to each other that they know the token, and where another
process holds the name all ranks take the next one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from pathlib import Path

from holdfast.base.own_descriptor import OwnSocket
from holdfast.base.processes.bare_process import start_bare
from holdfast.base.processes.proc import MARKER
from holdfast.net.channel import peer_of
from holdfast.net.client import Client
from holdfast.net.pure.frames import FrameError
from holdfast.net.pure.handshake import is_proof, nonce_in, proof

_BOOT = (
    # A daemon: it outlives the rank that starts it, and no rank has a zombie to reap.
    "import os; os.fork() and os._exit(0); from holdfast.inplace.guard_main import main; main()"
)
_BACKLOG = 1024
_TRIES = 100
_NAMES = 8
_ANSWER_S = 60.0
"""A guard that is being started on a busy machine answers within this."""
_NONCE_BYTES = 16
_UNKNOWN_UID = 65534
"""The kernel's number for a user that does not exist in this user namespace."""


class GuardError(OSError):
    """The guard of this node cannot be started or reached."""


class _StrangerError(OSError):
    """Whoever listens is not the guard of this job."""


def guard_address(token: str, number: int = 0) -> str:
    """Abstract address of the guard; the token itself is not readable from it.

    Args:
        token: The secret of the job.
        number: Of the name; 0 unless another process holds that.
    """
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:  # no /proc
        namespace = 0
    named = f"{token} {os.geteuid()} {namespace} {number}"
    return "\0holdfast-guard-" + hashlib.sha256(named.encode()).hexdigest()[:32]


def connect_to_guard(token: str) -> Client:
    """A connection to the guard of this node and job, started if need be; it has proved itself.

    Raises:
        GuardError: It cannot be started, or other processes hold its names.
    """
    refusals = []
    for number in range(_NAMES):
        address = guard_address(token, number)
        try:
            return _connect(address, token)
        except _StrangerError as error:
            refusals.append(str(error))
    raise GuardError(
        f"the {_NAMES} names (abstract Unix sockets) for the guard of this node are held by "
        f"others: {'; '.join(sorted(set(refusals)))}"
    )


def _connect(address: str, token: str) -> Client:
    has_started = False
    for _ in range(_TRIES):
        has_started |= _start_if_first(address, token)
        connected = OwnSocket()
        try:
            connected.connect(address)
            return _shake_hands(connected, token)
        except ConnectionError:
            # The rank that bound it died before it handed the socket on: the name is free again.
            connected.close()
        except _StrangerError:
            connected.close()
            raise
        except OSError as error:
            connected.close()
            raise GuardError(f"cannot reach the guard of this node: {error}") from error
    if not has_started:
        raise _StrangerError(f"a process that closed {_TRIES} connections")
    raise GuardError(f"the guard of this node did not come up in {_TRIES} tries")


def _shake_hands(connected: OwnSocket, token: str) -> Client:
    """Both sides prove that they know the token.

    Raises:
        ConnectionError: Whoever listened has ended; the name is free again.
        _StrangerError: Whoever listens is not the guard of this job.
    """
    pid, uid = peer_of(connected)  # of the process that bound the name
    holder = f"process {pid} of user {uid}"
    if uid not in (os.geteuid(), 0, _UNKNOWN_UID):
        raise _StrangerError(holder)
    nonce = secrets.token_hex(_NONCE_BYTES)
    client = Client(connected)
    try:
        client.send({"nonce": nonce}, _ANSWER_S)
        answer = client.receive(_ANSWER_S)
    except TimeoutError:
        raise _StrangerError(f"{holder} did not answer within {_ANSWER_S:g} s") from None
    except FrameError as error:
        raise _StrangerError(f"{holder} answered: {error}") from None
    theirs = nonce_in(answer)
    if theirs is None or not is_proof(answer.get("proof"), token, "guard", nonce):
        raise _StrangerError(f"{holder} does not know the token of this job")
    client.send({"proof": proof(token, "rank", theirs)}, _ANSWER_S)
    return client


def _start_if_first(address: str, token: str) -> bool:
    """Whether the name was free, and the guard is being started."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener:
        try:
            listener.bind(address)
        except OSError:
            return False  # another rank was first
        listener.listen(_BACKLOG)
        secret, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            os.write(write_end, token.encode())  # a pipe takes it whole
            pid = start_bare(_BOOT, (listener.fileno(), secret), _environment(), quiet=True)
        except OSError as error:
            raise GuardError(f"cannot start the guard of this node: {error}") from error
        finally:
            os.close(secret)
            os.close(write_end)
        os.waitpid(pid, 0)
    return True


def _environment() -> dict[str, str]:
    """This process's, without a rank in the marker: it must not be killed with this rank."""
    env = dict(os.environ)
    marker = env.get(MARKER)
    if marker is not None:
        env[MARKER] = f"{marker.rpartition('.')[0]}.guard"
    return env
