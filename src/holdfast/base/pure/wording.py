"""Pieces of sentences that messages share. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def count(number: int, thing: str, plural: str = "s") -> str:
    """``1 rank``, ``2 ranks``, ``0 ranks``; ``count(2, "process", "es")``."""
    return f"{number} {thing}{'' if number == 1 else plural}"


def restarts(processes: int, in_place: int) -> str:
    """``2 restarts and 1 in place``."""
    return count(processes, "restart") + (f" and {in_place} in place" if in_place else "")


def duration(s: float) -> str:
    """``0.25 s``, ``42 s``, ``3 min 20 s``, ``2 h 05 min``, ``3 d 4 h``."""
    if s < 0.9995:
        return f"{s:.2g} s" if s >= 0.001 else "0 s"
    if s < 59.95:
        return f"{s:.3g} s"
    whole = round(s)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(s / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    hours = round(s / 3600)
    return f"{hours // 24} d {hours % 24} h"


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The most similar of some names, if one is similar enough for a slip of the pen."""
    import difflib  # noqa: PLC0415 - slow, and only after a mistake

    found = difflib.get_close_matches(name, list(known), 1, likeness)
    return found[0] if found else None
