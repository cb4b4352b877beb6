"""A framed connection for an epoll loop: never waits, whatever the other end does."""

from __future__ import annotations

import os
import select
import socket
import sys

from holdfast.net.pure.frames import MAX_FRAME_BYTES, Decoder, FrameError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from holdfast.net.pure.frames import Message

STRANGER_BYTES_MAX = 4096
"""What is kept of a stranger's words."""
_CHUNK_BYTES = 1 << 16
_BACKLOG_BYTES_MAX = 4 << 20
_REST_CHUNKS_MAX = 64
_CREDENTIALS_BYTES = 12


class Channel:
    """One connected stream socket.

    Sends at once what the socket takes and keeps the rest until it is writable. Who does not read
    loses what comes after 4 MiB, and holds up nobody.

    Attributes:
        gone: Why nothing more will come or go; ``None`` while it may.
    """

    __slots__ = ("_backlog", "_decoder", "_epoll", "_is_waiting", "_socket", "gone")

    def __init__(self, connected: socket.socket, epoll: select.epoll) -> None:
        connected.settimeout(0.0)
        self._socket = connected
        self._epoll = epoll
        self._decoder = Decoder()
        self._backlog = bytearray()
        self._is_waiting = False  # for the socket to take the backlog
        self.gone: str | None = None
        epoll.register(connected.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """Descriptor, -1 once closed."""
        return self._socket.fileno()

    def peer(self) -> tuple[int, int]:
        """Pid and user id at the other end, as the kernel knows them."""
        return peer_of(self._socket)

    def receive(self) -> list[Message]:
        """What has arrived, one chunk at most, so that a flood does not starve others."""
        return self._receive() or []

    def _receive(self) -> list[Message] | None:
        """None: nothing has arrived, or nothing more will."""
        data = self._read(_CHUNK_BYTES)
        if data is None:
            return None
        try:
            return self._decoder.feed(data)
        except FrameError as error:
            self.gone = str(error)
            return None

    def receive_first(self) -> Message | None:
        """The next message of a stranger, who is allowed few bytes; see :meth:`trust`."""
        self._decoder.limit = STRANGER_BYTES_MAX
        data = self._read(STRANGER_BYTES_MAX)
        return None if data is None else self.next_of_stranger(data)

    def _read(self, n_bytes: int) -> bytes | None:
        try:
            data = self._socket.recv(n_bytes)
        except BlockingIOError:
            return None
        except OSError as error:
            self.gone = error.strerror or str(error)
            return None
        if not data:
            self.gone = "closed"
            return None
        return data

    def next_of_stranger(self, data: bytes = b"") -> Message | None:
        """The next of the messages that came at once, with ``data`` appended to what is left."""
        try:
            return self._decoder.first(data)
        except FrameError as error:
            self.gone = str(error)
            return None

    def trust(self, frame_bytes_max: int = MAX_FRAME_BYTES) -> list[Message]:
        """It is no stranger: accept frames of this size from now on.

        Returns:
            What came with the words that were believed; no other event reports it.
        """
        self._decoder.limit = frame_bytes_max
        try:
            return self._decoder.feed(b"")
        except FrameError as error:
            self.gone = str(error)
            return []

    def receive_rest(self) -> list[Message]:
        """All that has arrived; of who has ended, all that will."""
        messages: list[Message] = []
        for _ in range(_REST_CHUNKS_MAX):
            more = self._receive()
            if more is None:
                break
            messages += more
        return messages

    def send(self, message: Mapping[str, Any], limit: int = MAX_FRAME_BYTES) -> None:
        """Send, now or when the other end reads again."""
        if self.gone is None and len(self._backlog) < _BACKLOG_BYTES_MAX:
            self._backlog += encode(message, limit)
            self.flush()

    def flush(self) -> None:
        """Send what is waiting, as far as the socket takes it."""
        try:
            while self._backlog:
                del self._backlog[: self._socket.send(self._backlog)]
        except BlockingIOError:
            pass
        except OSError as error:
            self.gone = error.strerror or str(error)
            return
        if bool(self._backlog) != self._is_waiting:
            self._is_waiting = not self._is_waiting
            also = select.EPOLLOUT if self._is_waiting else 0
            self._epoll.modify(self._socket.fileno(), select.EPOLLIN | also)

    def close(self) -> None:
        """Close; does nothing the second time."""
        if self._socket.fileno() >= 0:
            self._epoll.unregister(self._socket.fileno())
            self._socket.close()
        self.gone = self.gone or "closed"


def peer_of(connected: socket.socket) -> tuple[int, int]:
    """Pid and user id at the other end of a Unix socket; pid 0: in a namespace we don't see."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS_BYTES)
    return int.from_bytes(raw[:4], sys.byteorder), int.from_bytes(raw[4:8], sys.byteorder)


def is_trusted(uid: int) -> bool:
    """Whether a process of user ``uid`` may command us: our own user's, or root's."""
    return uid in (os.geteuid(), 0)
