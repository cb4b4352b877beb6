"""Messages of a parked interpreter to its launcher.

Pure: plain values; their JSON form follows from their fields (``base/pure/codec.py``). The
interpreter itself (``standby/parked/paused_start.py``) imports nothing of holdfast, which would
stay in the rank that it becomes: it writes the same JSON by hand.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.base.pure.codec import Count, Raw, family
from holdfast.base.pure.value import Value


class ParkedReady(Value):
    """It has made all imports, and waits; ``assumed``: variables of the cycle that they read."""

    memory_kib: Count
    assumed: dict[str, Raw]


class ParkedUnfit(Value):
    """It cannot be made to equal a plain start, for ``reason``; ``module``: the cause, if one."""

    reason: Raw
    module: Raw | None = None


FROM_PARKED: Mapping[str, type[ParkedReady | ParkedUnfit]] = family(ParkedReady | ParkedUnfit)
