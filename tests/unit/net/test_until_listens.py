"""A server is found soon after it begins to listen, and not asked more often than it can bear."""

from __future__ import annotations

import _socket
import signal
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.net import until_listens
from holdfast.net.until_listens import wait_until_listens
from tests.waiting import BOUND_S, until

HERE = "127.0.0.1"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """It does not listen yet."""
    with socket.socket() as made:
        made.bind((HERE, 0))
        yield made


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of a virtual clock."""
    taken: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(taken), sleep=taken.append)
    monkeypatch.setattr(until_listens, "time", clock)
    return taken


def test_it_waits_until_the_server_listens(server: socket.socket) -> None:
    found: list[bool] = []
    waiting = threading.Thread(
        target=lambda: found.append(wait_until_listens(HERE, server.getsockname()[1], BOUND_S))
    )
    waiting.start()
    until(until_listens.is_waiting, "it waits")
    server.listen()
    waiting.join(BOUND_S)
    assert found == [True]
    assert not until_listens.is_waiting()


@pytest.mark.parametrize("host", ["localhost", HERE, "::1"])
def test_each_address_of_a_name_is_tried(host: str) -> None:
    family = socket.AF_INET6 if host == "::1" else socket.AF_INET
    try:
        with socket.create_server((HERE if host == "localhost" else host, 0), family=family) as one:
            assert wait_until_listens(host, one.getsockname()[1], BOUND_S)
    except OSError:
        pytest.skip("this machine has no such address")


def test_it_gives_up_in_time(server: socket.socket, pauses: list[float]) -> None:
    assert not wait_until_listens(HERE, server.getsockname()[1], 1.0)
    assert sum(pauses) == pytest.approx(1.0)
    assert pauses[:5] == [0.002, 0.004, 0.008, 0.016, 0.032]
    assert max(pauses) == 0.1


def test_many_that_wait_try_less_often_each(server: socket.socket, pauses: list[float]) -> None:
    assert not wait_until_listens(HERE, server.getsockname()[1], 60.0, 1000)
    assert 1000 * len(pauses) / 60.0 < 2_200
    pauses.clear()
    assert not wait_until_listens(HERE, server.getsockname()[1], 60.0, 100_000)
    assert (pauses[0], max(pauses)) == (0.25, 1.0), "no longer than torch's"


def test_a_name_that_is_not_known_yet_is_looked_up_again(
    server: socket.socket, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    look_ups: list[float] = []

    def look_up(host: str, port: int, *_: int) -> list[object]:
        look_ups.append(sum(pauses))
        if len(look_ups) < 3:
            raise socket.gaierror(socket.EAI_NONAME, host)
        return socket.getaddrinfo(HERE, port, type=socket.SOCK_STREAM)

    names = SimpleNamespace(**vars(_socket) | {"getaddrinfo": look_up})
    monkeypatch.setattr(until_listens, "_socket", names)
    server.listen()
    assert wait_until_listens("rank0.job", server.getsockname()[1], 60.0)
    assert look_ups == pytest.approx([0.0, 0.5, 1.5], abs=0.2)


def test_an_address_that_may_be_of_another_host_by_now_is_looked_up_again(
    server: socket.socket, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    look_ups: list[float] = []

    def look_up(*args: Any) -> list[Any]:
        look_ups.append(sum(pauses))
        return _socket.getaddrinfo(*args)

    names = SimpleNamespace(**vars(_socket) | {"getaddrinfo": look_up})
    monkeypatch.setattr(until_listens, "_socket", names)
    assert not wait_until_listens(HERE, server.getsockname()[1], 25.0)
    assert look_ups == pytest.approx([0.0, 10.0, 20.0], abs=0.2)


def test_a_connection_to_itself_is_no_server_and_does_not_keep_the_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A port of the range that the kernel takes own ports from may connect to itself."""
    ports: list[int] = []

    def from_the_same_port(*kind: int) -> _socket.socket:
        made = _socket.socket(*kind)
        made.bind((HERE, ports[0] if ports else 0))
        ports.append(made.getsockname()[1])
        return made

    from_the_same_port(_socket.AF_INET, _socket.SOCK_STREAM).close()
    sockets = SimpleNamespace(**vars(_socket) | {"socket": from_the_same_port})
    monkeypatch.setattr(until_listens, "_socket", sockets)
    assert not wait_until_listens(HERE, ports[0], 0.001)
    assert ports[1:] == ports[:1], "it has connected to itself, once"
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HERE, ports[0]))
        server.listen()


def test_the_exception_of_a_handler_ends_the_wait(server: socket.socket) -> None:
    """``TimeoutError``, with which a script bounds a call, is an OSError."""

    def too_long(*_: object) -> None:
        raise TimeoutError("the script's own")

    server.listen(0)
    before = signal.signal(signal.SIGALRM, too_long)
    with socket.create_connection(server.getsockname()), socket.socket() as one_more:
        one_more.setblocking(False)
        one_more.connect_ex(server.getsockname())  # now the server has all that it takes
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with pytest.raises(TimeoutError, match="the script's own"):
                wait_until_listens(HERE, server.getsockname()[1], BOUND_S)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
