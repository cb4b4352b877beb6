"""Asking over a Unix socket."""

import os
import socket
import stat
import threading
from collections.abc import Callable

import pytest

from holdfast.net.endpoint import (
    EndpointClosedError,
    EndpointTimeoutError,
    UnixSocketError,
    connect,
    listen,
)
from holdfast.net.pure.frames import encode


@pytest.fixture
def answering(tmp_path):
    """Serve one connection: ``answering(serve)`` gives the path to connect to."""
    opened = []

    def start(serve: Callable[[socket.socket], None]) -> str:
        path = str(tmp_path / "s")
        listener = listen(path)
        listener.settimeout(30)

        def run() -> None:
            accepted, _ = listener.accept()
            accepted.settimeout(30)
            with accepted:
                serve(accepted)

        thread = threading.Thread(target=run)
        thread.start()
        opened.append((listener, thread))
        return path

    yield start
    for listener, thread in opened:
        thread.join(30)
        listener.close()


def test_an_answer_comes_back_in_whatever_pieces(answering) -> None:
    """A frame is a frame, however the kernel cuts it."""

    def serve(accepted: socket.socket) -> None:
        accepted.recv(1000)
        for byte in encode({"op": "ok"}):
            accepted.sendall(bytes([byte]))
        accepted.recv(1000)
        accepted.sendall(encode({"op": "ok", "n": 2}))

    connection = connect(answering(serve))
    assert connection.request({"op": "a"}, 30.0) == {"op": "ok"}
    assert connection.request({"op": "b"}, 30.0) == {"op": "ok", "n": 2}
    connection.close()
    connection.close()


def test_the_other_end_going_away_is_told_from_its_silence(answering, tmp_path) -> None:
    """Gone may be tried again elsewhere; silent may not."""
    connection = connect(answering(lambda accepted: accepted.recv(1)))
    with pytest.raises(EndpointClosedError, match=r"broke off during 'limits'.*has ended"):
        connection.request({"op": "limits"}, 30.0)


def test_a_late_answer_is_not_taken_for_the_next(answering) -> None:
    """A question that was given up is still answered some day, and nobody hangs up meanwhile."""
    heard, asked = threading.Semaphore(0), threading.Semaphore(0)

    def serve(accepted: socket.socket) -> None:
        accepted.recv(1000)
        heard.release()
        asked.acquire(timeout=30)
        accepted.sendall(encode({"op": "ok", "to": "first"}))
        accepted.recv(1000)
        accepted.sendall(encode({"op": "ok", "to": "second"}))

    connection = connect(answering(serve))
    with pytest.raises(EndpointTimeoutError, match=r"did not answer 'bye' within 0.01 s"):
        connection.request({"op": "bye"}, 0.01)
    heard.acquire(timeout=30)  # or both questions might be read as one
    asked.release()
    assert connection.request({"op": "limits"}, 30.0)["to"] == "second"
    connection.close()


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x00\x00\x00\x02[]", "with no frame"),
        (encode({"op": "ok"}) * 2, "2 answers"),
    ],
)
def test_nonsense_is_named(answering, raw, text) -> None:
    """Garbage, and more answers than questions."""

    def serve(accepted: socket.socket) -> None:
        accepted.recv(1000)
        accepted.sendall(raw)

    connection = connect(answering(serve))
    with pytest.raises(UnixSocketError, match=text):
        connection.request({"op": "a"}, 30.0)


def test_errors_of_connecting_say_what_to_think(tmp_path) -> None:
    """No socket, nobody behind it, too long a path."""
    path = str(tmp_path / "s")
    with pytest.raises(UnixSocketError, match="no such socket; the process that made it has ended"):
        connect(path)
    listen(path).close()
    with pytest.raises(UnixSocketError, match="no process listens there any more"):
        connect(path)
    with pytest.raises(UnixSocketError, match=r"has \d+ bytes, the system's limit is 107.*TMPDIR"):
        connect(str(tmp_path / ("x" * 108)))


def test_a_listener_replaces_a_stale_socket_and_nothing_else(tmp_path) -> None:
    """Only the user may connect; a file that is no socket stays."""
    path = tmp_path / "s"
    listen(str(path)).close()
    umask = os.umask(0)
    try:
        listener = listen(str(path))
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    connect(str(path)).close()
    listener.close()

    (tmp_path / "file").write_text("precious")
    with pytest.raises(UnixSocketError, match="cannot listen on"):
        listen(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "precious"
