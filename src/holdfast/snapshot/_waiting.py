"""The snapshot that waits to be restored, for a trainer whose model is not complete yet."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from holdfast.arena.arena import ArenaMemory
from holdfast.arena.pure.messages import Arena
from holdfast.arena.pure.snapshots import SnapshotId
from holdfast.snapshot._files import map_file
from holdfast.snapshot._launcher_link import ChoiceUnknownError, NoArenaError
from holdfast.snapshot._link import launcher_link
from holdfast.snapshot._saved import MismatchError, Saved, is_damaged

_ANY_SLOTS = 2


class WaitingSnapshot(NamedTuple):
    """A snapshot that all ranks begin from.

    Attributes:
        step: Number of steps done.
        parts: Plain data by the name of the part of the state, with a stand-in for each tensor.
    """

    step: int
    parts: dict[str, Any]


def has_launcher() -> bool:
    """Whether this process is a rank of a launcher; the same on all ranks."""
    return launcher_link() is not None


def waiting_snapshot() -> WaitingSnapshot | None:
    """None: there is none. Nothing is restored yet.

    Raises:
        SnapshotError: This rank cannot read it, or its launcher does not say which one it is.
    """
    link = launcher_link()
    if link is None:
        return None
    try:
        answer, fd = link.open_arena(0, _ANY_SLOTS)
    except ChoiceUnknownError as error:
        raise link.unknown(error) from error
    except NoArenaError:
        return None
    try:
        return None if answer.restore is None else _read(fd, answer, answer.restore)
    except (MismatchError, OSError, ValueError) as error:
        assert answer.restore is not None
        is_bad = _is_damaged(fd, answer, link.rank)
        raise link.unusable(answer.restore, str(error), is_damaged=is_bad) from error
    finally:
        os.close(fd)


def _is_damaged(fd: int, answer: Arena, rank: int) -> bool:
    if answer.file is not None:
        return False
    try:
        arena = ArenaMemory(fd)
    except OSError:
        return False
    return answer.restore is not None and is_damaged(arena, answer.slot, answer.restore, rank)


def _read(fd: int, answer: Arena, chosen: SnapshotId) -> WaitingSnapshot:
    """Of a file the bytes are checked when it is restored."""
    memory = _in_memory(fd, answer.slot, chosen) if answer.file is None else map_file(answer.file)
    saved = Saved(memory)
    return WaitingSnapshot(saved.step, saved.parts)


def _in_memory(fd: int, slot: int, chosen: SnapshotId) -> memoryview:
    arena = ArenaMemory(fd)
    found = arena.held(slot) if slot < arena.max_slots else None
    if found is None or found.held.id != chosen:
        raise MismatchError(f"slot {slot} holds {found and found.held}, not {chosen}")
    return memoryview(arena.map_slot(slot))[: found.n_bytes]
