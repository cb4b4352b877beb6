"""Restarts in place, from the events of the launchers whose ranks did them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.events.pure.schema import Event, InPlaceRestart
from holdfast.events.run.rank_spans import is_in_order
from holdfast.events.run.run_words import named
from holdfast.inplace.pure.job_calls import FaultKind

_WORDS = {
    FaultKind.EXCEPTION: "raised",
    FaultKind.BASE_EXCEPTION: "left",
    FaultKind.SOFT_TIMEOUT: "hung",
    FaultKind.HARD_TIMEOUT: "hung and was killed",
    FaultKind.TERMINATED: "ended",
    FaultKind.UNRESPONSIVE: "is on a node that does not answer",
    FaultKind.MONITOR_PROCESS_EXCEPTION: "lost the guard of its node",
}


def why(restart: InPlaceRestart) -> str:
    """``rank 1 raised: ValueError: boom; 2 more``; after a hang, its verdict."""
    causes = restart.causes
    if restart.reason:
        ended = [cause.rank for cause in causes if cause.kind is FaultKind.HARD_TIMEOUT]
        was = "was" if len(ended) == 1 else "were"
        return f"{restart.reason}; {named(ended)} {was} killed" if ended else restart.reason
    if not causes:
        return "not known"
    first = causes[0]
    more = max(restart.n_causes, len(causes)) - 1
    did = _WORDS.get(first.kind, first.kind.value)
    return f"rank {first.rank} {did}: {first.text}" + (f"; {more} more" if more else "")


def restarts_in_place(events: Iterable[Event]) -> list[tuple[int, InPlaceRestart]]:
    """Of a job, each once, with its cycle, though all its nodes report it."""
    found: dict[tuple[int, int], InPlaceRestart] = {}
    for event in events:
        one = event.body
        if not isinstance(one, InPlaceRestart) or not is_in_order(one):
            continue
        known = found.setdefault((event.cycle, one.call), one)
        found[event.cycle, one.call] = known.but(
            progress_at=min(known.progress_at, one.progress_at, one.noticed_at),
            noticed_at=min(known.noticed_at, one.noticed_at),
            entered_at=max(known.entered_at, one.entered_at),
        )
    in_order = sorted(found.items(), key=lambda item: item[1].noticed_at)
    return [(cycle, one) for (cycle, _), one in in_order]
