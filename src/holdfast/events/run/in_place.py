"""Restarts in place, from the events of the launchers whose ranks did them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.events.run.rank_words import named

Event = Mapping[str, Any]

_WORDS = {
    "EXCEPTION": "raised",
    "BASE_EXCEPTION": "left",
    "SOFT_TIMEOUT": "hung",
    "HARD_TIMEOUT": "hung and was ended",
    "TERMINATED": "ended",
    "UNRESPONSIVE": "is on a node that does not answer",
    "MONITOR_PROCESS_EXCEPTION": "lost the guard of its node",
}


@dataclass(frozen=True)
class InPlace:
    """One restart, as far as the nodes that are known have told of it.

    Attributes:
        cycle: In which.
        call: Which call of the function began with it; the first was 0.
        why: In words.
        culprits: Ranks that held up the others, after a hang.
        progress_at: Instant of the last progress, after a hang; else as ``noticed_at``.
        noticed_at: Instant from which ranks were interrupted.
        entered_at: Instant at which they were in the function again.
    """

    cycle: int
    call: int
    why: str
    culprits: tuple[int, ...]
    progress_at: float
    noticed_at: float
    entered_at: float


def of_event(event: Event) -> InPlace:
    """What one node tells.

    Raises:
        KeyError, TypeError, ValueError: It has not the form of such an event.
    """
    noticed, entered = float(event["noticed_at"]), float(event["entered_at"])
    if not float("-inf") < noticed <= entered < float("inf"):
        raise ValueError(noticed, entered)
    progress = float(event["progress_at"])
    return InPlace(
        cycle=int(event["cycle"]),
        call=int(event["call"]),
        why=why(event),
        culprits=tuple(int(rank) for rank in event.get("culprits") or ()),
        progress_at=min(progress, noticed),
        noticed_at=noticed,
        entered_at=entered,
    )


def why(event: Event) -> str:
    """``rank 1 raised: RuntimeError: boom; 2 more``; after a hang, the verdict, and who was ended.

    Raises:
        KeyError, TypeError, ValueError: It has not the form of such an event.
    """
    causes = event["causes"]
    if event.get("reason"):
        ended = [int(it["rank"]) for it in causes if it["kind"] == "HARD_TIMEOUT"]
        was = "was" if len(ended) == 1 else "were"
        return f"{event['reason']}; {named(ended)} {was} ended" if ended else str(event["reason"])
    if not causes:
        return "not known"
    first = causes[0]
    more = int(event.get("n_causes", len(causes))) - 1
    did = _WORDS.get(str(first["kind"]), str(first["kind"]))
    return f"rank {int(first['rank'])} {did}: {first['text']}" + (f"; {more} more" if more else "")


def restarts_in_place(events: Iterable[Event]) -> list[InPlace]:
    """Of a job, each once though all its nodes tell it; what is malformed is passed over."""
    found: dict[tuple[int, int], InPlace] = {}
    for event in events:
        if event.get("kind") != "restarted_in_place":
            continue
        try:
            one = of_event(event)
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        known = found.setdefault((one.cycle, one.call), one)
        found[one.cycle, one.call] = replace(
            known,
            progress_at=min(known.progress_at, one.progress_at),
            noticed_at=min(known.noticed_at, one.noticed_at),
            entered_at=max(known.entered_at, one.entered_at),
        )
    return sorted(found.values(), key=lambda one: one.noticed_at)
