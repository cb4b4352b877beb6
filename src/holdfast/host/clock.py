"""The only clocks. Monotonic for durations, wall for reports.

``monotonic`` is the builtin itself, so that a heartbeat pays for one C call and nothing else.
"""

from time import monotonic
from time import time as wall

__all__ = ["monotonic", "wall"]
