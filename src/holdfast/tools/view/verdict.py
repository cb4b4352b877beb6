"""The last thing that went wrong in a job, in a sentence: a hang's verdict, or a first cause."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.events.pure import schema
from holdfast.tools.run.incident_files import Incident


class Failed(NamedTuple):
    """The first cause of a cycle's end, of one node.

    Attributes:
        at: When it began, on the clock of its node.
    """

    cycle: int
    at: float
    rank: int
    text: str


class Failures:
    """The failures of one node, from its events."""

    def __init__(self) -> None:
        self._failed: dict[tuple[int, int], schema.RankFailed] = {}
        self.last: Failed | None = None

    def take(self, event: schema.Event) -> None:
        """Take the next event."""
        match event.body:
            case schema.RankFailed(rank=rank) as failed:
                self._failed[event.cycle, rank] = failed
            case schema.FirstCause(rank=rank, began_at=at, why=why) as cause:
                text = _with_details(why, self._failed.get((event.cycle, rank)))
                text = cause.sentence if cause.left_how else f"rank {rank}: {text}"
                self.last = Failed(event.cycle, at, cause.culprit, text)


def _with_details(why: str, failed: schema.RankFailed | None) -> str:
    """The exception and the line of code, where the sentence does not have them."""
    exception, place = (None, None) if failed is None else (failed.exception, failed.place)
    head = f"{exception}: " if exception and exception not in why else ""
    tail = f" at {place}" if place and place.rpartition("/")[2] not in why else ""
    return f"{head}{why}{tail}"


def verdict_of(incident: Incident | None, failed: tuple[Failed, float] | None) -> Any:
    """The later one as :class:`.JobView` has it; None: nothing went wrong.

    Args:
        incident: The newest, of all nodes.
        failed: The newest of all nodes, with its time, seconds since 1970.
    """
    hang = None
    if incident is not None:
        hang = {
            "cycle": incident.cycle,
            "wall": incident.wall,
            "ranks": list(incident.culprits),
            "text": incident.reason or incident.kind,
            "path": str(incident.path),
        }
    if failed is None or (hang is not None and incident and incident.cycle >= failed[0].cycle):
        return hang
    one, wall = failed
    return {"cycle": one.cycle, "wall": wall, "ranks": [one.rank], "text": one.text, "path": None}
