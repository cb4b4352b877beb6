"""A mailbox on a Unix socket, for programs that used one: many senders, one receiver.

Messages are JSON objects. holdfast itself talks through ``host/endpoint.py`` and
``host/channel.py``.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.host import endpoint
from holdfast.host.channel import is_trusted, peer_of
from holdfast.host.clock import monotonic
from holdfast.wire.frames import Decoder, FrameError, encode

if TYPE_CHECKING:
    from holdfast.wire.frames import Message

_CHUNK_BYTES = 1 << 16
_SENDER_S = 5.0
"""A sender that is not done after so long is dropped: one thread serves all."""


class IpcConnector:
    """Both ends of a mailbox: the receiver starts and takes, senders send.

    Args:
        socket_path: Of the Unix socket; only this user may connect to it.
    """

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._received: list[Message] = []
        self._lock = threading.Lock()

    def start_receiving(self) -> None:
        """Listen, and keep what comes until it is taken.

        Raises:
            EndpointError: The path cannot be listened on.
            RuntimeError: It is listened on already; call :meth:`stop_receiving` before.
        """
        if self._listener is not None:
            raise RuntimeError(
                f"start_receiving() was called twice for {self.socket_path}; call stop_receiving() "
                "before starting again"
            )
        self._listener = endpoint.listen(self.socket_path)
        self._thread = threading.Thread(
            target=self._serve, args=(self._listener,), name="ipc-connector", daemon=True
        )
        self._thread.start()

    def stop_receiving(self) -> None:
        """Stop listening and remove the socket. What was received can still be taken."""
        listener, thread = self._listener, self._thread
        if listener is None or thread is None:
            return
        self._listener = self._thread = None
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        thread.join()
        listener.close()
        Path(self.socket_path).unlink(missing_ok=True)

    def fetch_received(self) -> list[Message]:
        """Take what was received, in order."""
        with self._lock:
            received, self._received = self._received, []
        return received

    def send(self, message: Mapping[str, Any], timeout: float = 30.0) -> None:
        """Put a message into the mailbox; returns when the receiver has it.

        Args:
            message: A mapping of names to what JSON knows: text, numbers, true, false, None, lists,
                mappings. At most 1 MiB. Objects never travel: bytes from a socket are not executed.
            timeout: Seconds to wait at most.

        Raises:
            EndpointError: Nobody receives there, or not in time.
            TypeError: The message is no mapping, or holds something that JSON does not know.
            FrameError: The message is too long; it is a ``ValueError``.
        """
        _check(message)
        connection = endpoint.connect(self.socket_path, timeout)
        try:
            connection.request(dict(message), timeout)
        finally:
            connection.close()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            with accepted:
                if not is_trusted(peer_of(accepted)[1]):
                    continue
                # What a sender does wrong ends its own connection and nothing else.
                with contextlib.suppress(OSError, FrameError):
                    self._receive(accepted)

    def _receive(self, accepted: socket.socket) -> None:
        decoder = Decoder()
        until = monotonic() + _SENDER_S
        while True:
            accepted.settimeout(max(1e-3, until - monotonic()))
            data = accepted.recv(_CHUNK_BYTES)
            if not data:
                return
            for message in decoder.feed(data):
                with self._lock:
                    self._received.append(message)
                accepted.sendall(encode({"op": "ok"}), socket.MSG_NOSIGNAL)


def _check(message: object) -> None:
    """Whether it can be sent, found out before anybody is connected to.

    Raises:
        TypeError, FrameError: It cannot, and why.
    """
    if not isinstance(message, Mapping):
        raise TypeError(
            f"IpcConnector sends mappings of names to values, not {type(message).__name__}: put "
            f"the value into one, as in {{'value': ...}}"
        )
    try:
        encode(dict(message))
    except TypeError as error:
        raise TypeError(
            "IpcConnector sends values of JSON (text, numbers, true, false, None, lists, "
            f"mappings), and the message has another one: {error}. Objects are not sent, because "
            "bytes "
            "from a socket must never execute; send their fields"
        ) from None
