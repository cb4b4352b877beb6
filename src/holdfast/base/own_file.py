"""Files that are replaced as a whole, and files that only their maker removes."""

from __future__ import annotations

import os


def replace_text(path: str, text: str) -> None:
    """Write a file that is complete whenever it is read; folders and names may be no UTF-8.

    Raises:
        OSError: It cannot be written.
    """
    with open(f"{path}.new", "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


class OwnFile:
    """The file that is at ``path`` now; later changes of its owner or mode make it another.

    Its maker removes it, unless another process has put its own in that place by then.
    """

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
