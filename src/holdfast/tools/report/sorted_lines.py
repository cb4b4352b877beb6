"""Lines of text, put in order: more of them than should lie in memory as objects. Pure.

They are sorted some thousand at a time, and then kept compressed, at a tenth of their length or
less; read again, these parts are merged.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from heapq import merge
from operator import itemgetter

_PART = 20_000
_BLOCK = 256
_FAST = 1
_HEAD = struct.Struct("=ddI")

_Line = tuple[float, float, str]
_key = itemgetter(0, 1)


class SortedLines:
    """Takes lines in any order; gives them in that of their keys, equal ones as they came."""

    def __init__(self) -> None:
        self._fresh: list[_Line] = []
        self._parts: list[list[bytes]] = []

    def add(self, first: float, second: float, line: str) -> None:
        """Take a line with a key of two numbers."""
        self._fresh.append((first, second, line))
        if len(self._fresh) >= _PART:
            self._pack()

    def _pack(self) -> None:
        lines = sorted(self._fresh, key=_key)
        blocks = (lines[at : at + _BLOCK] for at in range(0, len(lines), _BLOCK))
        self._parts.append([zlib.compress(_packed(each), _FAST) for each in blocks])
        self._fresh = []

    def __iter__(self) -> Iterator[str]:
        """All of them, in order."""
        self._pack()
        for *_, line in merge(*map(_lines, self._parts), key=_key):
            yield line


def _packed(block: Sequence[_Line]) -> bytes:
    found = bytearray()
    for first, second, line in block:
        text = line.encode("utf-8", "surrogatepass")
        found += _HEAD.pack(first, second, len(text)) + text
    return bytes(found)


def _lines(part: Sequence[bytes]) -> Iterator[_Line]:
    for block in map(zlib.decompress, part):
        at = 0
        while at < len(block):
            first, second, length = _HEAD.unpack_from(block, at)
            at += _HEAD.size + length
            yield first, second, block[at - length : at].decode("utf-8", "surrogatepass")
