"""What the launcher of a node and its health process say to each other.

Pure: plain values; their JSON form follows from their fields (``core/codec.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.codec import Count, Raw, family
from holdfast.core.health import Finding
from holdfast.health.wanted import Wanted


# ---------------------------------------------------------------- to the health process
@dataclass(frozen=True)
class Configure:
    """The first message. ``path``: what the launcher can import from."""

    wanted: Wanted
    path: tuple[Raw, ...]


@dataclass(frozen=True)
class Check:
    """Look at the host now; ``after_ranks``: and wait until their GPU memory is free."""

    number: Count
    after_ranks: bool


# ---------------------------------------------------------------- to the launcher
@dataclass(frozen=True)
class Found:
    """One fact of a check."""

    number: Count
    finding: Finding


@dataclass(frozen=True)
class Checked:
    """The check is over."""

    number: Count


@dataclass(frozen=True)
class Noticed:
    """One fact that no check asked for: it has changed while ranks run."""

    finding: Finding


@dataclass(frozen=True)
class Note:
    """A line about GPU memory. ``level``: ``info`` or ``error``."""

    level: str
    text: Raw


ToHealth = Configure | Check
FromHealth = Found | Checked | Noticed | Note

TO_HEALTH: Mapping[str, type[ToHealth]] = family(ToHealth)
FROM_HEALTH: Mapping[str, type[FromHealth]] = family(FromHealth)
