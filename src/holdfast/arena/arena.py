"""Make and map an arena, reserve and commit its slots (layout and order: ``pure/layout.py``).

The node guard of a restart in place maps arenas, too: nothing slow is imported.
"""

from __future__ import annotations

import _thread
import fcntl
import mmap
import os
from typing import NamedTuple

from holdfast.arena.pure import layout, lineage
from holdfast.arena.pure.snapshots import Held, SnapshotId
from holdfast.base.processes import system_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_F_ADD_SEALS, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 2, 4
_MADV_POPULATE_READ = 22
_ADVICE = ("MADV_DONTFORK", "MADV_HUGEPAGE", "MADV_DONTDUMP")
PAGE_BYTES = mmap.PAGESIZE


class ArenaError(OSError):
    """An arena cannot be made, mapped or read; the text says why."""


class HeldSlot(NamedTuple):
    """A committed snapshot, and the slot that holds it.

    Attributes:
        held: Its name, and the rank that it is the state of.
        slot: Its index.
        n_bytes: Of the file.
    """

    held: Held
    slot: int
    n_bytes: int


class Pending(NamedTuple):
    """It is not known yet whether a step stays: the rank has not come to it, or is in a copy."""


def create(name: str, n_slots: int = layout.MAX_SLOTS) -> int:
    """Descriptor of a new arena with room for ``n_slots``: closed at exec, and never truncated.

    It takes no memory but its first page; slots are reserved by :meth:`ArenaMemory.reserve`.

    Raises:
        ArenaError: The system gives no memory file.
    """
    try:
        fd = system_calls.memfd_create(name, sealable=True)
    except OSError as error:
        raise ArenaError(error.errno, f"no memory file for snapshots: {error.strerror}") from error
    try:
        os.ftruncate(fd, layout.file_bytes(n_slots))
        # A rank that shrinks it would end its launcher by SIGBUS.
        fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
        os.posix_fallocate(fd, 0, layout.HEAD_BYTES)
        with mmap.mmap(fd, layout.HEAD_BYTES) as head, memoryview(head).cast("q") as words:
            words[layout.N_SLOTS] = 0
            words[layout.LAST_STEP] = -1
            words[layout.VERSION] = layout.LAYOUT_VERSION
    except OSError as error:
        os.close(fd)
        raise ArenaError(error.errno, f"no memory for snapshots: {error.strerror}") from error
    return fd


class ArenaMemory:
    """An arena, mapped. The descriptor is the caller's, and must stay open.

    One thread writes a slot at a time.

    Attributes:
        words: Its words, a memoryview of format ``q``. A store is ``words[i] = x``.
    """

    def __init__(self, fd: int, *, writable: bool = True) -> None:
        """Map the first page.

        Raises:
            ArenaError: It is no arena, or has another layout than this version's.
        """
        self.fd = fd
        size = os.fstat(fd).st_size
        self.max_slots = min(size // layout.SLOT_STRIDE - 1, layout.MAX_SLOTS)
        if self.max_slots < 1:
            raise ArenaError(f"memory for snapshots has {size} bytes, which hold no slot")
        try:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._head = mmap.mmap(fd, layout.HEAD_BYTES, access=access)
        except (OSError, ValueError) as error:
            raise ArenaError(f"memory for snapshots cannot be mapped: {error}") from error
        self.words = memoryview(self._head).cast("q")
        self._barrier = _thread.allocate_lock()
        version = self.words[layout.VERSION]
        if version != layout.LAYOUT_VERSION:
            raise ArenaError(
                f"memory for snapshots has layout {version}, this process knows "
                f"{layout.LAYOUT_VERSION}; launcher and rank must use the same version of holdfast"
            )

    def slots(self) -> range:
        """Those that the rank may use."""
        return range(max(0, min(self.words[layout.N_SLOTS], self.max_slots)))

    # ------------------------------------------------------------ memory
    def reserve(self, index: int, n_bytes: int) -> int:
        """Have the kernel give slot ``index`` memory for so many bytes; returns its capacity.

        Takes about 0.25 s per GB the first time. A slot never shrinks.

        Raises:
            OSError: There is no memory for it; the slot is as before.
        """
        at = layout.slot(index)
        capacity = self.words[at + layout.CAPACITY]
        wanted = -(-n_bytes // PAGE_BYTES) * PAGE_BYTES
        if wanted <= capacity:
            return capacity
        if wanted > layout.SLOT_STRIDE:
            raise ArenaError(f"a snapshot of {n_bytes} bytes is larger than a slot can be")
        offset = layout.slot_offset(index)
        os.posix_fallocate(self.fd, offset + capacity, wanted - capacity)
        self.words[at + layout.CAPACITY] = wanted
        return wanted

    def release(self, index: int) -> None:
        """Void slot ``index`` and give its memory back to the kernel. No process may write it.

        Raises:
            OSError: It has none, or the system does not take it back.
        """
        self.void(index)
        with self.map_slot(index) as mapped:
            self.words[layout.slot(index) + layout.CAPACITY] = 0
            mapped.madvise(mmap.MADV_REMOVE)

    def map_slot(self, index: int, *, is_populated: bool = False) -> mmap.mmap:
        """The reserved bytes of slot ``index``, to be written; not mapped in forked children.

        ``is_populated``: its pages are mapped at once, and not one by one as they are met.

        Raises:
            ArenaError: Nothing is reserved, or it cannot be mapped.
        """
        capacity = self.words[layout.slot(index) + layout.CAPACITY]
        if not 0 < capacity <= layout.SLOT_STRIDE or capacity % PAGE_BYTES:
            raise ArenaError(f"slot {index} of the snapshots has no memory ({capacity} bytes)")
        try:
            mapped = mmap.mmap(self.fd, capacity, offset=layout.slot_offset(index))
        except (OSError, ValueError) as error:
            raise ArenaError(f"slot {index} of the snapshots cannot be mapped: {error}") from error
        for advice in _ADVICE:
            _advise(mapped, getattr(mmap, advice))
        if is_populated:
            _advise(mapped, _MADV_POPULATE_READ)  # Linux before 5.14: met one by one
        return mapped

    # ------------------------------------------------------------ contents
    def begin(self, index: int) -> None:
        """Slot ``index`` holds no snapshot from now on: its bytes may be written."""
        at = layout.slot(index)
        self.words[at + layout.COMMIT] = 0
        self.words[at + layout.SUMMED] = 0
        with self._barrier:  # where a processor reorders stores: a lock orders them
            pass

    def commit(self, index: int, held: Held, n_bytes: int) -> None:
        """Slot ``index`` holds this snapshot: the bytes are written."""
        at = layout.slot(index)
        self.words[at + layout.STEP] = held.step
        self.words[at + layout.CYCLE] = held.cycle
        self.words[at + layout.ITERATION] = held.iteration
        self.words[at + layout.RANK] = held.rank
        self.words[at + layout.WORLD_SIZE] = held.world_size
        self.words[at + layout.BYTES] = n_bytes
        with self._barrier:
            pass
        self.words[at + layout.COMMIT] = held.step + 1

    # ------------------------------------------------------------ pinned
    def pin(self, word: int, step: int) -> None:
        """Have the rank not overwrite the snapshot of ``step``, which it has or will take.

        ``word``: one of ``layout.PINS``. Step 0 releases the one before.
        """
        self.words[word] = step
        with self._barrier:
            pass

    def pinned(self, step: int) -> HeldSlot | Pending | None:
        """The snapshot of a step that was pinned, which stays; None: it will not be here."""
        has_passed = self.words[layout.LAST_STEP] > step
        # Before the contents: a copy may end meanwhile.
        writing, slot = divmod(self.words[layout.WRITES] - 1, layout.MAX_SLOTS)
        for found in self.all_held():
            if found.held.step == step:  # where it is claimed, the rank will see the pin, or not
                return Pending() if writing >= 0 and found.slot == slot else found
        return None if has_passed and writing != step else Pending()

    def pins(self) -> frozenset[int]:
        """Steps that the rank does not overwrite."""
        return frozenset(self.words[word] for word in layout.PINS) - {0}

    def list_all(self, *, is_shared: bool) -> list[HeldSlot]:
        """The snapshots here, which stay until :meth:`unlist`: no other node's copy overwrites one.

        ``is_shared``: such a copy may be about to, and then that slot is none of them. Else only
        the rank wrote here, which is gone.
        """
        self.pin(layout.LISTED, 1)
        claimed = (self.words[layout.WRITES] - 1) % layout.MAX_SLOTS
        is_claimed = is_shared and self.words[layout.WRITES] > 0
        return [it for it in self.all_held() if not (is_claimed and it.slot == claimed)]

    def unlist(self) -> None:
        """Another cycle begins: snapshots that it does not need may be overwritten."""
        self.pin(layout.LISTED, 0)

    @property
    def is_listed(self) -> bool:
        """Nothing here is overwritten."""
        return self.words[layout.LISTED] != 0

    def claim(self, index: int, step: int) -> None:
        """Its writer is about to write slot ``index``: :meth:`may_write` says whether it may."""
        self.words[layout.WRITES] = 1 + index + layout.MAX_SLOTS * step
        with self._barrier:
            pass

    def may_write(self, index: int) -> bool:
        """Whether slot ``index``, which was claimed, holds no snapshot that stays."""
        found = self.held(index)
        return found is None or not (self.is_listed or found.held.step in self.pins())

    def unclaim(self) -> None:
        """Its writer writes no slot."""
        with self._barrier:
            pass
        self.words[layout.WRITES] = 0

    def void(self, index: int) -> None:
        """Slot ``index`` holds no snapshot any more."""
        self.words[layout.slot(index) + layout.COMMIT] = 0

    def held(self, index: int) -> HeldSlot | None:
        """The committed snapshot in slot ``index``; None: there is none, or no valid one."""
        at = layout.slot(index)
        words = self.words[at : at + layout.SLOT_WORDS]
        commit, step, n_bytes = (words[i] for i in (layout.COMMIT, layout.STEP, layout.BYTES))
        rank, world_size = words[layout.RANK], words[layout.WORLD_SIZE]
        cycle, iteration = words[layout.CYCLE], words[layout.ITERATION]
        is_valid = (
            commit == step + 1
            and min(step, rank, world_size, cycle, iteration) >= 0
            and 0 < n_bytes <= words[layout.CAPACITY] <= layout.SLOT_STRIDE
        )
        held = Held(rank, world_size, cycle, iteration, step)
        return HeldSlot(held, index, n_bytes) if is_valid else None

    def all_held(self) -> Iterator[HeldSlot]:
        """Those of all slots, of which the rank may not use all any more."""
        for index in range(self.max_slots):
            if (found := self.held(index)) is not None:
                yield found

    def void_others(self, but_until: SnapshotId | None) -> None:
        """Void the snapshots computed after this one, or from another one; None: all.

        Steps above it will exist twice, with other bytes; those below it belong to it.
        """
        for found in list(self.all_held()):
            if but_until is None or found.held.id > but_until:
                self.void(found.slot)

    def give_up(self, cycle: int, iteration: int) -> None:
        """The rank takes no more until the end of a life: no snapshot of before is used again."""
        self.words[layout.VOID_UNTIL] = 1 + iteration + layout.LIFE * cycle

    def void_until(self) -> SnapshotId | None:
        """The rank has given up its snapshots up to this one; None: it has given up none."""
        cycle, iteration = divmod(self.words[layout.VOID_UNTIL] - 1, layout.LIFE)
        return None if cycle < 0 else SnapshotId(cycle, iteration, lineage.ANY)

    def has_given_up_in(self, cycle: int) -> bool:
        """It has, and takes none since."""
        void = self.void_until()
        if void is None or void.cycle != cycle:
            return False
        return all(it.held.id <= void for it in self.all_held())

    # ------------------------------------------------------------ sums
    def sum_of(self, index: int) -> int | None:
        """The sum of the committed bytes of slot ``index``; None: it was not added up."""
        at = layout.slot(index)
        is_known = self.words[at + layout.SUMMED] == self.words[at + layout.COMMIT] > 0
        return self.words[at + layout.SUM] if is_known else None

    def store_sum(self, index: int, commit: int, total: int) -> None:
        """``total``: of the bytes committed as ``commit``; dropped if they are gone."""
        at = layout.slot(index)
        if self.words[at + layout.COMMIT] == commit:
            self.words[at + layout.SUM] = total
            self.words[at + layout.SUMMED] = commit


def _advise(mapped: mmap.mmap, advice: int) -> None:
    try:  # noqa: SIM105 - contextlib is slow to import, for the node guard
        mapped.madvise(advice)
    except OSError:  # this kernel does not know it
        pass
