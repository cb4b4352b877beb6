"""Decide what survivors of a fault are called: numbers without gaps, each with one owner (R-1).

Pure: numbers in, numbers out. Every rank computes the same from the same dead set, so nobody has to
be told. ``dead`` holds ranks as numbered before; they are below ``world``. Trees: ``rank_tree.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any


def shifted(rank: int, dead: AbstractSet[int]) -> int | None:
    """New number of ``rank`` when everybody moves down past the dead; ``None``: it is dead."""
    if rank in dead:
        return None
    return rank - sum(gone < rank for gone in dead)


def gaps_filled(rank: int, world: int, dead: AbstractSet[int]) -> int | None:
    """New number of ``rank`` when as few as possible move; ``None``: it is dead.

    Who has a number below the new world size keeps it. The others take the numbers of the dead
    below it, both in ascending order. Where no dead rank is at or above the new world size, this is
    "rank takes the (rank - new world)-th smallest dead number".
    """
    if rank in dead:
        return None
    new_world = world - len(dead)
    if rank < new_world:
        return rank
    place = rank - new_world - sum(new_world <= gone < rank for gone in dead)
    return sorted(gone for gone in dead if gone < new_world)[place]


def members_of_failing_groups(
    keys: Iterable[tuple[int, Any]], dead: AbstractSet[int], condition: Callable[[int], object]
) -> frozenset[int]:
    """Living ranks whose group has a number of living ranks that ``condition`` rejects.

    Args:
        keys: Of each rank: its number and its group, hashable; those of dead ranks do not count.
        dead: Ranks that are gone.
        condition: Number of living ranks in a group to true where it is enough.
    """
    living = [(rank, key) for rank, key in keys if rank not in dead]
    counts = Counter(key for _, key in living)
    failing = {key for key, count in counts.items() if not condition(count)}
    return frozenset(rank for rank, key in living if key in failing)


def at_most(size: int, most: int | None) -> int:
    """Number of active ranks when ``most`` are wanted; ``None``: all."""
    return size if most is None else min(size, most)


def multiple_of(size: int, divisor: int) -> int:
    """The largest multiple of ``divisor`` that is at most ``size``."""
    return size // divisor * divisor
