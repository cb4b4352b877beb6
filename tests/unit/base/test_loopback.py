"""Where processes of this host reach each other."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from holdfast.base.loopback import own_loopback


class OfSome(socket.socket):
    """A socket on a host that has the addresses ``own`` alone."""

    own = ""

    def bind(self, address: Any) -> None:
        if address[0] != self.own:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")


@pytest.mark.parametrize(
    ("own", "found"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("", "127.0.0.1")]
)
def test_loopback_is_ipv4_where_there_is_such_an_address(
    monkeypatch: pytest.MonkeyPatch, own: str, found: str
) -> None:
    monkeypatch.setattr(OfSome, "own", own)
    monkeypatch.setattr("holdfast.base.loopback.socket.socket", OfSome)
    assert own_loopback() == found
