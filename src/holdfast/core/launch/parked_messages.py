"""What a parked interpreter says to its launcher.

Pure: plain values; their JSON form follows from their fields (``core/codec.py``). The interpreter
itself (``host/parked/sitecustomize.py``) imports nothing of holdfast, whose modules would be in the
rank that it becomes: it writes the same JSON by hand. Its orders travel by descriptors.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.codec import Count, Raw, family
from holdfast.core.value import Value


class Ready(Value):
    """It has imported what it should, and waits; see ``core/launch/standby.py``."""

    memory_kib: Count
    assumed: dict[str, Raw]


class Unfit(Value):
    """It cannot be made to equal a plain start, for ``reason``; ``module``: the cause, if one."""

    reason: Raw
    module: Raw | None


FROM_PARKED: Mapping[str, type[Ready | Unfit]] = family(Ready | Unfit)
