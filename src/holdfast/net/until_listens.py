"""Wait until a server listens.

torch's client of a store that does not listen yet comes back after 0.25 to 0.75 s, and after pauses
that grow by half each time, up to a minute (``torch/csrc/distributed/c10d/Backoff.hpp``).

Also run from its path, in a rank, so it imports nothing of holdfast.
"""

# Annotations are quoted: ``first_lines.py`` says why.
import _socket  # a script may replace the sockets of the module socket, not torch's
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.1
"""Between two tries, which double; longer where many wait."""
_TRIES_PER_S = 10_000
"""Of all together."""
_CONNECT_S = 5.0
_LOOK_UP_AGAIN_S = 10.0


def wait_until_listens(host: str, port: int, timeout_s: float, waiting: int = 1) -> bool:
    """Whether the server has accepted a connection in this time.

    Args:
        host: A name or an address.
        port: Of the server.
        timeout_s: How long to wait at most.
        waiting: So many processes may wait for it at once.
    """
    pause_s = max(_FIRST_PAUSE_S, waiting / _TRIES_PER_S / 2)
    longest_s = max(_LONGEST_PAUSE_S, waiting / _TRIES_PER_S)
    now = look_up_at = time.monotonic()
    give_up_at = now + timeout_s
    found: list[Any] = []
    while now < give_up_at:
        if now >= look_up_at:
            found, look_up_at = _look_up(host, port), now + _LOOK_UP_AGAIN_S
        for family, kind, protocol, _, address in found:
            if _listens(family, kind, protocol, address, min(give_up_at - now, _CONNECT_S)):
                return True
        # In no except clause, where a restart in place would not interrupt it.
        time.sleep(max(0.0, min(give_up_at - time.monotonic(), pause_s)))
        pause_s = min(2 * pause_s, longest_s)
        now = time.monotonic()
    return False


def timed_out(host: str, port: int, timeout_s: float) -> str:
    """The text of torch's DistNetworkError where its client has waited for so long."""
    return (
        f"The client socket has timed out after {timeout_s * 1e3:.0f}ms while trying to connect "
        f"to ({host}, {port})."
    )


def _look_up(host: str, port: int) -> "list[Any]":
    try:
        return _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM)
    except OSError:
        return []  # not known yet


def _listens(family: int, kind: int, protocol: int, address: "Any", timeout_s: float) -> bool:
    try:
        tried = _socket.socket(family, kind, protocol)
    except OSError:
        return False
    try:
        tried.settimeout(timeout_s)
        tried.connect(address)
        # A port of the range that the kernel takes own ports from may connect to itself.
        return bool(tried.getsockname() != tried.getpeername())
    except OSError:
        return False
    finally:
        tried.close()
