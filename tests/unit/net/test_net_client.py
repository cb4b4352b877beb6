"""A framed connection for code that waits."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from holdfast.base.own_descriptor import LostDescriptorError, OwnSocket
from holdfast.net.client import Client
from holdfast.net.pure.frames import FrameError, encode

BOUND_S = 30.0


class Pair:
    """A client, and the other end in the test's hands."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(BOUND_S)
        self.client = Client(OwnSocket(ours.detach()))

    def close(self) -> None:
        self.client.close()
        self.theirs.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_messages_come_one_by_one_however_the_kernel_cuts_them(pair: Pair) -> None:
    """What came with the first waits for the next call, also when the other end is gone by then."""
    first, rest = encode({"n": 1})[:3], encode({"n": 1})[3:] + encode({"n": 2}) + encode({"n": 3})
    pair.theirs.sendall(first)
    with pytest.raises(TimeoutError):
        pair.client.receive(0.0)
    pair.theirs.sendall(rest)
    pair.theirs.close()
    assert pair.client.receive(BOUND_S) == {"n": 1}
    assert pair.client.received() == [{"n": 2}, {"n": 3}]
    with pytest.raises(ConnectionResetError, match="it closed the connection"):
        pair.client.received()


def test_nothing_is_waited_for_where_that_is_not_wanted(pair: Pair) -> None:
    """A thread that has other things to do looks what is there."""
    assert pair.client.received() == []
    pair.theirs.sendall(encode({"n": 1}))
    assert pair.client.received() == [{"n": 1}]


def test_an_end_that_does_not_read_holds_up_for_a_time_and_costs_the_connection(
    pair: Pair,
) -> None:
    """Half a message is out: whatever follows would be taken for its rest."""
    with pytest.raises(TimeoutError):
        pair.client.send({"text": "x" * 1_000_000}, 0.01)
    assert pair.client.fileno() == -1


def test_what_was_said_before_the_other_end_left_is_heard_though_nothing_can_be_sent(
    pair: Pair,
) -> None:
    """A guard says why it refuses, and hangs up."""
    pair.theirs.sendall(encode({"why": "refused"}))
    pair.theirs.close()
    with pytest.raises(BrokenPipeError):
        pair.client.send({"n": 1})
    assert pair.client.receive(BOUND_S) == {"why": "refused"}


def test_a_thread_that_waits_is_woken_by_a_hang_up(pair: Pair) -> None:
    """And by a close after it."""
    ended: list[Exception] = []

    def wait() -> None:
        try:
            pair.client.receive(None)
        except OSError as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    pair.client.hang_up()
    pair.client.close()
    thread.join(BOUND_S)
    assert len(ended) == 1


def test_a_message_that_is_too_long_is_refused_in_both_directions() -> None:
    """Before anything is sent."""
    ours, theirs = socket.socketpair()
    with Client(ours, frame_bytes_max=100) as client, Client(theirs) as other:
        with pytest.raises(FrameError, match="limit 100"):
            client.send({"text": "x" * 100})
        client.send({"n": 1})
        assert other.receive(BOUND_S) == {"n": 1}
        other.send({"text": "x" * 100})
        with pytest.raises(FrameError, match="limit 100"):
            client.receive(BOUND_S)


def test_a_descriptor_that_the_program_has_closed_is_left_alone(pair: Pair) -> None:
    """Its number may be a file of the program by now."""
    fd = pair.client.fileno()
    os.close(fd)
    os.dup2(pair.theirs.fileno(), fd)
    with pytest.raises(LostDescriptorError):
        pair.client.receive(BOUND_S)
    with pytest.raises(OSError, match="descriptor"):
        pair.client.send({"n": 1})
    os.close(fd)
