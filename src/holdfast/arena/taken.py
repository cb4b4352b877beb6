"""Snapshots that ranks have taken, from the words of their arenas: for events and live views."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from holdfast.arena.arena import ArenaError, ArenaMemory
from holdfast.arena.pure import layout
from holdfast.arena.pure.file_names import NAMES, NodeSnapshotNames
from holdfast.base.pure.codec import decode, encode
from holdfast.base.pure.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.arena.pure.snapshots import SnapshotId

_NS = 1e9


class TakenByRank(Value):
    """Snapshots of one rank.

    Attributes:
        held: Those that its memory holds, of earlier cycles too.
        taken: Since the rank has started.
        skipped: For which there was no free slot, or no memory.
        seconds: That they have added to the time of the training.
        step_s: From one step to the next, without them; 0.0: not known.
        last_step: That the rank has ended; -1: none.
        every: One of so many steps is taken; 0: not agreed yet.
        at: When the last one was committed, CLOCK_MONOTONIC; None: none was.
    """

    held: frozenset[SnapshotId]
    taken: int
    skipped: int
    seconds: float
    step_s: float
    last_step: int
    every: int
    at: float | None


class TakenByNode(Value):
    """Snapshots of all ranks of a node: the fields of the event ``snapshots_taken``."""

    taken: int
    skipped: int
    seconds: float
    step_s: float | None
    step: int | None
    last_step: int | None
    every: int
    at: float | None


def of_rank(memory: ArenaMemory) -> TakenByRank:
    """Read its words, which are the rank's: no value of them is believed to make sense."""
    words = memory.words
    counts = (layout.TAKEN, layout.SKIPPED, layout.SPENT_NS, layout.STEP_NS, layout.EVERY)
    taken, skipped, spent_ns, step_ns, every = (max(0, words[word]) for word in counts)
    return TakenByRank(
        held=frozenset(slot.held.id for slot in memory.all_held()),
        taken=taken,
        skipped=skipped,
        seconds=spent_ns / _NS,
        step_s=step_ns / _NS,
        last_step=max(-1, words[layout.LAST_STEP]),
        every=every,
        at=words[layout.TAKEN_AT] / _NS if words[layout.TAKEN_AT] > 0 else None,
    )


def show(folder: str, local_rank: int, fd: int) -> None:
    """Let others of this user find the arena of a rank while this process, its owner, lives.

    A link to the descriptor: without it live views lack their numbers, and nothing else.
    """
    path, target = _path(folder, local_rank), f"/proc/{os.getpid()}/fd/{fd}"
    with contextlib.suppress(OSError):
        if path.is_symlink() and str(path.readlink()) == target:
            return
        fresh = path.with_suffix(".new")
        fresh.symlink_to(target)
        fresh.replace(path)


def show_node(folder: str, names: NodeSnapshotNames) -> None:
    """Let others of this user know the names of the snapshots; without it none can be rescued."""
    fresh = Path(folder, "snapshots.new")
    with contextlib.suppress(OSError):
        fresh.write_text(json.dumps(encode(names)), encoding="utf-8")
        fresh.replace(_names_path(folder))


def read_node(folder: str) -> NodeSnapshotNames | None:
    """As a launcher of this host shows them; None: it has no snapshots, or is gone."""
    try:
        return decode(NAMES, json.loads(_names_path(folder).read_bytes()))
    except (OSError, ValueError):
        return None


def _names_path(folder: str) -> Path:
    return Path(folder, "snapshots.json")


def open_arena(folder: str, local_rank: int) -> ArenaMemory:
    """The arena that a launcher of this host shows, to be pinned. The caller closes its descriptor.

    Raises:
        OSError: There is none, or it may not be opened.
    """
    fd = os.open(_path(folder, local_rank), os.O_RDWR | os.O_CLOEXEC)
    try:
        return ArenaMemory(fd)
    except OSError:
        os.close(fd)
        raise


def _path(folder: str, local_rank: int) -> Path:
    return Path(folder, f"r{local_rank}.snapshots")


def read(folder: str, local_rank: int) -> TakenByRank | None:
    """Of the arena that a launcher of this host shows in ``folder``; None: there is none."""
    try:
        fd = os.open(_path(folder, local_rank), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return of_rank(ArenaMemory(fd, writable=False))
    except (ArenaError, OSError):
        return None
    finally:
        os.close(fd)


def of_node(ranks: Sequence[TakenByRank]) -> TakenByNode | None:
    """Sum them up; None: they have taken none, and hold none in common.

    Of counts and costs those of the rank with the most: ranks work in step. ``at`` is that of the
    rank whose last one is the oldest.
    """
    common = frozenset.intersection(*(it.held for it in ranks)) if ranks else frozenset()
    newest = max(common, default=None)
    if newest is None and not any(it.taken or it.skipped for it in ranks):
        return None
    last_step = max(it.last_step for it in ranks)
    ats = [it.at for it in ranks if it.at is not None]
    return TakenByNode(
        taken=max(it.taken for it in ranks),
        skipped=max(it.skipped for it in ranks),
        seconds=round(max(it.seconds for it in ranks), 6),
        step_s=round(max(it.step_s for it in ranks), 6) or None,
        step=None if newest is None else newest.step,
        last_step=last_step if last_step >= 0 else None,
        every=max(it.every for it in ranks),
        at=min(ats) if len(ats) == len(ranks) else None,
    )
