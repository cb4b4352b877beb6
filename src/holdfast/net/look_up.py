"""Addresses of a name."""

from __future__ import annotations

import socket
from typing import Any


def look_up(
    host: str, port: int, kind: socket.SocketKind = socket.SOCK_STREAM
) -> list[tuple[Any, ...]]:
    """``socket.getaddrinfo`` of a name or an address; may wait for a resolver.

    Raises:
        OSError: The name has no address.
        UnicodeError: It is of an impossible form.
    """
    # CPython encodes a text by IDNA, and the import of its modules takes milliseconds.
    name = host.encode() if host.isascii() else host
    return [*socket.getaddrinfo(name, port, type=kind)]
