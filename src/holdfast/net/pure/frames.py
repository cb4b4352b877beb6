"""Frames: a 4-byte big-endian length, then that many bytes of one JSON object, UTF-8.

The only thing that ever travels over holdfast's sockets. Data, never code (S-1); a frame longer
than ``MAX_FRAME_BYTES`` or one that is no JSON object ends the connection it came on, nothing else.
Pure.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias

    Message: TypeAlias = dict[str, Any]

MAX_FRAME_BYTES = 1 << 20
_HEADER_BYTES = 4


class FrameError(ValueError):
    """Bytes that are no frame. The connection they came on is worth nothing any more."""


def encode(message: Mapping[str, Any], limit: int = MAX_FRAME_BYTES) -> bytes:
    """One message as bytes.

    Raises:
        FrameError: It is longer than ``limit`` bytes.
        TypeError: It holds something that JSON does not know.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > limit:
        raise FrameError(f"message of {len(body)} bytes, limit {limit}")
    return len(body).to_bytes(_HEADER_BYTES, "big") + body


class Decoder:
    """Cuts a stream of bytes into messages, whatever pieces it arrives in.

    Attributes:
        limit: Longest frame that is accepted, in bytes; may change between two messages.
    """

    __slots__ = ("_pending", "limit")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._pending = bytearray()
        self.limit = limit

    @property
    def has_rest(self) -> bool:
        """Whether bytes of a next message were read."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[Message]:
        """Messages completed by ``data``, in order; see :meth:`first`."""
        self._pending += data
        return list(iter(self.first, None))

    def first(self, data: bytes = b"") -> Message | None:
        """The next message, if ``data`` completes one; bytes after it are kept.

        Raises:
            FrameError: The stream holds no frames; feed nothing more.
        """
        pending = self._pending
        pending += data
        if len(pending) < _HEADER_BYTES:
            return None
        length = int.from_bytes(pending[:_HEADER_BYTES], "big")
        if length > self.limit:
            raise FrameError(f"frame of {length} bytes announced, limit {self.limit}")
        end = _HEADER_BYTES + length
        if len(pending) < end:
            return None
        body = bytes(pending[_HEADER_BYTES:end])
        del pending[:end]
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"frame is not JSON: {error}") from None
        if not isinstance(message, dict):
            raise FrameError(f"frame is a JSON {type(message).__name__}, not an object")
        return message
