"""Deadlines of machines and their parts: an instant, or None for never."""

from __future__ import annotations


def earliest(*instants: float | None) -> float | None:
    """The first of them."""
    first: float | None = None
    for at in instants:  # after each event of a launcher, for dozens of parts
        if at is not None and (first is None or at < first):
            first = at
    return first
