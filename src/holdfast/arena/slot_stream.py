"""A connection that carries messages, and between them the bytes of a slot.

Neither direction passes bytes through Python: the kernel sends a memory file, and receives into a
mapping of one.
"""

from __future__ import annotations

import errno
import os
import socket
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from holdfast.arena.pure.peer_messages import FRAME_BYTES_MAX, SILENT_S
from holdfast.base import wait_for
from holdfast.base.pure.codec import MessageError, decode, encode
from holdfast.net.client import Client
from holdfast.net.pure.frames import FrameError

M = TypeVar("M")
CHUNK_BYTES = 1 << 20
"""Sent and added up at a time: it fits the cache of a core."""


class LinkError(OSError):
    """The copy has failed; the text says why, to be read after the name of the other end."""


class SlotStream(Client):
    """One thread uses it. Each wait ends after ``SILENT_S``."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected, FRAME_BYTES_MAX)

    def say(self, message: object) -> None:
        """Send a message.

        Raises:
            LinkError: The other end is gone, or takes nothing.
        """
        try:
            self.send(encode(message), SILENT_S)
        except OSError as error:
            raise _lost(error) from error

    def next_message(self, family: Mapping[str, type[M]]) -> M:
        """The next message.

        Raises:
            LinkError: The other end is gone, is silent, or sends something else.
        """
        try:
            return decode(family, self.receive(SILENT_S))
        except OSError as error:
            raise _lost(error) from error
        except (FrameError, MessageError) as error:
            raise LinkError(f"sent a malformed message: {error}") from error

    def send_slot(self, fd: int, offset: int, memory: memoryview) -> int:
        """Send the bytes at ``offset`` of a memory file, mapped as ``memory``; returns their CRC.

        Raises:
            LinkError: The other end is gone, or takes nothing.
        """
        crc, at = 0, 0
        while at < len(memory):
            end = min(at + CHUNK_BYTES, len(memory))
            crc = zlib.crc32(memory[at:end], crc)
            while at < end:
                try:
                    sent = os.sendfile(self._check(), fd, offset + at, end - at)
                except BlockingIOError:
                    if not wait_for.writable(self.fileno(), SILENT_S):
                        raise LinkError(f"took no byte for {SILENT_S:g} s") from None
                    continue
                except OSError as error:
                    raise _lost(error) from error
                if sent == 0:
                    raise LinkError("does not get all: the memory is shorter than it was")
                at += sent
        return crc

    def receive_slot(self, memory: memoryview, going_on: Callable[[int], None]) -> int:
        """Receive as many bytes as ``memory`` has; returns their CRC.

        ``going_on`` is called now and then, with the number of bytes that are here.

        Raises:
            LinkError: The other end is gone, or silent.
        """
        if self._decoder.has_rest:
            raise LinkError("sent bytes before they were asked for")
        crc, added, at, total = 0, 0, 0, len(memory)
        while at < total:
            try:
                got = self._socket.recv_into(memory[at : at + CHUNK_BYTES])
            except BlockingIOError:
                if not wait_for.readable(self.fileno(), SILENT_S):
                    raise LinkError(f"sent no byte for {SILENT_S:g} s") from None
                continue
            except OSError as error:
                raise _lost(error) from error
            if got == 0:
                raise LinkError(f"closed the connection after {at} of {total} bytes")
            at += got
            going_on(at)
            if at - added >= CHUNK_BYTES or at == total:
                crc, added = zlib.crc32(memory[added:at], crc), at
        return crc


def _lost(error: OSError) -> LinkError:
    if isinstance(error, TimeoutError):
        return LinkError(f"did not answer within {SILENT_S:g} s")
    if error.errno in (errno.ECONNRESET, errno.EPIPE):
        return LinkError("closed the connection")
    text: Any = error.strerror or error
    return LinkError(f"cannot be reached: {text}")
