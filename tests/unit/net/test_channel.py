"""A framed connection that never waits."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.net.channel import Channel, RefusedError
from holdfast.net.descriptors import Descriptors
from holdfast.net.loop import Loop
from holdfast.net.pure.frames import Decoder, encode


class End:
    """One end of a connection, and what happens there; the test holds the other one."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(30.0)
        self.loop = Descriptors()
        self.heard: list[Any] = []
        self.closed: list[str | None] = []
        self.channel = Channel(ours, self.loop, self.hear, lambda it: self.closed.append(it.gone))

    def hear(self, channel: Channel, message: Any) -> None:
        self.heard.append(message.get("number"))
        if message.get("number") == "refused":
            raise RefusedError("has the wrong number")
        if message.get("number") == "close":
            channel.close()

    def say(self, *numbers: object) -> None:
        for number in numbers:
            self.theirs.sendall(encode({"number": number}))

    def turn(self, times: int = 5) -> None:
        for _ in range(times):
            self.loop.wait(0.0)

    def close(self) -> None:
        self.channel.close()
        self.theirs.close()
        self.loop.epoll.close()


@pytest.fixture
def end() -> Iterator[End]:
    end = End()
    yield end
    end.close()


def test_the_last_words_of_who_has_ended_are_heard(end: End) -> None:
    """All of them, be they more than one chunk."""
    end.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    for number in range(20):
        end.theirs.sendall(encode({"op": "event", "number": number, "text": "x" * 5000}))
    end.theirs.close()

    end.channel.drain()
    assert end.heard == list(range(20))
    assert end.closed == ["closed"]


def test_who_has_said_all_so_far_is_not_asked_again_and_again(
    end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A monitor that lives is heard out when its rank ends: a restart waits for that."""
    looks = []
    receive = socket.socket.recv

    def look(self: socket.socket, *args: int) -> bytes:
        looks.append(args)
        return receive(self, *args)

    monkeypatch.setattr(socket.socket, "recv", look, raising=False)
    end.theirs.sendall(encode({"number": 1}) + encode({"number": 2})[:3])

    end.channel.drain()
    assert end.heard == [1]
    assert (len(looks), end.channel.gone) == (2, None)


def test_one_chunk_is_read_at_a_time_so_that_a_flood_starves_nobody(end: End) -> None:
    """An end that has much to say is heard again at the loop's next turn."""
    end.theirs.setblocking(False)
    end.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    for number in range(40):
        end.theirs.sendall(encode({"number": number, "text": "x" * 4000}))
    end.turn(1)
    assert 0 < len(end.heard) < 20
    end.turn()
    assert end.heard == list(range(40))


def test_nothing_is_heard_of_a_peer_after_it_was_cut_off_or_left(end: End) -> None:
    """Its messages may have come in the same packet. What is closed here needs no report."""
    end.say(1, "close", 2)
    end.turn()
    assert (end.heard, end.closed) == ([1, "close"], [])


def test_a_peer_that_is_cut_off_is_told_why_and_reported(end: End) -> None:
    """Once, and its owner hears of the end after that."""
    reported: list[str] = []
    end.channel.refusal = lambda why: {"error": why}
    end.channel.report = lambda _, why: reported.append(why)
    end.say(1, "refused", 2)
    end.turn()

    assert (end.heard, reported) == ([1, "refused"], ["has the wrong number"])
    assert end.closed == reported
    assert Decoder().feed(end.theirs.recv(1 << 16)) == [{"error": "has the wrong number"}]


def test_garbage_is_reported_and_an_end_is_not(end: End) -> None:
    """A peer that dies did nothing wrong."""
    reported: list[str] = []
    end.channel.report = lambda _, why: reported.append(why)
    end.theirs.sendall(b"GET / HTTP/1.1")
    end.turn()
    [why] = reported
    assert why.startswith("sent a malformed message: frame of ")
    other = End()
    other.channel.report = end.channel.report
    other.theirs.close()
    other.turn()
    assert (other.closed, len(reported)) == (["closed"], 1)
    other.close()


def test_who_does_not_read_gets_the_rest_later(end: End) -> None:
    """Sending never waits; the loop sleeps until the other end has read."""
    for number in range(30):
        end.channel.send({"number": number, "text": "x" * 100_000})
    assert end.loop.epoll.poll(0) == []
    decoder, heard = Decoder(), []
    while len(heard) < 30:
        heard += [message["number"] for message in decoder.feed(end.theirs.recv(1 << 20))]
        end.turn()
    assert heard == list(range(30))
    assert end.loop.epoll.poll(0) == [], "not woken for being able to send"


def test_a_peer_that_takes_nothing_any_more_is_lost_though_it_says_nothing(end: End) -> None:
    """It has shut down its reading end alone: no event but a failing send tells that."""
    end.say(1)
    end.theirs.shutdown(socket.SHUT_RD)
    end.channel.send({"number": 2})
    end.turn()
    assert end.heard == [1], "what it said before is heard"
    assert end.closed == ["Broken pipe"]


def test_a_descriptor_goes_with_its_message_as_a_copy(tmp_path: Path) -> None:
    """The receiver has it although the sender has closed its own."""
    ours, theirs = socket.socketpair()
    with Loop() as loop, theirs:
        channel = Channel(ours, loop, lambda *_: None, lambda _: None)
        with (tmp_path / "file").open("w+") as file:
            file.write("in it")
            file.flush()
            channel.send_with({"op": "arena"}, [file.fileno()])
        data, [fd], *_ = socket.recv_fds(theirs, 1 << 16, 4)
        assert Decoder().feed(data) == [{"op": "arena"}]
        assert os.pread(fd, 10, 0) == b"in it"
        os.close(fd)
        channel.close()


def test_a_peer_that_does_not_read_gets_no_descriptor() -> None:
    """Nor does it end anything: it reads its messages later."""
    ours, theirs = socket.socketpair()
    with Loop() as loop, theirs:
        channel = Channel(ours, loop, lambda *_: None, lambda _: None)
        while channel.gone is None and not channel._backlog:
            channel.send({"op": "x" * 5000})
        channel.send_with({"op": "arena"}, [theirs.fileno()])
        assert channel.gone is None
        theirs.setblocking(False)
        _, fds, *_ = socket.recv_fds(theirs, 1 << 20, 4)
        assert fds == []
        channel.close()
