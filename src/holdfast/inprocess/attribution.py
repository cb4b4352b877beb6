"""Records of what interrupted an iteration on which rank, and their texts."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from holdfast.inplace.pure.job_calls import FaultKind

__all__ = ["Interruption", "InterruptionRecord"]

Interruption = enum.Enum("Interruption", {kind.name: kind.value for kind in FaultKind})  # type: ignore[misc]
"""The kinds of interruption; the same names as the protocol's :class:`FaultKind`."""

_TEXT = re.compile(
    r"InterruptionRecord\(rank=(\d+), interruption=<?Interruption\.(\w+)(?:: [^>]*>)?\)"
)


@dataclass(frozen=True)
class InterruptionRecord:
    """One interruption of one rank."""

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
