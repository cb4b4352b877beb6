"""TCP sockets for all addresses of a host, and connections that notice a vanished peer."""

from __future__ import annotations

import socket

_PROBES = 3
_LONGEST_IDLE_S = 32767
_LONGEST_UNACKNOWLEDGED_MS = 2**31 - 1
"""The kernel's maximum: 9 hours, and 24 days."""


def bound_socket(port: int) -> socket.socket:
    """A socket bound to ``port`` (0: any) on every address of this host, IPv6 and IPv4.

    Where the kernel has no IPv6, on those of IPv4. SO_REUSEADDR is set, as nearly every server's.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(("", port))
    except OSError:
        bound.close()
        raise
    return bound


def tune(connected: socket.socket, silence_s: float) -> None:
    """No delay for small frames; an error once the peer's machine is silent for ``silence_s``.

    Applies to bytes that were sent and not acknowledged (TCP_USER_TIMEOUT), and, by keepalive, to
    an idle connection.
    """
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probe_s = max(1, min(int(silence_s / (_PROBES + 1)), _LONGEST_IDLE_S))
    for option, value in (
        (socket.TCP_KEEPIDLE, probe_s),
        (socket.TCP_KEEPINTVL, probe_s),
        (socket.TCP_KEEPCNT, _PROBES),
        (socket.TCP_USER_TIMEOUT, max(1, min(int(silence_s * 1000), _LONGEST_UNACKNOWLEDGED_MS))),
    ):
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
