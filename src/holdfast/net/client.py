"""A framed connection for code that waits: each wait has a bound, or ends with the connection."""

from __future__ import annotations

import errno
import socket

from holdfast.base import wait_for
from holdfast.base.clock import monotonic
from holdfast.base.own_descriptor import OwnSocket
from holdfast.net.pure.frames import MAX_FRAME_BYTES, Decoder, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from typing_extensions import Self

    from holdfast.net.pure.frames import Message

_CHUNK_BYTES = 1 << 16
_DESCRIPTORS_MAX = 4
"""That come with one chunk; the kernel drops more."""
_INT_BYTES = 4


class Client:
    """One connected stream socket. One thread receives; others may send, one at a time.

    The socket is closed with the client. An :class:`OwnSocket` is used only while the program has
    not closed it.

    Attributes:
        descriptors: Those that came with messages, for the caller to take and to close; None, as
            it begins: the kernel drops them.
    """

    __slots__ = ("_decoder", "_socket", "descriptors")

    def __init__(self, connected: socket.socket, frame_bytes_max: int = MAX_FRAME_BYTES) -> None:
        connected.settimeout(0.0)
        self._socket = connected
        self._decoder = Decoder(frame_bytes_max)
        self.descriptors: list[int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Descriptor, -1 once closed."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], timeout_s: float | None = None) -> None:
        """Send ``message``.

        Raises:
            FrameError: It is too long; nothing was sent.
            TimeoutError: The other end did not take it within ``timeout_s``.
            OSError: The other end is gone, or the program has closed the descriptor.
        """
        self.send_frame(encode(message, self._decoder.limit), timeout_s)

    def send_frame(self, frame: bytes, timeout_s: float | None = None) -> None:
        """Send a message that is encoded already; see :meth:`send`."""
        until = _until(timeout_s)
        left = memoryview(frame)
        try:
            while left:
                fd, sent = self._check(), 0
                try:  # noqa: SIM105 - contextlib is slow to import
                    # Whatever the process does with SIGPIPE, holdfast must not cause one.
                    sent = self._socket.send(left, socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    pass
                left = left[sent:]
                if not sent and not wait_for.writable(fd, _left_s(until)):
                    _check_time(until)
        finally:
            if 0 < len(left) < len(frame):  # half of it is out: a next frame could not be read
                self.close()

    def receive(self, timeout_s: float | None) -> Message:
        """Wait for the next message.

        Raises:
            TimeoutError: None came within ``timeout_s``.
            OSError: The other end is gone, or the program has closed the descriptor.
            FrameError: The bytes that came are no message.
        """
        until = _until(timeout_s)
        message = self._decoder.first()
        while message is None:
            message = self._decoder.first(self._read(until))
        return message

    def received(self) -> list[Message]:
        """Messages that have come, a chunk at most beyond bytes already read; waits for none.

        Raises as :meth:`receive`, where there are none.
        """
        self._check()
        if read := self._decoder.feed(b""):
            return read  # also where the other end is gone
        data = self._read_chunk()
        return self._decoder.feed(data) if data is not None else []

    def hang_up(self) -> None:
        """End the connection: a thread that waits for it wakes up, with an error."""
        try:
            self._check()
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is closed, or was not connected
            pass

    def close(self) -> None:
        """Close this end; does nothing the second time."""
        self._socket.close()

    def _check(self) -> int:
        """The descriptor to use now; another thread may close it any time."""
        if isinstance(self._socket, OwnSocket):
            self._socket.check()
        return self._socket.fileno()

    def _read(self, until: float | None) -> bytes:
        while True:
            fd = self._check()
            data = self._read_chunk()
            if data is not None:
                return data
            # Not in an `except`: a restart in place interrupts no clean-up, but it ends this wait.
            if not wait_for.readable(fd, _left_s(until)):
                _check_time(until)

    def _read_chunk(self) -> bytes | None:
        """None: nothing is there."""
        try:
            if self.descriptors is None:
                data = self._socket.recv(_CHUNK_BYTES)
            else:
                data = self._receive_with(self.descriptors)
        except BlockingIOError:
            return None
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
        return data

    def _receive_with(self, descriptors: list[int]) -> bytes:
        space = socket.CMSG_SPACE(_DESCRIPTORS_MAX * _INT_BYTES)
        data, ancillary, *_ = self._socket.recvmsg(_CHUNK_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, body in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                whole = len(body) - len(body) % _INT_BYTES
                descriptors.extend(memoryview(body)[:whole].cast("i"))
        return data


def _until(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else monotonic() + timeout_s


def _left_s(until: float | None) -> float | None:
    return None if until is None else until - monotonic()


def _check_time(until: float | None) -> None:
    if until is not None and monotonic() >= until:
        raise TimeoutError(errno.ETIMEDOUT, "timed out")
