"""Connections that have not authenticated, on a virtual clock."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.net import server as module
from holdfast.net.channel import Channel, RefusedError
from holdfast.net.descriptors import Descriptors
from holdfast.net.pure.admission import SILENT_S
from holdfast.net.server import UNAUTHENTICATED_MAX, Server
from tests.garbage import framed
from tests.unit.node.test_control_endpoint import no_descriptor_free


class Endpoint:
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
        self.lines: list[str] = []
        self.friends: list[Channel] = []
        self.said: list[str] = []
        self.closed: list[str | None] = []
        self.callers: list[socket.socket] = []
        self.accepts = True
        self.server = Server(
            self.listener,
            self.descriptors,
            self.authenticate,
            self.lines.append,
            identify=lambda _connected, address: self.host_of(address),
            may_accept=lambda: self.accepts,
        )
        self.hosts: dict[Any, str] = {}
        self.server.open()

    def host_of(self, address: Any) -> str:
        host = self.hosts.get(address, "a host")
        if host == "nobody":
            raise RefusedError("nobody may call here")
        return host

    def authenticate(self, channel: Channel, frame: Mapping[str, Any]) -> None:
        if frame.get("say") == "boom":
            raise KeyError("boom")
        if frame.get("say") not in ("friend", "bye"):
            raise RefusedError("is none of us")
        self.server.admit(channel, self.serve, lambda it: self.closed.append(it.gone), 1 << 20)
        if frame["say"] == "bye":
            channel.close()
        else:
            self.friends.append(channel)

    def serve(self, channel: Channel, frame: Mapping[str, Any]) -> None:
        self.said.append(frame["say"])
        if frame["say"] == "boom":
            raise KeyError("boom")
        channel.send(frame)

    def call(self, host: str = "a host", *says: str) -> socket.socket:
        caller = socket.socket(socket.AF_UNIX)
        caller.bind("")
        self.hosts[caller.getsockname()] = host
        caller.settimeout(30.0)
        caller.connect(self.listener.getsockname())
        self.callers.append(caller)
        for say in says:
            caller.sendall(framed(json.dumps({"say": say}).encode()))
        return caller

    def turn(self, times: int = 20) -> None:
        for _ in range(times):
            self.descriptors.wait(0.0)

    def close(self) -> None:
        self.server.close()
        for caller in self.callers:
            caller.close()
        for friend in self.friends:
            friend.close()
        self.listener.close()
        self.descriptors.epoll.close()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    endpoint = Endpoint(monkeypatch)
    yield endpoint
    endpoint.close()


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


def test_a_silent_connection_is_cut_off_after_a_time_though_nobody_else_calls(
    endpoint: Endpoint,
) -> None:
    """So is one that sends a byte now and then."""
    silent, slow = endpoint.call(), endpoint.call("another host")
    endpoint.turn()
    assert endpoint.server.next_deadline() == 100.0 + SILENT_S
    endpoint.now += SILENT_S / 2
    slow.sendall(b"\0")
    endpoint.turn()
    endpoint.server.tick(endpoint.now)
    assert not is_cut_off(silent)
    endpoint.now += SILENT_S / 2
    endpoint.server.tick(endpoint.now)
    assert is_cut_off(silent)
    assert is_cut_off(slow)
    assert endpoint.lines == [
        f"{who} was cut off: sent no handshake within 5 s" for who in ("a host", "another host")
    ]
    assert endpoint.server.next_deadline() is None


def test_a_handshake_that_came_while_the_server_was_stopped_counts(endpoint: Endpoint) -> None:
    """A guard that waits for the coordinator's answer to its call reads no rank meanwhile."""
    spoken, silent = endpoint.call(), endpoint.call()
    endpoint.turn()
    spoken.sendall(framed(b'{"say":"friend"}'))
    endpoint.now += SILENT_S + 2.0
    endpoint.server.tick(endpoint.now)
    assert endpoint.lines == []
    endpoint.turn()
    assert len(endpoint.friends) == 1
    deadline = endpoint.server.next_deadline()
    assert deadline is not None
    endpoint.server.tick(deadline)
    assert is_cut_off(silent)
    assert not is_cut_off(spoken)


def test_what_one_caller_does_wrong_ends_its_connection_alone(endpoint: Endpoint) -> None:
    """Also where the server cannot handle it; 4 KiB are the longest first message."""
    says = {"a": "boom", "b": "none", "c": "x" * 5000, "d": "friend"}
    callers = [endpoint.call(host, say) for host, say in says.items()]
    nobody = endpoint.call("nobody", "friend")
    endpoint.turn()
    assert [is_cut_off(one) for one in (*callers, nobody)] == [True, True, True, False, True]
    assert endpoint.lines == [
        "a caller was cut off: nobody may call here",
        "a was cut off: sent a message that cannot be handled: KeyError('boom')",
        "b was cut off: is none of us",
        "c was cut off: sent a malformed message: frame of 5011 bytes announced, limit 4096",
    ]
    assert len(endpoint.friends) == 1


def test_messages_that_come_with_the_handshake_are_served(endpoint: Endpoint) -> None:
    """In one packet, the longer ones after it as well; and it is still one peer that fails."""
    caller = endpoint.call("a host", "friend", "x" * 5000, "boom", "more")
    endpoint.turn()
    assert endpoint.said == ["x" * 5000, "boom"]
    assert endpoint.lines == [
        "a host was cut off: sent a message that cannot be handled: KeyError('boom')"
    ]
    assert endpoint.closed == ["sent a message that cannot be handled: KeyError('boom')"]
    assert json.loads(caller.recv(1 << 16)[4:]) == {"say": "x" * 5000}


def test_the_line_about_a_caller_comes_once_a_minute(endpoint: Endpoint) -> None:
    """Whoever sends garbage may send it a thousand times a second."""
    for _ in range(50):
        endpoint.call("a host", "none")
        endpoint.turn()
    assert endpoint.lines == ["a host was cut off: is none of us"]


def test_a_caller_that_hangs_up_is_not_logged(endpoint: Endpoint) -> None:
    """A rank that dies, or a look whether somebody listens."""
    endpoint.call().close()
    endpoint.turn()
    assert endpoint.lines == []
    assert endpoint.server.next_deadline() is None


def test_a_connection_that_is_admitted_and_closed_at_once_is_forgotten(endpoint: Endpoint) -> None:
    """Its descriptor belongs to the next caller, who has its whole time."""
    leaving = endpoint.call("a host", "bye")
    endpoint.turn()
    assert is_cut_off(leaving)
    assert endpoint.server.next_deadline() is None
    endpoint.now += SILENT_S / 2
    endpoint.call()
    endpoint.turn()
    assert endpoint.server.next_deadline() == endpoint.now + SILENT_S


def test_a_flood_from_one_host_pushes_out_its_own(endpoint: Endpoint) -> None:
    """A caller of another host, whose handshake is on its way, stays; memory is bounded."""
    patient = endpoint.call("another host")
    endpoint.turn()
    flood = [endpoint.call("flooder") for _ in range(UNAUTHENTICATED_MAX + 50)]
    endpoint.turn()
    assert len(endpoint.server._unauthenticated) == UNAUTHENTICATED_MAX
    assert [is_cut_off(one) for one in flood].count(True) == 51
    assert endpoint.lines == [
        "flooder was cut off: has too many connections without a handshake: 255"
    ]
    patient.sendall(framed(b'{"say":"friend"}'))
    endpoint.turn()
    assert len(endpoint.friends) == 1


def test_a_handshake_that_is_here_already_is_read_before_its_caller_is_pushed_out(
    endpoint: Endpoint,
) -> None:
    """All came in the same moment, more of them than may wait, and none was read yet."""
    callers = [endpoint.call("a host", "friend") for _ in range(UNAUTHENTICATED_MAX + 100)]
    while select.select([endpoint.listener], [], [], 0)[0]:
        endpoint.server.accept()
    assert len(endpoint.friends) == 100
    endpoint.turn(50)
    assert len(endpoint.friends) == UNAUTHENTICATED_MAX + 100
    assert not any(is_cut_off(caller) for caller in callers)
    assert endpoint.lines == []


def test_without_a_free_descriptor_callers_wait_and_nothing_turns(endpoint: Endpoint) -> None:
    """None is cut off for it; some time later the server accepts again."""
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    endpoint.callers += waiting
    with no_descriptor_free(but=0):
        for caller in waiting:
            caller.settimeout(30.0)
            caller.connect(endpoint.listener.getsockname())
            caller.sendall(framed(b'{"say":"friend"}'))
        endpoint.turn()
        assert endpoint.friends == []
        assert endpoint.descriptors.epoll.poll(0) == [], "it would turn without end"
        [line] = endpoint.lines
        assert "can accept no connection, so its callers wait: Too many open files. " in line
        deadline = endpoint.server.next_deadline()
        assert deadline is not None
        assert deadline > endpoint.now
        endpoint.now = deadline
        endpoint.server.tick(endpoint.now)
        endpoint.turn()
        assert endpoint.lines == [line], "once, as long as it lasts"
        deadline = endpoint.server.next_deadline()
        assert deadline is not None
    endpoint.now = deadline
    endpoint.server.tick(endpoint.now)
    endpoint.turn()
    assert len(endpoint.friends) == 3


def test_an_owner_that_lets_nobody_in_leaves_callers_in_the_queue(endpoint: Endpoint) -> None:
    """A successor, which is given the same listener, serves them."""
    endpoint.accepts = False
    endpoint.call("a host", "friend")
    endpoint.turn()
    assert endpoint.friends == []
    endpoint.accepts = True
    endpoint.turn()
    assert len(endpoint.friends) == 1


def test_a_process_of_another_user_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says whose it is; root's and our own may call."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for uid in (0, os.geteuid()):
            monkeypatch.setattr(module, "peer_of", lambda _, uid=uid: (7, uid))
            assert module.local_process(ours, None) == "process 7"
        monkeypatch.setattr(module, "peer_of", lambda _: (7, os.geteuid() + 1000))
        with pytest.raises(RefusedError, match="process 7 belongs to user "):
            module.local_process(ours, None)
