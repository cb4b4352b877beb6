"""Wait until a process listens at an address: names and hosts may appear late."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from holdfast.base import clock
from holdfast.net.pure.address import Endpoint

_PAUSE_FIRST_S = 0.05
_PAUSE_MAX_S = 1.0
_ATTEMPT_S = 3.0
"""For one connection: a packet without an answer is sent again after 1 s."""
_FIRST_WORD_S = 3.0
_NEXT_WORD = 5
"""Each word of a wait comes when it has taken so many times as long as at the word before."""


class PeerUnreachableError(ConnectionError):
    """An address could not be reached; names it, the time of trying, and the reason."""


def wait_until_reachable(
    host: str,
    port: int,
    within_s: float,
    stop: threading.Event,
    report: Callable[[str], None] = lambda _: None,
) -> str:
    """Return once a process accepts connections at ``host``:``port``.

    A name or a listener that appears on another host causes no event here, so this tries again and
    again: after 0.05 s, then less often, then every second.

    Args:
        host: Name or address; the name need not resolve yet (a Kubernetes pod's appears late).
        port: 1 to 65535.
        within_s: When to give up.
        stop: Gives up at once when it is set.
        report: Called after 3, 15, 75 ... s with the reason so far, and until when this goes on.

    Returns:
        This host's address, as seen from there.

    Raises:
        PeerUnreachableError: ``within_s`` is over, or ``stop`` is set.
    """
    begun_at = clock.monotonic()
    pause_s, report_after_s = _PAUSE_FIRST_S, _FIRST_WORD_S
    while True:
        left_s = begun_at + within_s - clock.monotonic()
        own, why = _try(host, port, min(_ATTEMPT_S, max(left_s, _PAUSE_FIRST_S)))
        if own is not None:
            return own
        left_s = begun_at + within_s - clock.monotonic()
        if left_s <= 0:
            here, where = socket.gethostname(), Endpoint(host, port)
            raise PeerUnreachableError(
                f"{where} could not be reached from {here}: {why}, tried for {within_s:g} s"
            )
        if within_s - left_s >= report_after_s:
            report(f"{why}. Tried for {within_s - left_s:.0f} s, giving up in {left_s:.0f} s")
            report_after_s *= _NEXT_WORD
        if stop.wait(min(pause_s, left_s)):
            where = Endpoint(host, port)
            raise PeerUnreachableError(f"{where} could not be reached before the end: {why}")
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


def _try(host: str, port: int, timeout_s: float) -> tuple[str | None, str]:
    """This host's address as seen from there, or why it can't be reached just now."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name of an impossible form
        reason = getattr(error, "strerror", None) or error
        return None, f"the name {host!r} does not resolve ({reason})"
    why = "no address"
    for family, kind, protocol, _, address in found:
        try:
            with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
                probe.settimeout(timeout_s)
                probe.connect(address)
                own: str = probe.getsockname()[0]
        except TimeoutError:
            why = f"{address[0]} does not answer"
        except ConnectionRefusedError:
            why = f"no process listens there ({address[0]})"
        except OSError as error:
            why = f"{address[0]}: {error.strerror or error}"
        else:
            return own, ""
    return None, why
