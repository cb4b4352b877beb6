"""Arrows of a trace: from the rank at fault to each rank that it held up. Pure.

An arrow begins where the culprit made its last progress, and ends where the other rank began to
wait; both are slices of the ledger, on any two nodes::

    rank 5   steps │ stalled ●───────────┐      in its data loader
    rank 0   steps │  stalled            ▼      in all_reduce
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.base.pure.value import Value
from holdfast.tools.report.timeline import Recovery

_HELD = ("stalled", "stopping")
"""Accounts of a rank that is held up."""
_WITHIN = 1e-3
"""Of a slice: so far from its beginning an arrow is drawn, to be within it for every reader."""


class RankLane(Value):
    """The track of a rank in one cycle.

    Attributes:
        pid: Of the trace.
        tid: Of the trace.
        spans: Account, start and end in microseconds of the trace; in order.
    """

    pid: int
    tid: int
    spans: tuple[tuple[str, float, float], ...]

    def held_at(self, since: float = 0.0) -> float | None:
        """When it began to wait, or the first instant after ``since`` at which it does."""
        for account, start, end in self.spans:
            if account in _HELD and end > max(start, since):
                return max(since, start + _WITHIN * (end - start))
        return None


def arrows(
    recoveries: Iterable[Recovery], lanes: Mapping[tuple[int, int], RankLane]
) -> Iterator[dict[str, Any]]:
    """Two events for each arrow.

    Args:
        recoveries: Failures, with the ranks at fault.
        lanes: By cycle and rank.
    """
    number = 0
    for one in recoveries:
        culprits = set(one.culprits) if one.failed_rank is None else {one.failed_rank}
        if one.cause is not None:
            culprits = {one.cause.culprit}
        culprit = min(culprits, default=-1)
        source = lanes.get((one.cycle, culprit))
        if source is None or (begin := source.held_at()) is None:
            continue
        is_hang = one.failed_rank is None
        ended = "left" if one.cause is not None and one.cause.left_how else "failed"
        name = f"waits for rank {culprit}" if is_hang else f"stopped: rank {culprit} {ended}"
        for (cycle, rank), lane in lanes.items():
            if cycle != one.cycle or rank in culprits or (end := lane.held_at(begin)) is None:
                continue
            number += 1
            about = {"id": number, "name": name, "cat": "culprit"}
            for phase, at, where in (("s", begin, source), ("f", end, lane)):
                binds = {"bp": "e"} if phase == "f" else {}
                place = {"pid": where.pid, "tid": where.tid, "ts": round(at, 3)}
                yield {"ph": phase, **place, **about, **binds}
