"""Restarts in place, from the events of the launchers whose ranks did them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.events.pure.schema import Event, InPlaceRestart
from holdfast.events.run.rank_spans import is_in_order
from holdfast.events.run.rank_words import named

_WORDS = {
    "EXCEPTION": "raised",
    "BASE_EXCEPTION": "left",
    "SOFT_TIMEOUT": "hung",
    "HARD_TIMEOUT": "hung and was ended",
    "TERMINATED": "ended",
    "UNRESPONSIVE": "is on a node that does not answer",
    "MONITOR_PROCESS_EXCEPTION": "lost the guard of its node",
}


def why(restart: InPlaceRestart) -> str:
    """``rank 1 raised: ValueError: boom; 2 more``; after a hang, the verdict and who was ended."""
    causes = restart.causes
    if restart.reason:
        ended = [cause.rank for cause in causes if cause.kind == "HARD_TIMEOUT"]
        was = "was" if len(ended) == 1 else "were"
        return f"{restart.reason}; {named(ended)} {was} ended" if ended else restart.reason
    if not causes:
        return "not known"
    first = causes[0]
    more = max(restart.n_causes, len(causes)) - 1
    did = _WORDS.get(first.kind, first.kind)
    return f"rank {first.rank} {did}: {first.text}" + (f"; {more} more" if more else "")


def restarts_in_place(events: Iterable[Event]) -> list[tuple[int, InPlaceRestart]]:
    """Of a job, each once, with its cycle, though all its nodes report it."""
    found: dict[tuple[int, int], InPlaceRestart] = {}
    for event in events:
        one = event.body
        if not isinstance(one, InPlaceRestart) or not is_in_order(one):
            continue
        known = found.setdefault((event.cycle, one.call), one)
        merged = {
            "progress_at": min(known.progress_at, one.progress_at, one.noticed_at),
            "noticed_at": min(known.noticed_at, one.noticed_at),
            "entered_at": max(known.entered_at, one.entered_at),
        }
        found[event.cycle, one.call] = InPlaceRestart(**{**vars(known), **merged})
    in_order = sorted(found.items(), key=lambda item: item[1].noticed_at)
    return [(cycle, one) for (cycle, _), one in in_order]
