"""One end of a framed connection, for a loop: never blocks, never raises for what a peer does."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Mapping
from typing import Any

from holdfast.wire.frames import Decoder, FrameError, Message, encode

_CHUNK_BYTES = 1 << 16


class Peer:
    """A connected stream socket that carries frames.

    Attributes:
        gone: Why nothing more will come ("closed", or what was wrong); None while it may.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._decoder = Decoder()
        self.gone: str | None = None

    def fileno(self) -> int:
        """Descriptor to wait on."""
        return self._socket.fileno()

    def uid(self) -> int:
        """User id of the process at the other end of a Unix socket, as the kernel knows it."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, uid, _ = struct.unpack("3i", credentials)
        return int(uid)

    def receive(self) -> list[Message]:
        """What has arrived. Afterwards ``gone`` says whether that was all."""
        try:
            data = self._socket.recv(_CHUNK_BYTES)
            if not data:
                self.gone = "closed"
                return []
            return self._decoder.feed(data)
        except BlockingIOError:
            return []
        except FrameError as error:
            self.gone = str(error)
        except OSError as error:
            self.gone = error.strerror or str(error)
        return []

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send at once; False: the other end does not take it, and is worth nothing any more."""
        frame = encode(message)
        try:
            sent = self._socket.send(frame)
        except OSError as error:
            self.gone = error.strerror or str(error)
            return False
        if sent < len(frame):
            self.gone = "its receive buffer is full"
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()
