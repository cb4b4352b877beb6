"""A framed connection on an epoll loop. It calls back with each message, and never waits.

    readable ──► each message ──► on_message
                 end of file, error, garbage, an error in on_message ──► closed ──► on_closed, once

Whatever one peer sends ends its own connection and nothing else.
"""

from __future__ import annotations

import os
import select
import socket
import sys

from holdfast.base import wait_for
from holdfast.base.clock import monotonic
from holdfast.base.pure.codec import MessageError
from holdfast.net.pure.frames import MAX_FRAME_BYTES, Decoder, FrameError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from holdfast.net.descriptors import Descriptors
    from holdfast.net.pure.frames import Message

CLOSED = "closed"
"""Why a connection is gone whose other end has closed it."""
_CHUNK_BYTES = 1 << 16
_BACKLOG_BYTES_MAX = 4 << 20
_DRAINED_CHUNKS_MAX = 64
_CREDENTIALS_BYTES = 12


class RefusedError(ValueError):
    """Raised by ``on_message`` to cut a peer off; the text completes "<peer> was cut off: ..."."""


class Channel:
    """One connected stream socket.

    A message goes out at once as far as the socket takes it, and the rest when it is writable
    again. A peer that does not read loses messages after 4 MiB, and delays no other peer.

    Args:
        connected: The socket; closed with the channel.
        on_message: Called with the channel and each message. An exception cuts the peer off.
        on_closed: Called with the channel when the connection has ended, unless :meth:`close`
            ended it.

    Attributes:
        gone: Why no more messages come or go; ``None`` while they may.
        peer: Its name, for log lines.
        pid: Its process, as the kernel knows it; 0: on another host, or in another pid namespace.
        on_message, on_closed: As above; may change between two messages.
        refusal: Turns the reason of a cut-off into a message to the peer.
        report: Called with the channel and the reason when the peer is cut off; while an exception
            of ``on_message`` is handled, where that is the reason.
    """

    __slots__ = (
        "_backlog", "_decoder", "_descriptors", "_is_waiting", "_socket", "gone",
        "on_closed", "on_message", "peer", "pid", "refusal", "report",
    )  # fmt: skip

    def __init__(
        self,
        connected: socket.socket,
        descriptors: Descriptors,
        on_message: Callable[[Channel, Message], None],
        on_closed: Callable[[Channel], None],
        frame_bytes_max: int = MAX_FRAME_BYTES,
    ) -> None:
        connected.settimeout(0.0)
        self._socket = connected
        self._descriptors = descriptors
        self._decoder = Decoder(frame_bytes_max)
        self._backlog = bytearray()
        self._is_waiting = False  # for the socket to take the backlog
        self.gone: str | None = None
        self.peer = ""
        self.on_message = on_message
        self.on_closed = on_closed
        self.refusal: Callable[[str], Mapping[str, Any]] | None = None
        self.report: Callable[[Channel, str], None] | None = None
        self.pid = peer_of(connected)[0] if connected.family == socket.AF_UNIX else 0
        descriptors.watch(connected.fileno(), self.receive)

    def accept_frames(self, bytes_max: int) -> None:
        """Accept messages of up to ``bytes_max`` bytes from the next one on."""
        self._decoder.limit = bytes_max

    def fileno(self) -> int:
        """Descriptor, -1 once closed."""
        return self._socket.fileno()

    def addresses(self) -> tuple[Any, Any]:
        """Of this end and of the other, as the kernel has them; OSError: it is gone."""
        return self._socket.getsockname(), self._socket.getpeername()

    # ------------------------------------------------------------ in

    def receive(self) -> None:
        """Handle one chunk of arrived bytes at most, so that a flood does not starve others."""
        self.flush()
        self._read_chunk()
        self._end_if_gone()

    def drain(self) -> None:
        """Handle all that has arrived; of a peer that has ended, all that will."""
        for _ in range(_DRAINED_CHUNKS_MAX):
            if not self._read_chunk():
                break
        self._end_if_gone()

    def _read_chunk(self) -> bool:
        """Whether there may be more."""
        if self._socket.fileno() < 0:
            return False
        try:
            data = self._socket.recv(min(_CHUNK_BYTES, self._decoder.limit))
        except BlockingIOError:
            return False
        except OSError as error:
            self.gone = self.gone or error.strerror or str(error)
            return False
        if not data:
            self.gone = self.gone or CLOSED
            return False
        self._handle(data)
        return self.gone is None

    def _handle(self, data: bytes) -> None:
        # Also where an answer could not be sent: its last messages came before that.
        try:
            message = self._decoder.first(data)
            while message is not None:
                self.on_message(self, message)
                if self._socket.fileno() < 0:
                    return
                message = self._decoder.first()
        except RefusedError as error:
            self._refuse(str(error))
        except (FrameError, MessageError) as error:
            self._refuse(f"sent a malformed message: {error}")
        except Exception as error:  # noqa: BLE001 - of whatever kind, it ends this peer alone
            self._refuse(f"sent a message that cannot be handled: {error!r:.200}")

    def cut_off(self, why: str) -> None:
        """End the connection, and tell the peer and the log why."""
        self._refuse(why)
        self._end_if_gone()

    def _refuse(self, why: str) -> None:
        if self._socket.fileno() < 0:
            return
        if self.refusal is not None:
            self.send(self.refusal(why))
        self.gone = self.gone or why
        if self.report is not None:
            self.report(self, why)

    def _end_if_gone(self) -> None:
        if self.gone is not None and self._socket.fileno() >= 0:
            self.close()
            self.on_closed(self)

    # ------------------------------------------------------------ out

    def send(self, message: Mapping[str, Any], limit: int = MAX_FRAME_BYTES) -> None:
        """Send, now or when the other end reads again.

        Raises:
            FrameError: The message is longer than ``limit`` bytes.
        """
        if self.gone is None and not self.is_full:
            self.send_frame(encode(message, limit))

    def send_frame(self, frame: bytes) -> None:
        """Send a message that is encoded already."""
        if self.gone is None and not self.is_full:
            self._backlog += frame
            self.flush()

    def send_with(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> bool:
        """Send a message, and copies of file descriptors with it, on a Unix socket.

        A peer that has not read what came before, or has no room for all of it, gets neither.
        Returns whether it gets them.
        """
        self.flush()
        if self.gone is not None or self._backlog:
            return False
        frame = encode(message)
        try:
            sent = socket.send_fds(self._socket, [frame], descriptors, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            self.gone = error.strerror or str(error)
            return False
        self._backlog += frame[sent:]  # the descriptors go with the first byte
        self.flush()
        return True

    @property
    def is_full(self) -> bool:
        """Whether the peer has not read for so long that a message would be lost."""
        return len(self._backlog) >= _BACKLOG_BYTES_MAX

    def finish(self, timeout_s: float) -> None:
        """Send the waiting bytes and the end, wait until the peer has read them, and close.

        A peer that neither reads nor closes is waited for ``timeout_s`` seconds at most.
        """
        until = monotonic() + timeout_s
        self.flush()
        while self._backlog and self.gone is None:
            if not wait_for.writable(self.fileno(), until - monotonic()):
                break
            self.flush()
        if self.gone is None:
            # Bytes that came and were not read would make the kernel reset the connection, and the
            # peer lose the last ones of this side.
            with_end = self._socket
            try:
                with_end.shutdown(socket.SHUT_WR)
                while wait_for.readable(self.fileno(), until - monotonic()):
                    if not with_end.recv(_CHUNK_BYTES) or monotonic() >= until:
                        break
            except OSError:
                pass
        self.close()

    def flush(self) -> None:
        """Send the waiting bytes, as far as the socket takes them."""
        if self.gone is not None:
            return
        try:
            while self._backlog:
                del self._backlog[: self._socket.send(self._backlog, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass
        except OSError as error:
            self.gone = error.strerror or str(error)
        # A socket that fails is writable as well: so the loop comes back to end the connection.
        wants_to_write = bool(self._backlog)
        if wants_to_write != self._is_waiting:
            self._is_waiting = wants_to_write
            also = select.EPOLLOUT if wants_to_write else 0
            self._descriptors.epoll.modify(self._socket.fileno(), select.EPOLLIN | also)

    def release(self) -> socket.socket:
        """The socket, for another owner; to be called while the last message is handled.

        Raises:
            RefusedError: The peer has sent more than that, or does not read.
        """
        if self._decoder.has_rest:
            raise RefusedError("sent bytes before they were asked for")
        if self._backlog:
            raise RefusedError("does not read")
        self._descriptors.forget(self._socket.fileno())
        self.gone = CLOSED
        return socket.socket(fileno=self._socket.detach())

    def close(self) -> None:
        """Close without ``on_closed``; does nothing the second time."""
        if self._socket.fileno() >= 0:
            self._descriptors.forget(self._socket.fileno())
            self._socket.close()
        self.gone = self.gone or CLOSED


def peer_of(connected: socket.socket) -> tuple[int, int]:
    """Pid and user id at the other end of a Unix socket; pid 0: in another pid namespace."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS_BYTES)
    return int.from_bytes(raw[:4], sys.byteorder), int.from_bytes(raw[4:8], sys.byteorder)


def is_trusted(uid: int) -> bool:
    """Whether a process of user ``uid`` may command this one: that of its own user, or of root."""
    return uid in (os.geteuid(), 0)
