"""One word that a launcher moves ahead of the clock for as long as it may have ranks.

A launcher of several nodes that is stopped (SIGSTOP, a debugger) cannot end its ranks before the
others go on without it; its monitors read this word, and can.
"""

from __future__ import annotations

import mmap
import os

_BYTES = 8


class Lease:
    """A mapped lease: how long ranks may live if nobody says more.

    Args:
        path: On tmpfs.
        writable: Make the file; False: somebody has.

    Raises:
        OSError: It cannot be made, or there is none.
    """

    __slots__ = ("_map", "_word", "path")

    def __init__(self, path: str, *, writable: bool) -> None:
        self.path = path
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
        self._word = memoryview(self._map).cast("d")

    @property
    def until(self) -> float | None:
        """When it ends, by CLOCK_MONOTONIC in seconds; None: it does not."""
        return self._word[0] or None

    def extend(self, until: float | None) -> None:
        """Let it end then; one store."""
        self._word[0] = until or 0.0

    def close(self) -> None:
        """Unmap."""
        self._word.release()
        self._map.close()
