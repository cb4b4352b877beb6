"""Of ranks that wait in collectives that do not match: which of them called the wrong one. Pure.

Three signs, none of which is the order of time: a rank called the same collective of a group by
another name or size than most; it has begun fewer collectives in one of its groups than the others
that wait with it; it broke its own order (``collectives.py``).
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.evidence.pure.evidence import RankDigest

CallsAt = dict[tuple[str, str, int], dict[int, str]]
"""By name and members of a group and number of a collective: the call of each rank."""
_UNEVEN = ("scatter", "gather", "all_to_all", "alltoall")
"""Calls in which sizes may differ between ranks."""


class Called(NamedTuple):
    """A collective that a rank has called: as the recorder has it, and its group and number."""

    call: str
    at: str

    def __str__(self) -> str:
        return f"`{self.call}` {self.at}"


def called(call: str, group: str, seq: int) -> Called:
    """A call of a group, by its number there."""
    return Called(call, f"of group {group} (collective {seq})")


def differ(calls: Mapping[int, str]) -> bool:
    """They are not the same collective."""
    return len({_comparable(call) for call in calls.values()}) > 1


def _comparable(call: str) -> str:
    name = call.partition(" ")[0].lstrip("_")
    return name if name.startswith(_UNEVEN) else call


def odd_ones(calls_at: CallsAt) -> tuple[set[int], dict[int, Called]]:
    """The fewest, where ranks differ first, and the call of each rank there; empty: a tie."""
    for (name, _, seq), calls in sorted(calls_at.items(), key=lambda item: item[0][2]):
        if differ(calls):
            counted = Counter(map(_comparable, calls.values())).most_common()
            fewest, times = counted[-1]
            if times == counted[-2][1]:
                return set(), {}
            odd = {rank for rank, call in calls.items() if _comparable(call) == fewest}
            return odd, {rank: called(call, name, seq) for rank, call in calls.items()}
    return set(), {}


def begun_of(digest: RankDigest) -> tuple[int, ...]:
    """How many collectives it has begun in each of its groups, in the order of torch's numbers."""

    def number(name: str) -> tuple[int, str]:
        first = name.partition(" ")[0]
        return (int(first), "") if first.isdigit() else (0, name)

    groups = sorted(digest.groups, key=lambda group: number(group.name))
    return tuple(group.enqueued for group in groups)


def left_out(calls_at: CallsAt, begun: Mapping[int, tuple[int, ...]]) -> set[int]:
    """Of ranks that wait in one collective, the few that have begun less elsewhere; empty: none.

    The second groups of all ranks have the same part, so have the third. A rank that left out an
    operation of its second group waits with others that did not. ``begun``: by rank that waits.
    """
    waits: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for key, calls in calls_at.items():
        waits[key] = [rank for rank in calls if rank in begun]
    for ranks in filter(None, waits.values()):
        usual, times = Counter(begun[rank] for rank in ranks).most_common(1)[0]
        less = {
            rank
            for rank in ranks
            if begun[rank] != usual
            and len(begun[rank]) <= len(usual)
            and all(map(operator.le, begun[rank], usual))
        }
        if less and len(less) < times:
            return less
    return set()
