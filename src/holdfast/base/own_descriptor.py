"""Descriptors of holdfast in a process whose program may close them, and reuse their numbers.

A program may close all descriptors (``os.closerange``, a daemon's start), those of holdfast, too.
Afterwards the number is free, or is a file or socket of the program: closing it would take that
away, and writing to it would damage it. So each remembers which file it is (device and inode), and
is left alone once it is another one. Their numbers are high, where the kernel reuses them last.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket

_HIGH_FD = 512
"""At least; where the limit is lower, half of that."""


class LostDescriptorError(ConnectionError):
    """The program has closed the descriptor, or uses its number for a file of its own."""


def out_of_the_way(fd: int) -> int:
    """The same file under a high number, closed on exec; ``fd`` is closed. No space: ``fd``."""
    # Not from `resource`: in a rank that may be a file of the user's beside the script.
    soft = os.sysconf("SC_OPEN_MAX")
    lowest = _HIGH_FD if soft < 0 else min(_HIGH_FD, soft // 2)
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
    except OSError:
        return fd
    os.close(fd)
    return high


class OwnDescriptor:
    """A descriptor of holdfast, which gets a high number.

    ``is_used``: it keeps its number, as C code writes to it already.
    """

    __slots__ = ("_identity", "fd")

    def __init__(self, fd: int, *, is_used: bool = False) -> None:
        self.fd = fd if is_used else out_of_the_way(fd)
        self._identity = _identity(self.fd)

    def is_own(self) -> bool:
        """It is open, and still the same file."""
        return self.fd >= 0 and _identity(self.fd) == self._identity

    def close(self) -> None:
        """Close it unless it was lost; does nothing the second time."""
        if self.is_own():
            os.close(self.fd)
        self.fd = -1


class OwnSocket(socket.socket):
    """A Unix stream socket. One that was lost closes nothing, not even when it is freed."""

    def __init__(self, given: int = -1) -> None:
        """Make one, or take over the descriptor ``given``."""
        if given < 0:
            given = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach()
        fd = out_of_the_way(given)
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd)
        self._identity = _identity(fd)

    def is_own(self) -> bool:
        """It is open, and still the same socket."""
        fd = self.fileno()
        return fd >= 0 and _identity(fd) == self._identity

    def check(self) -> None:
        """Raise :class:`LostDescriptorError` if it was lost: to be called before each use."""
        if self.fileno() >= 0 and not self.is_own():
            self.detach()
            raise LostDescriptorError(errno.EBADF, "this program has closed the descriptor")

    def close(self) -> None:
        """Close it unless it was lost; does nothing the second time."""
        if self.fileno() >= 0 and not self.is_own():
            self.detach()
        super().close()

    def __del__(self) -> None:
        if self.fileno() >= 0 and not self.is_own():
            self.detach()


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino
