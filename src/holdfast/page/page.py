"""Make and map pages (layout and rules of stores: ``page/pure/page.py``)."""

from __future__ import annotations

import json
import mmap
import os

from holdfast.page.pure import page as layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.base.own_descriptor import OwnDescriptor


class PageError(OSError):
    """A page cannot be made or used; the text says which, and why."""


class Page:
    """A mapped page.

    Attributes:
        words: Its words, a memoryview of format ``d``; another one after :meth:`leave_in_child`.
            A store is ``words[i] = x``, nothing else.
    """

    __slots__ = ("_descriptor", "_map", "words")

    def __init__(
        self, mapped: mmap.mmap | bytearray, descriptor: OwnDescriptor | None = None
    ) -> None:
        self._descriptor = descriptor
        self._use(mapped)

    def _use(self, mapped: mmap.mmap | bytearray) -> None:
        self._map = mapped
        self.words = memoryview(mapped)[: layout.NAMES_OFFSET].cast("d")

    @property
    def fd(self) -> int:
        """Descriptor of an anonymous page in the process that made it; -1: there is none."""
        return -1 if self._descriptor is None else self._descriptor.fd

    def store_names(self, names: Sequence[str]) -> None:
        """Write the table of section names, in the order of their slots.

        Raises:
            PageError: There are more names, or longer ones, than the page can hold.
        """
        table = json.dumps(list(names)).encode()
        space = layout.PAGE_BYTES - layout.NAMES_OFFSET
        if len(names) > layout.MAX_SECTIONS or len(table) > space:
            raise PageError(
                f"{len(names)} section names of {len(table)} bytes are too many: a rank can have "
                f"{layout.MAX_SECTIONS} of together {space} bytes"
            )
        if self.names() != list(names):  # totals are of other sections
            for index in range(len(names)):
                slot = layout.slot(index)
                for fact in (layout.TOTAL_S, layout.TIMES, layout.FIRST_AT, layout.CLOSED_AT):
                    self.words[slot + fact] = 0.0
        self.words[layout.N_SECTIONS] = 0.0
        self._map[layout.NAMES_OFFSET : layout.NAMES_OFFSET + len(table)] = table
        self.words[layout.NAMES_BYTES] = float(len(table))
        self.words[layout.N_SECTIONS] = float(len(names))

    def names(self) -> list[str]:
        """Section names in the order of their slots; empty where no valid table is written."""
        try:
            n_sections = int(self.words[layout.N_SECTIONS])
            n_bytes = int(self.words[layout.NAMES_BYTES])
            if not 0 < n_sections <= layout.MAX_SECTIONS or n_bytes <= 0:
                return []
            table = self._map[layout.NAMES_OFFSET : layout.NAMES_OFFSET + n_bytes]
            names = json.loads(bytes(table))
        except (ValueError, OverflowError, RecursionError):
            return []
        if not isinstance(names, list) or len(names) != n_sections:
            return []
        return names if all(isinstance(name, str) for name in names) else []

    def leave_in_child(self) -> None:
        """In a forked child: write to memory of its own, for its progress is not the rank's."""
        self._use(bytearray(layout.PAGE_BYTES))

    def close(self) -> None:
        """Unmap. No thread may use ``words`` afterwards.

        Where another thread may be storing, drop the page instead: it is unmapped with its last
        reference.
        """
        self.words.release()
        if isinstance(self._map, mmap.mmap):
            self._map.close()
        if self._descriptor is not None:
            self._descriptor.close()


def create_page(path: str, cycle: int) -> None:
    """Make the file of a page, on tmpfs if possible: no rank armed, no section, no limit.

    Only the user can read it. An existing file is replaced: processes that have it mapped keep it.

    Raises:
        PageError: The file cannot be made, or there is no space for it.
    """
    fresh = f"{path}.new"
    try:
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            page = Page(_allocated(fd))
        finally:
            os.close(fd)
        page.words[layout.CYCLE] = float(cycle)
        page.words[layout.ITERATION] = -1.0
        page.words[layout.VERSION] = layout.LAYOUT_VERSION
        page.close()
        os.rename(fresh, path)
    except OSError as error:
        try:  # noqa: SIM105 - contextlib is slow to import
            os.unlink(fresh)
        except OSError:
            pass
        raise PageError(f"page {path!r} cannot be made: {error.strerror or error}") from error


def _allocated(fd: int) -> mmap.mmap:
    # A hole in a full tmpfs would be found by a store, which then kills the rank (SIGBUS).
    os.posix_fallocate(fd, 0, layout.PAGE_BYTES)
    return mmap.mmap(fd, layout.PAGE_BYTES)


def anonymous_page() -> Page:
    """A page in memory without a file system, so that it ends with its processes.

    Another process of the same user maps it through ``/proc/<pid>/fd/<fd>``.

    Raises:
        OSError: The system has no memory or descriptor to give.
    """
    # A monitor makes no such page, and its imports are counted.
    from holdfast.base.own_descriptor import OwnDescriptor  # noqa: PLC0415
    from holdfast.base.processes import system_calls  # noqa: PLC0415

    descriptor = OwnDescriptor(system_calls.memory_file("holdfast_page"))
    try:
        page = Page(_allocated(descriptor.fd), descriptor)
    except OSError:
        descriptor.close()
        raise
    page.words[layout.VERSION] = layout.LAYOUT_VERSION
    return page


def map_page(path: str, *, writable: bool) -> Page:
    """Map a page that another process made.

    Raises:
        PageError: There is none, it is no page, or it has another layout than this version's.
    """
    try:
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size != layout.PAGE_BYTES:
                raise PageError(f"page {path!r} has {size} bytes, expected {layout.PAGE_BYTES}")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            page = Page(mmap.mmap(fd, size, access=access))
        finally:
            os.close(fd)
    except PageError:
        raise
    except OSError as error:
        raise PageError(f"page {path!r} cannot be mapped: {error.strerror or error}") from error
    version = page.words[layout.VERSION]
    if version != layout.LAYOUT_VERSION:
        page.close()
        raise PageError(
            f"page {path!r} has layout {version:g}, this process knows {layout.LAYOUT_VERSION:g}; "
            "launcher, monitor and rank must use the same version of holdfast"
        )
    return page


def private_page() -> Page:
    """A page that no other process sees: stores go nowhere."""
    return Page(bytearray(layout.PAGE_BYTES))
