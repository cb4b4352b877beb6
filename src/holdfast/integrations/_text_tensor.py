"""A list that grows at its end, as one tensor of bytes: written once, not at every snapshot."""

from __future__ import annotations

import json
from typing import Any

import torch

_MIN_BYTES = 1 << 12


class GrowingText:
    """Entries as lines of JSON."""

    def __init__(self) -> None:
        self._bytes = torch.empty(_MIN_BYTES, dtype=torch.uint8)
        self._length = self._n = 0
        self._last: object = None

    def of(self, entries: list[Any]) -> tuple[torch.Tensor, int]:
        """The bytes, and how many of them count. Entries before the last one must not change."""
        known = self._n
        if known > len(entries) or (known and entries[known - 1] is not self._last):
            self._length = self._n = known = 0
        for entry in entries[known:]:
            self._add(json.dumps(entry, default=_plain).encode() + b"\n")
        self._n = len(entries)
        self._last = entries[-1] if entries else None
        return self._bytes, self._length

    def entries(self, text: torch.Tensor, length: int) -> list[Any]:
        """The list that :meth:`of` was given; it goes on from there."""
        lines = text[:length].numpy().tobytes().splitlines()
        found = [json.loads(line) for line in lines]
        self.of(found)
        return found

    def _add(self, line: bytes) -> None:
        end = self._length + len(line)
        if end > len(self._bytes):
            grown = torch.empty(max(end, 2 * len(self._bytes)), dtype=torch.uint8)
            grown[: self._length] = self._bytes[: self._length]
            self._bytes = grown
        self._bytes[self._length : end] = torch.frombuffer(bytearray(line), dtype=torch.uint8)
        self._length = end


def _plain(value: Any) -> Any:
    """A number of NumPy or torch; other things as their text."""
    return value.item() if hasattr(value, "item") else str(value)
