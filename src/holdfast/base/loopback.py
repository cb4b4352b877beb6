"""The address at which processes of this host reach each other."""

from __future__ import annotations

import socket

_IPV4, _IPV6 = "127.0.0.1", "::1"


def own_loopback() -> str:
    """``127.0.0.1``, or where the host's loopback has IPv6 alone, ``::1``."""
    for family, address in ((socket.AF_INET, _IPV4), (socket.AF_INET6, _IPV6)):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((address, 0))
        except OSError:
            continue
        return address
    return _IPV4
