"""Durations as the machines, torch and the kernel take them."""

from __future__ import annotations

import datetime as dt

_LONGEST = dt.timedelta(days=3650)
"""The longest that is counted, and means never: torch and the kernel cannot count much longer."""


def in_seconds(duration: dt.timedelta) -> float:
    """At most ten years, which stand for ever."""
    return min(duration, _LONGEST).total_seconds()
