"""The lease of a launcher: an instant that it moves ahead for as long as it may have ranks.

A launcher of several nodes that is stopped (SIGSTOP, a debugger) cannot end its ranks before the
others go on without it; its monitors read until when ranks may live, and can.
"""

from __future__ import annotations

import mmap
import os

from holdfast.base.pure.excuse import Excuse

_UNTIL, _MOVED_AT, _WAKE_S = range(3)
"""Words. ``_WAKE_S``: how long a monitor that slept leaves the launcher to wake up, too."""
_BYTES = 8 * 3


class Lease:
    """A mapped lease: how long ranks may live if it is not extended.

    Args:
        path: On tmpfs.
        writable: Make the file; False: the launcher has.
        wake_s: Of the launcher.

    Raises:
        OSError: It cannot be made, or there is none.
    """

    __slots__ = ("_excused", "_map", "_words", "path")

    def __init__(self, path: str, *, writable: bool, wake_s: float = 0.0) -> None:
        self.path = path
        self._excused = 0.0, 0.0
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            if writable:
                os.posix_fallocate(fd, 0, _BYTES)
            elif os.fstat(fd).st_size < _BYTES:
                raise OSError(0, f"{path} is not a lease")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(fd, _BYTES, access=access)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("d")
        if writable:
            self._words[_WAKE_S] = wake_s

    @property
    def until(self) -> float | None:
        """When it ends, by CLOCK_MONOTONIC in seconds; None: it does not."""
        return self._words[_UNTIL] or None

    @property
    def moved_at(self) -> float:
        """When its launcher last did something."""
        return self._words[_MOVED_AT]

    def end(self, now: float) -> float | None:
        """When a monitor that is awake at ``now`` is to end the ranks; None: it need not.

        A monitor that wakes after the end may have slept, and the launcher with it: that gets as
        much time to say something, ``wake_s`` at most, and once.
        """
        until = self.until
        if until is None or now < until:
            return until
        if self._excused[0] != until:
            self._excused = until, Excuse(now, now - until).extend(until, self._words[_WAKE_S])
        return self._excused[1]

    def extend(self, until: float | None, now: float) -> None:
        """Let it end then."""
        self._words[_MOVED_AT] = now
        self._words[_UNTIL] = until or 0.0

    def close(self) -> None:
        """Unmap."""
        self._words.release()
        self._map.close()
