"""What interrupted an iteration, and who: records, and their texts."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from holdfast.inplace.pure.messages import Kind

__all__ = ["Interruption", "InterruptionRecord"]

Interruption = enum.Enum("Interruption", {kind.name: kind.value for kind in Kind})  # type: ignore[misc]
"""The kinds of interruption; the same names as the protocol's :class:`Kind`."""

_TEXT = re.compile(
    r"InterruptionRecord\(rank=(\d+), interruption=<?Interruption\.(\w+)(?:: [^>]*>)?\)"
)


@dataclass(frozen=True)
class InterruptionRecord:
    """One rank did, or had done to it, one thing."""

    rank: int
    interruption: Interruption

    def __str__(self) -> str:
        return f"InterruptionRecord(rank={self.rank}, interruption={self.interruption})"

    @classmethod
    def from_str(cls, text: str) -> InterruptionRecord:
        """The record of a text that ``str`` or ``repr`` made.

        Raises:
            ValueError: It is none.
        """
        found = _TEXT.fullmatch(text.strip())
        if found is None or found[2] not in Interruption.__members__:
            raise ValueError(f"this is not an InterruptionRecord: {text[:200]!r}")
        return cls(int(found[1]), Interruption[found[2]])
