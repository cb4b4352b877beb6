"""Ranks, and what was done to them, in words that stay short for large jobs. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from holdfast.base.pure.rank_sets import text_of

_LISTED = 8
"""More ranks are written as ranges."""
_TO_A_RANK = r"(.* to )rank (\d+)(: .*)"


def named(ranks: Collection[int]) -> str:
    """``rank 5``, ``ranks 0, 1``, ``ranks 0-76,78-1023``."""
    numbers = sorted(ranks)
    shown = ", ".join(map(str, numbers)) if len(numbers) <= _LISTED else text_of(numbers)
    return f"rank{'' if len(numbers) == 1 else 's'} {shown}"


def done(actions: Iterable[str]) -> str:
    """``SIGKILL to ranks 0-3: hung; cycle 1 was started``, of an action for each rank."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for action in actions:
        found = re.fullmatch(_TO_A_RANK, action)
        alike = ranks.setdefault((found[1], found[3]) if found else (action, ""), [])
        alike += [int(found[2])] if found else []
    return "; ".join(
        f"{before}{named(who)}{after}" if who else before for (before, after), who in ranks.items()
    )
