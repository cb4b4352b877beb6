"""The page in which a rank marks its progress for its node's guard: 8-byte floats, one fact each.

Instants of the machine's monotonic clock, 0.0 for never. Single writer: the rank. There is no lock:
each word is stored whole, and means something by itself. Lean: imported by the node guard.
"""

VERSION = 0
"""``LAYOUT_VERSION``; written last when a page is made."""
AUTOMATIC = 1
"""When the main thread last ran Python code."""
MANUAL = 2
"""When the user's function last called ``ping()``."""
THREAD = 3
"""When the watcher thread last had the interpreter."""
UNLIMITED = 4
"""Not 0.0: the function has switched its limits off for a while."""
WAITS = 5
"""Not 0.0: when the watcher thread last looked, the main thread waited for other ranks."""

WORDS = 8
PAGE_BYTES = 8 * WORDS
LAYOUT_VERSION = 1.0
