"""Wait until a server listens.

torch's client of a store that does not listen yet comes back after 0.25 to 0.75 s, and after pauses
that grow by half each time, up to a minute (``torch/csrc/distributed/c10d/Backoff.hpp``).

Also run from its path, in a rank, so it imports nothing of holdfast. An exception of a signal's
handler, which may be an OSError, ends the wait: nothing that waits is inside an except clause, or
in a block with one, where a restart in place would not interrupt it either.
"""

# Annotations are quoted: ``first_lines.py`` says why.
import _socket  # a script may replace the sockets of the module socket, not torch's
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.1
"""Between two tries, which double; longer where many wait."""
_TRIES_PER_S = 2_000
"""Of all together: a firewall remembers each for some seconds."""
_OF_MANY_S = 0.25, 1.0
"""The same pauses of very many, at most: torch's first ones are no shorter."""
_CONNECT_S = 5.0
_FIRST_LOOK_UP_S, _LOOK_UP_AGAIN_S = 0.5, 10.0
"""An unknown name may be known soon, and a known one be another host's later."""
_AT_ONCE = (1).to_bytes(4, sys.byteorder) + bytes(4)
"""A ``struct linger``: the port is free at once."""

_waiting = 0
"""Threads that wait: Python runs in them meanwhile, and that is no progress."""


def is_waiting() -> bool:
    """Whether a thread of this process waits for a server."""
    return _waiting > 0


def wait_until_listens(host: str, port: int, timeout_s: float, waiting: int = 1) -> bool:
    """Whether the server has accepted a connection in this time.

    Args:
        host: A name or an address.
        port: Of the server.
        timeout_s: How long to wait at most.
        waiting: So many processes may wait for it at once.
    """
    global _waiting  # noqa: PLW0603 - see there
    _waiting += 1
    try:
        return _wait(host, port, timeout_s, waiting)
    finally:
        _waiting -= 1


def timed_out(host: str, port: int, timeout_s: float) -> str:
    """The text of torch's DistNetworkError where its client has waited for so long."""
    return (
        f"The client socket has timed out after {timeout_s * 1e3:.0f}ms while trying to connect "
        f"to ({host}, {port})."
    )


def _wait(host: str, port: int, timeout_s: float, waiting: int) -> bool:
    together_s = waiting / _TRIES_PER_S
    pause_s = max(_FIRST_PAUSE_S, min(together_s / 2, _OF_MANY_S[0]))
    longest_s = max(_LONGEST_PAUSE_S, min(together_s, _OF_MANY_S[1]))
    now = look_up_at = time.monotonic()
    give_up_at, look_up_s = now + timeout_s, _FIRST_LOOK_UP_S
    found: list[Any] = []
    while now < give_up_at:
        if now >= look_up_at:
            found = _look_up(host, port)
            look_up_at = now + (_LOOK_UP_AGAIN_S if found else look_up_s)
            look_up_s = min(2 * look_up_s, _LOOK_UP_AGAIN_S)
        for family, kind, protocol, _, address in found:
            if _listens(family, kind, protocol, address, min(give_up_at - now, _CONNECT_S)):
                return True
        # No event says that a process of another host listens.
        time.sleep(max(0.0, min(give_up_at - time.monotonic(), pause_s)))
        pause_s = min(2 * pause_s, longest_s)
        now = time.monotonic()
    return False


def _look_up(host: str, port: int) -> "list[Any]":
    try:
        return _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM)
    except (_socket.gaierror, UnicodeError):
        return []  # not known yet


def _listens(family: int, kind: int, protocol: int, address: "Any", timeout_s: float) -> bool:
    try:
        tried = _socket.socket(family, kind, protocol)
    except OSError:
        return False
    try:
        tried.settimeout(timeout_s)
        # The server may have the port though it was this end's, see below.
        tried.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        why = tried.connect_ex(address)
        if why == 0 and tried.getsockname()[:2] == address[:2]:
            # A port of the range that the kernel takes own ports from may connect to itself.
            tried.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, _AT_ONCE)
            return False
        return bool(why == 0)
    finally:
        tried.close()
