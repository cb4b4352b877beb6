"""Sets of ranks as short texts: ``0-3,8-62/6`` is 0, 1, 2, 3, 8, 14 ... 62. Pure.

A process group of one rank per node has thousands of members, in a text of 15 characters.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_LEAST = 3
"""Ranks that are worth a range."""


def text_of(ranks: Iterable[int]) -> str:
    """The set as a text; "" for the empty set."""
    rest = sorted(set(ranks))
    parts, at = [], 0
    while at < len(rest):
        step = rest[at + 1] - rest[at] if at + 1 < len(rest) else 1
        end = at
        while end + 1 < len(rest) and rest[end + 1] - rest[end] == step:
            end += 1
        if end - at + 1 < _LEAST:
            parts.append(str(rest[at]))
            at += 1
            continue
        by = "" if step == 1 else f"/{step}"
        parts.append(f"{rest[at]}-{rest[end]}{by}")
        at = end + 1
    return ",".join(parts)


def ranks_of(text: str) -> list[int]:
    """The ranks of such a text, in order.

    Raises:
        ValueError: It is no such text.
    """
    found: list[int] = []
    for part in text.split(",") if text else ():
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def named(ranks: Collection[int]) -> str:
    """``rank 3``, ``ranks 0-3,8``."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {text_of(ranks)}"
