"""A framed connection that never waits."""

from __future__ import annotations

import select
import socket

from holdfast.host.channel import Channel
from holdfast.wire.frames import encode


def test_the_last_words_of_who_has_ended_are_heard() -> None:
    """All of them, be they more than one chunk."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    channel = Channel(ours, select.epoll())
    for number in range(20):
        theirs.sendall(encode({"op": "event", "number": number, "text": "x" * 5000}))
    theirs.close()

    assert [message["number"] for message in channel.receive_rest()] == list(range(20))
    assert channel.gone == "closed"
    channel.close()
