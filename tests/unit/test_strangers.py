"""Callers that have not proved who they are."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.net import strangers as module
from holdfast.net.descriptors import Descriptors
from holdfast.net.pure.admission import SILENT_S
from holdfast.net.strangers import STRANGERS_MAX, Stranger, StrangerError, Strangers
from tests.garbage import framed
from tests.unit.test_control_endpoint import no_descriptor_free


class Server:
    """Lets in who says "friend"; time is what a test says.

    On a Unix socket, where what one end does has reached the other when the call returns. Callers
    have an address there as well: the kernel gives them a name.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(module, "clock", SimpleNamespace(monotonic=lambda: self.now))
        self.descriptors = Descriptors()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind("")
        self.listener.listen(2000)
        self.complaints: list[tuple[str, str]] = []
        self.friends: list[Stranger] = []
        self.callers: list[socket.socket] = []
        self.strangers = Strangers(
            self.listener,
            self.descriptors,
            greet=lambda _connected, address: self.host_of(address),
            hear=self.hear,
            complain=lambda who, what: self.complaints.append((who, what)),
        )
        self.hosts: dict[Any, str] = {}

    def host_of(self, address: Any) -> str:
        return self.hosts.get(address, "a host")

    def hear(self, stranger: Stranger, frame: dict[str, Any]) -> bool:
        if frame.get("say") == "boom":
            raise KeyError("boom")
        if frame.get("say") == "bye":
            self.descriptors.hang_up(stranger.channel)
            return True
        if frame.get("say") != "friend":
            raise StrangerError("is none of us")
        self.friends.append(stranger)
        return True

    def call(self, host: str = "a host", say: str | None = None) -> socket.socket:
        caller = socket.socket(socket.AF_UNIX)
        caller.bind("")
        self.hosts[caller.getsockname()] = host
        caller.settimeout(30.0)
        caller.connect(self.listener.getsockname())
        self.callers.append(caller)
        if say is not None:
            caller.sendall(framed(json.dumps({"say": say}).encode()))
        return caller

    def turn(self, times: int = 20) -> None:
        for _ in range(times):
            self.descriptors.wait(0.0)

    def close(self) -> None:
        self.strangers.close()
        for caller in self.callers:
            caller.close()
        for friend in self.friends:
            self.descriptors.hang_up(friend.channel)
        self.listener.close()
        self.descriptors.epoll.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server(monkeypatch)
    yield server
    server.close()


def is_cut_off(caller: socket.socket) -> bool:
    caller.setblocking(False)
    try:
        return caller.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        caller.settimeout(30.0)


def test_a_silent_stranger_is_cut_off_after_a_time_though_nobody_else_calls(
    server: Server,
) -> None:
    """So is one that says a byte now and then."""
    silent, slow = server.call(), server.call()
    server.turn()
    assert server.strangers.next_deadline() == 100.0 + SILENT_S
    server.now += SILENT_S / 2
    slow.sendall(b"\0")
    server.turn()
    server.strangers.tick(server.now)
    assert not is_cut_off(silent)
    server.now += SILENT_S / 2
    server.strangers.tick(server.now)
    assert is_cut_off(silent)
    assert is_cut_off(slow)
    assert server.complaints == [("a host", "sent no handshake within 5 s")] * 2
    assert server.strangers.next_deadline() is None


def test_who_spoke_while_the_server_was_stopped_is_let_in(server: Server) -> None:
    """A guard that waits for the coordinator's answer to its call hears no rank meanwhile."""
    spoken, silent = server.call(), server.call()
    server.turn()
    spoken.sendall(framed(b'{"say":"friend"}'))
    server.now += SILENT_S + 2.0
    server.strangers.tick(server.now)
    assert server.complaints == []
    server.turn()
    assert len(server.friends) == 1
    deadline = server.strangers.next_deadline()
    assert deadline is not None
    server.strangers.tick(deadline)
    assert is_cut_off(silent)
    assert not is_cut_off(spoken)


def test_what_one_stranger_does_wrong_ends_its_connection_alone(server: Server) -> None:
    """Also where it is we who cannot handle it; and 4 KiB are the most it may send."""
    boom, none, long = server.call(say="boom"), server.call(say="none"), server.call(say="x" * 5000)
    friend = server.call(say="friend")
    server.turn()
    assert [is_cut_off(one) for one in (boom, none, long, friend)] == [True, True, True, False]
    assert [what for _, what in server.complaints] == [
        "sent a message that cannot be handled: KeyError('boom')",
        "is none of us",
        "sent no handshake: frame of 5011 bytes announced, limit 4096",
    ]
    assert len(server.friends) == 1


def test_who_is_let_in_and_hung_up_on_at_once_is_forgotten(server: Server) -> None:
    """Its descriptor belongs to the next caller, who has its whole time."""
    leaving = server.call(say="bye")
    server.turn()
    assert is_cut_off(leaving)
    assert server.strangers.next_deadline() is None
    server.now += SILENT_S / 2
    server.call()
    server.turn()
    assert server.strangers.next_deadline() == server.now + SILENT_S


def test_a_flood_from_one_host_pushes_out_its_own(server: Server) -> None:
    """A stranger of another host, whose word is on its way, stays; memory is bounded."""
    patient = server.call("another host")
    server.turn()
    flood = [server.call("flooder") for _ in range(STRANGERS_MAX + 50)]
    server.turn()
    assert len(server.strangers._strangers) == STRANGERS_MAX
    assert [is_cut_off(one) for one in flood].count(True) == 51
    assert {who for who, _ in server.complaints} == {"flooder"}
    patient.sendall(framed(b'{"say":"friend"}'))
    server.turn()
    assert len(server.friends) == 1


def test_who_has_said_the_word_is_let_in_before_it_is_pushed_out(server: Server) -> None:
    """All came in the same moment, more of them than may wait, and none was heard yet."""
    callers = [server.call(say="friend") for _ in range(STRANGERS_MAX + 100)]
    while select.select([server.listener], [], [], 0)[0]:
        server.strangers._accept()
    assert len(server.friends) == 100
    server.turn(50)
    assert len(server.friends) == STRANGERS_MAX + 100
    assert not any(is_cut_off(caller) for caller in callers)
    assert server.complaints == []


def test_without_a_free_descriptor_callers_wait_and_nothing_turns(server: Server) -> None:
    """Nobody is cut off for it; listening goes on as soon as one is free, or some time later."""
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    server.callers += waiting
    with no_descriptor_free(but=0):
        for caller in waiting:
            caller.settimeout(30.0)
            caller.connect(server.listener.getsockname())
            caller.sendall(framed(b'{"say":"friend"}'))
        server.turn()
        assert server.friends == []
        assert server.descriptors.epoll.poll(0) == [], "it would turn without end"
        assert server.complaints[0][0] == "this process"
        deadline = server.strangers.next_deadline()
        assert deadline is not None
        assert deadline > server.now
    server.now = deadline
    server.strangers.tick(server.now)
    server.turn()
    assert len(server.friends) == 3
