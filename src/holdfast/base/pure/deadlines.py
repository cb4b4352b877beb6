"""Deadlines of machines and their parts: an instant, or None for never."""

from __future__ import annotations


def earliest(*instants: float | None) -> float | None:
    """The first of them."""
    return min((at for at in instants if at is not None), default=None)
