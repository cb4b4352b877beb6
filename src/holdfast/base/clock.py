"""The only clocks. Monotonic for durations, wall for reports.

``monotonic`` is the builtin itself, so that a heartbeat pays for one C call and nothing else.
"""

from time import CLOCK_BOOTTIME, clock_gettime, monotonic
from time import time as wall

__all__ = ["monotonic", "since_boot", "wall"]


def since_boot() -> float:
    """Seconds since the host was started, those that it was suspended included."""
    return clock_gettime(CLOCK_BOOTTIME)
