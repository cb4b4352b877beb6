"""A server is found soon after it begins to listen, and not asked more often than it can bear."""

from __future__ import annotations

import _socket
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from holdfast.net import until_listens
from holdfast.net.until_listens import wait_until_listens

HERE = "127.0.0.1"
BOUND_S = 30.0


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
    waiting.join(0.05)
    assert found == []
    server.listen()
    waiting.join(BOUND_S)
    assert found == [True]


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
    assert not wait_until_listens(HERE, server.getsockname()[1], 60.0, 8000)
    assert 8000 * len(pauses) / 60.0 < 11_000


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
    assert look_ups == pytest.approx([0.0, 10.0, 20.0], abs=0.2)


def test_a_connection_to_itself_is_no_server(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port of the range that the kernel takes own ports from may connect to itself."""
    itself = SimpleNamespace(
        settimeout=lambda _: None,
        connect=lambda _: None,
        close=lambda: None,
        getsockname=lambda: (HERE, 40_000),
        getpeername=lambda: (HERE, 40_000),
    )
    sockets = SimpleNamespace(**vars(_socket) | {"socket": lambda *_: itself})
    monkeypatch.setattr(until_listens, "_socket", sockets)
    assert not wait_until_listens(HERE, 40_000, 1.0)
    assert pauses
