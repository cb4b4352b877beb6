"""What interrupted an iteration: records, and one line about several of them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from holdfast.inprocess.attribution import Interruption, InterruptionRecord

__all__ = ["Interruption", "InterruptionRecord", "format_interruption_records"]

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
