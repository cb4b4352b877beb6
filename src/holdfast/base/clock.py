"""The only clocks. Monotonic for durations, wall for reports.

``monotonic`` is the builtin itself, so that a heartbeat pays for one C call and nothing else.
"""

from time import CLOCK_BOOTTIME, clock_gettime, localtime, monotonic, strftime
from time import time as wall

__all__ = ["local_time", "monotonic", "since_boot", "wall"]


def since_boot() -> float:
    """Seconds since the host was started, those that it was suspended included."""
    return clock_gettime(CLOCK_BOOTTIME)


def local_time(wall_s: float, *, zone: bool = True) -> str:
    """``2026-01-31 23:59:59 +0000``; ``zone``: with its last word."""
    return strftime("%Y-%m-%d %H:%M:%S %z" if zone else "%Y-%m-%d %H:%M:%S", localtime(wall_s))
