"""A file that its maker removes, unless another process has put its own in that place by then."""

from __future__ import annotations

import os


class OwnFile:
    """The file that is at ``path`` now; later changes of its owner or mode make it another."""

    __slots__ = ("_identity", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity = _identity(path)

    def remove(self) -> None:
        """Remove it, if it is still there.

        Raises:
            OSError: It cannot be removed.
        """
        if self._identity is not None and _identity(self._path) == self._identity:
            os.unlink(self._path)


def _identity(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns  # inode numbers are given again soon
