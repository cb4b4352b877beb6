"""Pieces of sentences that messages share. Pure."""

from __future__ import annotations


def count(number: int, thing: str, plural: str = "s") -> str:
    """``1 rank``, ``2 ranks``, ``0 ranks``; ``count(2, "process", "es")``.

    Args:
        number: How many.
        thing: Its singular; its ending may be a whole phrase, as in "failed cycle".
        plural: Added to the singular for any number but 1.
    """
    return f"{number} {thing}{'' if number == 1 else plural}"


def restarts(processes: int, in_place: int) -> str:
    """``2 restarts and 1 in place``."""
    return count(processes, "restart") + (f" and {in_place} in place" if in_place else "")
