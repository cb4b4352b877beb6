"""Make and map the page of a rank's progress (layout: ``page/pure/progress.py``).

Anonymous memory: nothing is left in any file system, whoever dies. The guard opens it through
``/proc/<pid>/fd``, which the kernel allows for processes of the same user.
"""

from __future__ import annotations

import mmap
import os

from holdfast.base.own_descriptor import OwnDescriptor
from holdfast.base.processes import system_calls
from holdfast.page.pure import progress as layout


class ProgressPage:
    """A mapped page.

    Attributes:
        fd: Descriptor of its memory; -1 for a page that was mapped from another process.
        words: A memoryview of format ``d``; another one in a forked child. A store is
            ``words[i] = x``, nothing else.
    """

    __slots__ = ("_map", "_own", "fd", "words")

    def __init__(self, own: OwnDescriptor | None, mapped: mmap.mmap) -> None:
        self.fd = -1 if own is None else own.fd
        self._own = own
        self._map = mapped
        self.words = memoryview(mapped).cast("d")

    def leave_in_child(self) -> None:
        """In a forked child: write to a page of its own. Its progress is not that of the rank."""
        self._map = mmap.mmap(-1, layout.PAGE_BYTES)
        self.words = memoryview(self._map).cast("d")

    def close(self) -> None:
        """Unmap; nobody may be about to use ``words``."""
        self.words.release()
        self._map.close()
        if self._own is not None:
            self._own.close()
            self.fd = -1


def make_progress_page() -> ProgressPage:
    """A page of our own, nothing marked yet.

    Raises:
        OSError: The system has no memory or descriptor to give.
    """
    own = OwnDescriptor(system_calls.memory_file("holdfast_progress"))
    try:
        os.posix_fallocate(own.fd, 0, layout.PAGE_BYTES)
        page = ProgressPage(own, mmap.mmap(own.fd, layout.PAGE_BYTES))
    except OSError:
        own.close()
        raise
    page.words[layout.VERSION] = layout.LAYOUT_VERSION
    return page


def map_progress_page(pid: int, fd: int) -> ProgressPage:
    """The page that process ``pid`` has under descriptor ``fd``, to read and to renew its lease.

    Raises:
        OSError: The process is gone, is another user's, or this is no page of ours.
    """
    path = f"/proc/{pid}/fd/{fd}"
    own = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(own).st_size != layout.PAGE_BYTES:
            raise OSError(0, f"{path} is not a progress page of this version of holdfast")
        page = ProgressPage(None, mmap.mmap(own, layout.PAGE_BYTES))
    finally:
        os.close(own)
    if page.words[layout.VERSION] != layout.LAYOUT_VERSION:
        page.close()
        raise OSError(0, f"{path} is not a progress page of this version of holdfast")
    return page
