from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.base import clock
from holdfast.net.reach import PeerUnreachableError, connect_when_reachable

NEVER = threading.Event()


@pytest.fixture
def unused_port() -> Iterator[int]:
    """It is ours, so that no other process listens there, and neither do we."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_who_listens_is_reached_at_once() -> None:
    """Even with no time at all."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect_when_reachable("127.0.0.1", server.getsockname()[1], 0, NEVER).close()


def test_a_name_that_appears_late_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a Kubernetes pod does."""
    resolve, asked = socket.getaddrinfo, []

    def late(host: bytes, *args: Any, **kwargs: Any) -> Any:
        asked.append(host.decode())
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", late)
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect_when_reachable("pod-0.job", server.getsockname()[1], 30, NEVER).close()

    assert asked == ["pod-0.job"] * 3


def test_a_listener_that_comes_late_is_reached() -> None:
    """It was refused before."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        tried: list[object] = []

        class Listens(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                tried.append(timeout)
                server.listen()
                return False

        connect_when_reachable("127.0.0.1", server.getsockname()[1], 30, Listens()).close()

    assert len(tried) == 1


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("nowhere.invalid", r"the name 'nowhere.invalid' does not resolve \(.+\)"),
        ("a..b", r"the name 'a..b' does not resolve \(.+\)"),
        ("127.0.0.1", r"no process listens there \(127.0.0.1\)"),
    ],
)
def test_who_cannot_be_reached_is_named_in_one_line(host: str, why: str, unused_port: int) -> None:
    """With the reason, who tried, and for how long."""
    port = unused_port
    here = socket.gethostname()
    text = rf"{host}:{port} could not be reached from {here}: {why}, tried for 0.1 s"
    with pytest.raises(PeerUnreachableError, match=f"^{text}$"):
        connect_when_reachable(host, port, 0.1, NEVER)


def test_a_long_wait_says_what_it_waits_for_and_until_when(
    monkeypatch: pytest.MonkeyPatch, unused_port: int
) -> None:
    """Seldom enough for a log, and never before it takes long."""
    now, told = 0.0, []

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now
            now += timeout or 0.0
            return False

    monkeypatch.setattr(clock, "monotonic", lambda: now)
    with pytest.raises(PeerUnreachableError, match="tried for 900 s"):
        connect_when_reachable("127.0.0.1", unused_port, 900, Waits(), told.append)

    why = "no process listens there (127.0.0.1). Tried for "
    assert [text.removeprefix(why) for text in told] == [
        "3 s, giving up in 897 s",
        "15 s, giving up in 885 s",
        "75 s, giving up in 825 s",
        "375 s, giving up in 525 s",
    ]


def test_the_wait_ends_when_it_is_told_to(unused_port: int) -> None:
    """Long before its time."""
    stop = threading.Event()
    stop.set()
    with pytest.raises(PeerUnreachableError, match="before the end"):
        connect_when_reachable("127.0.0.1", unused_port, 1e6, stop)


def test_no_look_up_imports_the_modules_of_idna() -> None:
    """Milliseconds of each start of a job of several nodes."""
    look = "from holdfast.net.look_up import look_up; import sys; look_up('localhost', 80)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"{look}; print('encodings.idna' in sys.modules)"],
        env={"PYTHONPATH": str(Path(holdfast.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
