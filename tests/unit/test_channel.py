"""A framed connection that never waits."""

from __future__ import annotations

import select
import socket

import pytest

from holdfast.net.channel import Channel
from holdfast.net.pure.frames import encode


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


def test_who_has_said_all_so_far_is_not_asked_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A monitor that lives is heard out when its rank ends: a restart waits for that."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours, select.epoll())
    looks = []
    receive = socket.socket.recv

    def look(self: socket.socket, *args: int) -> bytes:
        looks.append(args)
        return receive(self, *args)

    monkeypatch.setattr(socket.socket, "recv", look, raising=False)
    theirs.sendall(encode({"number": 1}) + encode({"number": 2})[:3])

    assert channel.receive_rest() == [{"number": 1}]
    assert (len(looks), channel.gone) == (2, None)
    channel.close()
    theirs.close()
