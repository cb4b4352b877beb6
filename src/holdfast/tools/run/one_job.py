"""Which launchers took part in one job, as far as their cycles show. Pure.

A job that is started again may have the run id of before, but its cycles have other ports; where
the port is given, both starts have a node of the same number.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeVar

from holdfast.events.pure.schema import CycleJoined, Event

Start = tuple[object, object]
"""A cycle, and its port."""
Starts = Mapping[Start, object]
"""Cycles that a launcher took part in; its number in each."""
_K = TypeVar("_K", bound=Hashable)


def starts_in(events: Iterable[Event]) -> dict[Start, object]:
    """Cycles that a launcher took part in, by its events; its number in each."""
    return {
        (event.cycle, body.master_port): body.group_rank
        for event in events
        if isinstance(body := event.body, CycleJoined)
    }


def of_one_job(first: _K, starts: Mapping[_K, Starts]) -> list[_K]:
    """Launchers that had a cycle in common with the first, or with another one of these."""
    found, known = [first], {start: {node} for start, node in starts[first].items()}
    others = [each for each in starts if each != first]
    n_before = 0
    while n_before < len(found):
        n_before = len(found)
        for each in [one for one in others if one not in found]:
            if _are_of(known, starts[each]):
                found.append(each)
                for start, node in starts[each].items():
                    known.setdefault(start, set()).add(node)
    return found


def _are_of(known: Mapping[Start, AbstractSet[object]], starts: Starts) -> bool:
    """They are starts of that job: two nodes of one cycle have different numbers."""
    common = known.keys() & starts.keys()
    return bool(common) and all(starts[one] not in known[one] - {None} for one in common)
