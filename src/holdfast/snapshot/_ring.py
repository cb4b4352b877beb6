"""The slots of a rank's arena: reserved and mapped beside the training, written in turn.

A slot is *ready* when the memory that it needs is the kernel's promise, mapped, and touched; the
training never waits for that, and takes no snapshot before.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import torch

from holdfast.arena.arena import ArenaMemory
from holdfast.arena.pure import layout
from holdfast.arena.pure.slots import next_slot
from holdfast.arena.pure.snapshots import Held
from holdfast.arena.pure.tensors_head import Head
from holdfast.snapshot import _tensors


class Pinning(Protocol):
    """The needs of a device for host memory that it copies into."""

    def pin(self, memory: torch.Tensor) -> None:
        """Before the first copy. Takes seconds per 10 GB."""

    def unpin(self, memory: torch.Tensor) -> None:
        """Before the memory is unmapped."""


class Slot:
    """A slot that is mapped.

    Attributes:
        index: In the arena.
        memory: Its bytes, as a tensor; None: not mapped yet.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.memory: torch.Tensor | None = None
        self._head: Head | None = None
        self._views: list[torch.Tensor] = []

    @property
    def capacity(self) -> int:
        """Bytes that are ready."""
        return 0 if self.memory is None else self.memory.numel()

    def views(self, head: Head, names: Sequence[str]) -> list[torch.Tensor]:
        """Where the tensors of a file with this head lie. Kept for the next with the same."""
        if self._head is not head:
            assert self.memory is not None
            self._views = _tensors.views(self.memory, head.data_at, names, head.placed)
            self._head = head
        return self._views

    def forget(self) -> None:
        """Before another mapping takes the place of this one."""
        self.memory, self._head, self._views = None, None, []


class Ring:
    """Slots of one arena. Two threads: the training's chooses and writes, another prepares."""

    def __init__(self, arena: ArenaMemory, pinning: Pinning | None) -> None:
        self.arena = arena
        self._pinning = pinning
        self._slots = [Slot(index) for index in range(arena.max_slots)]
        self._lock = threading.Lock()
        self._busy: set[int] = set()
        arena.unclaim()  # of a process that died

    # ------------------------------------------------------------ prepared
    def prepare(self, n_bytes: int, n_slots: int) -> None:
        """Have ``n_slots`` slots ready for files of so many bytes.

        Raises:
            OSError: There is no memory for a slot. Those before it are ready.
        """
        for slot in self._slots[:n_slots]:
            if slot.capacity >= n_bytes or not self._claim(slot.index):
                continue
            try:
                self._grow(slot, n_bytes)
            finally:
                self._let_go(slot.index)

    def _grow(self, slot: Slot, n_bytes: int) -> None:
        self.arena.reserve(slot.index, n_bytes)
        if slot.memory is not None and self._pinning is not None:
            self._pinning.unpin(slot.memory)
        slot.forget()
        # The first touch of a page is the dear one: here, and not in a step of the training.
        mapped = self.arena.map_slot(slot.index, is_populated=True)
        memory = torch.frombuffer(mapped, dtype=torch.uint8)
        if self._pinning is not None:
            self._pinning.pin(memory)
        slot.memory = memory

    def is_prepared(self, n_bytes: int, n_slots: int) -> bool:
        """Whether all slots are ready for it."""
        return all(slot.capacity >= n_bytes for slot in self._slots[:n_slots])

    # ------------------------------------------------------------ written
    def take(self, step: int, n_bytes: int, n_slots: int) -> Slot | None:
        """The slot for the snapshot of ``step``, which is this caller's until :meth:`give_back`."""
        arena = self.arena
        held = {each.slot: each.held.id for each in arena.all_held()}
        with self._lock:
            ready = [s.index for s in self._slots[:n_slots] if s.capacity >= n_bytes]
            for _ in ready:
                index = next_slot(ready, held, self._busy, arena.pins())
                if index is None:
                    break
                arena.claim(index, step)
                if arena.may_write(index):
                    self._busy.add(index)
                    return self._slots[index]
                # Pinned since: another one.
            arena.unclaim()
        return None

    def give_back(self, slot: Slot) -> None:
        """It is written, or will not be."""
        self.arena.unclaim()
        self._let_go(slot.index)

    def commit(self, slot: Slot, held: Held, n_bytes: int) -> None:
        """The bytes are written."""
        self.arena.commit(slot.index, held, n_bytes)

    def add_up(self, slot: Slot) -> None:
        """Add up the bytes of the slot, unless it changes meanwhile."""
        words, at = self.arena.words, layout.slot(slot.index)
        commit, memory = words[at + layout.COMMIT], slot.memory
        if commit == 0 or memory is None or words[at + layout.SUMMED] == commit:
            return
        total = _tensors.sum_of(memory, words[at + layout.BYTES])
        self.arena.store_sum(slot.index, commit, total)

    # ------------------------------------------------------------ ended
    def close(self) -> None:
        """Give the mappings back; the arena stays."""
        for slot in self._slots:
            if slot.memory is not None and self._pinning is not None:
                self._pinning.unpin(slot.memory)
            slot.forget()

    def _claim(self, index: int) -> bool:
        with self._lock:
            if index in self._busy:
                return False
            self._busy.add(index)
            return True

    def _let_go(self, index: int) -> None:
        with self._lock:
            self._busy.discard(index)
