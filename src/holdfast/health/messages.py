"""What the launcher of a node and its health process say to each other.

Pure: plain values; their JSON form follows from their fields (``core/codec.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.codec import Count, Raw, family
from holdfast.core.common_events import Note
from holdfast.core.launch.gate import Answered, Found, Noticed
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


ToHealth = Configure | Check
FromHealth = Found | Answered | Noticed | Note  # events and a line of the launcher, as they are

TO_HEALTH: Mapping[str, type[ToHealth]] = family(ToHealth)
FROM_HEALTH: Mapping[str, type[FromHealth]] = family(FromHealth)
