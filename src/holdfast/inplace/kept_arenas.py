"""The memory of snapshots that a node guard keeps for its ranks: of those that died, too."""

from __future__ import annotations

import os

from holdfast.arena.arena import ArenaMemory
from holdfast.arena.pure import layout
from holdfast.inplace.pure.guard_snapshots import FoundSnapshot, SnapshotsRead

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.arena.pure.snapshots import SnapshotId


class KeptArenas:
    """As long as the process lives."""

    def __init__(self) -> None:
        self._arenas: dict[tuple[int, int], ArenaMemory] = {}
        """By device and inode of the memory file."""

    def keep(self, pid: int, fd: int) -> None:
        """Map the memory file with this descriptor of a process; one that is kept already stays.

        Raises:
            OSError: It cannot be opened, or it is no such memory.
        """
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        found = os.fstat(own)
        name = found.st_dev, found.st_ino
        if name in self._arenas:
            os.close(own)
            return
        try:
            self._arenas[name] = ArenaMemory(own)
        except OSError:
            os.close(own)
            raise

    def read(self) -> SnapshotsRead:
        """All committed snapshots, and the last step of any rank in the life that has ended."""
        found = tuple(
            FoundSnapshot(slot.held, f"/proc/{os.getpid()}/fd/{arena.fd}", slot.slot)
            for arena in self._arenas.values()
            for slot in arena.all_held()
        )
        last = max((it.words[layout.LAST_STEP] for it in self._arenas.values()), default=-1)
        void = (it.void_until() for it in self._arenas.values())
        void_until = max((it for it in void if it is not None), default=None)
        for arena in self._arenas.values():
            arena.words[layout.LAST_STEP] = -1
        return SnapshotsRead(found, max(-1, last), void_until)

    def void(self, but_until: SnapshotId | None) -> None:
        """Void those newer than this one; None: all."""
        for arena in self._arenas.values():
            arena.void_others(but_until)
