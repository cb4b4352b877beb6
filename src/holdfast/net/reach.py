"""Connect to a process that may not listen yet, at a name that may not resolve yet."""

from __future__ import annotations

import errno
import math
import socket
import threading
from collections.abc import Callable
from typing import Any

from holdfast.base import clock
from holdfast.net.look_up import look_up
from holdfast.net.pure.address import Endpoint

_PAUSE_FIRST_S = 0.005
_PAUSE_MAX_S = 1.0
_ATTEMPT_LEAST_S = 0.05
"""For one connection, however little time is left."""
ATTEMPT_S = 3.0
"""For one connection: a packet without an answer is sent again after 1 s."""
_FIRST_WORD_S = 3.0
_NEXT_WORD = 5
"""Each word of a wait comes when it has taken so many times as long as at the word before."""


class PeerUnreachableError(ConnectionError):
    """An address could not be reached; names it, the time of trying, and the reason."""


def connect_when_reachable(
    host: str,
    port: int,
    within_s: float,
    stop: threading.Event,
    report: Callable[[str], None] = lambda _: None,
) -> socket.socket:
    """A connection to ``host``:``port``, once a process accepts one there.

    A name or a listener that appears on another host causes no event here, so this tries again and
    again: after 5 ms, then less often, then every second.

    Args:
        host: Name or address; the name need not resolve yet (a Kubernetes pod's appears late).
        port: 1 to 65535.
        within_s: When to give up; infinite: never.
        stop: Gives up at once when it is set.
        report: Called after 3, 15, 75 ... s with the reason so far, and until when this goes on.

    Raises:
        PeerUnreachableError: ``within_s`` is over, or ``stop`` is set.
    """
    begun_at = clock.monotonic()
    pause_s, report_after_s = _PAUSE_FIRST_S, _FIRST_WORD_S
    while True:
        left_s = begun_at + within_s - clock.monotonic()
        connected, why = _try(host, port, min(ATTEMPT_S, max(left_s, _ATTEMPT_LEAST_S)))
        if connected is not None:
            return connected
        left_s = begun_at + within_s - clock.monotonic()
        if left_s <= 0:
            here, where = socket.gethostname(), Endpoint(host, port)
            raise PeerUnreachableError(
                f"{where} could not be reached from {here}: {why}, tried for {within_s:g} s"
            )
        if (tried_s := clock.monotonic() - begun_at) >= report_after_s:
            goes_on = "" if math.isinf(left_s) else f", giving up in {left_s:.0f} s"
            report(f"{why}. Tried for {tried_s:.0f} s{goes_on}")
            report_after_s *= _NEXT_WORD
        if stop.wait(min(pause_s, left_s)):
            where = Endpoint(host, port)
            raise PeerUnreachableError(f"{where} could not be reached before the end: {why}")
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


def connect(address: tuple[Any, ...], timeout_s: float = ATTEMPT_S) -> socket.socket:
    """A connection to a socket address.

    Raises:
        OSError: There is none; ConnectionRefusedError: the host is there, and no process listens.
    """
    connecting = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    try:
        connecting.settimeout(timeout_s)
        connecting.connect(address)
        # A port of the range that the kernel takes own ports from may connect to itself.
        if connecting.getsockname() == connecting.getpeername():
            raise ConnectionRefusedError(errno.ECONNREFUSED, "no process listens there")
    except OSError:
        connecting.close()
        raise
    return connecting


def connect_host(host: str, port: int, timeout_s: float = ATTEMPT_S) -> socket.socket:
    """A connection to a name or an address.

    Raises:
        OSError: There is none; ConnectionRefusedError: each of its addresses refuses it.
    """
    found = look_up(host, port)
    last: OSError = ConnectionRefusedError(errno.ECONNREFUSED, "no process listens there")
    for _, _, _, _, address in found:
        try:
            return connect(address, timeout_s)
        except ConnectionRefusedError:
            pass
        except OSError as error:
            last = error
    raise last


def _try(host: str, port: int, timeout_s: float) -> tuple[socket.socket | None, str]:
    """A connection, or why there is none just now."""
    try:
        found = look_up(host, port)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name of an impossible form
        reason = getattr(error, "strerror", None) or error
        return None, f"the name {host!r} does not resolve ({reason})"
    why = "no address"
    for _, _, _, _, address in found:
        try:
            return connect(address, timeout_s), ""
        except TimeoutError:
            why = f"{address[0]} does not answer"
        except ConnectionRefusedError:
            why = f"no process listens there ({address[0]})"
        except OSError as error:
            why = f"{address[0]}: {error.strerror or error}"
    return None, why
