"""The page in which a rank marks its progress for its node's guard: 8-byte floats, one fact each.

Instants of the machine's monotonic clock, 0.0 for never. Each word has one writer: the rank, and of
``LEASE_UNTIL`` the guard. There is no lock: a word is stored whole, and means something by itself.
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
LEASE_UNTIL = 6
"""Until when the rank may run; 0.0: without an end. The rank writes it before it attaches, then the
guard (``inplace/pure/lease.py``)."""
NUMBER = 7
"""One more than the rank that torch knows this process by in its call of the function; 0.0: not
known."""

WORDS = 8
PAGE_BYTES = 8 * WORDS
LAYOUT_VERSION = 2.0
