"""Which addresses are ours, and which of them others see."""

from __future__ import annotations

import socket


def is_our_address(host: str) -> bool:
    """Whether ``host`` names this machine: an address that a socket of ours can have."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
        except OSError:
            continue
        return True
    return False


def address_towards(host: str, port: int) -> str:
    """Our address as the launcher at ``host`` would see it: of the interface that leads there."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                ours: str = probe.getsockname()[0]
                return ours
    except OSError:
        pass
    return socket.getfqdn()
