"""What a parked interpreter says to its launcher.

Pure: plain values; their JSON form follows from their fields (``base/pure/codec.py``). The
interpreter itself (``standby/parked/sitecustomize.py``) imports nothing of holdfast, whose modules
would be in the rank that it becomes: it writes the same JSON by hand. Its orders travel by
descriptors.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.base.pure.codec import Count, Raw, family
from holdfast.base.pure.value import Value


class Ready(Value):
    """It has imported what it should, and waits; see ``standby/pure/standby.py``."""

    memory_kib: Count
    assumed: dict[str, Raw]


class Unfit(Value):
    """It cannot be made to equal a plain start, for ``reason``; ``module``: the cause, if one."""

    reason: Raw
    module: Raw | None


FROM_PARKED: Mapping[str, type[Ready | Unfit]] = family(Ready | Unfit)
