"""What interrupted an iteration: records, and one line about several of them."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.inplace.pure.job_calls import FaultKind

__all__ = ["Interruption", "InterruptionRecord", "format_interruption_records"]

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


_VERBOSE = "NVRX_LOG_RANK_FORMAT_VERBOSE"


def format_interruption_records(records: Iterable[InterruptionRecord]) -> str:
    """``Interruption.EXCEPTION affecting ranks {1, 4}``, for each kind that there is.

    Many ranks are written as ranges, ``{0-15, 18}``, where ``NVRX_LOG_RANK_FORMAT_VERBOSE`` is set.
    """
    by_kind: dict[Interruption, set[int]] = {}
    for record in records:
        by_kind.setdefault(record.interruption, set()).add(record.rank)
    return ", ".join(
        f"{kind} affecting ranks {{{_ranks(sorted(ranks))}}}" for kind, ranks in by_kind.items()
    )


def _ranks(ranks: list[int]) -> str:
    if os.environ.get(_VERBOSE, "").strip().lower() in ("", "0", "false", "no", "off"):
        return ", ".join(map(str, ranks))
    ranges: list[list[int]] = []
    for rank in ranks:
        if ranges and rank == ranges[-1][-1] + 1:
            ranges[-1][1:] = [rank]
        else:
            ranges.append([rank])
    return ", ".join("-".join(map(str, each)) for each in ranges)
