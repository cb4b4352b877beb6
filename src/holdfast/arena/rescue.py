"""Write a snapshot of ranks that go on to a folder: pinned in their memory until it is there.

Of the launchers of this host, without asking them: their memory is opened as live views open it.
The ranks of other hosts are written there; so that all have one step, it is named before they come
to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.arena import snapshot_files, taken
from holdfast.arena.arena import ArenaMemory, HeldSlot, Pending
from holdfast.arena.pure import layout
from holdfast.arena.pure.file_names import Mark, NamedSnapshot, NodeSnapshotNames, is_list
from holdfast.arena.pure.snapshots import SnapshotId
from holdfast.arena.snapshot_files import SlotOfRank
from holdfast.base import clock, wait_for
from holdfast.base.pure.rank_sets import named

if TYPE_CHECKING:
    from typing_extensions import Self

_TRIES = 20
_LOOK_S = 0.05


class RescueError(Exception):
    """No snapshot is written; the text says why, and names a remedy."""


class RescuedSnapshot(NamedTuple):
    """A snapshot that was written.

    Attributes:
        path: Its folder.
        step: Number of steps done.
        ranks: That were written, for people.
        world_size: Of the job.
        n_bytes: Of all files.
    """

    path: str
    step: int
    ranks: str
    world_size: int
    n_bytes: int


def release_rescued(memory: ArenaMemory) -> None:
    """Release the snapshot that a process has pinned which was killed; for the launcher."""
    if memory.words[layout.RESCUE]:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(memory.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            memory.pin(layout.RESCUE, 0)
            fcntl.flock(memory.fd, fcntl.LOCK_UN)


class Rescue:
    """Snapshots of ranks of this host, opened. Use as a context manager.

    Args:
        folders: Runtime folders of the launchers of one job.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        """Open their memory.

        Raises:
            RescueError: There is none, or it may not be opened; or they are not in one cycle.
        """
        self._nodes: list[tuple[NodeSnapshotNames, list[ArenaMemory]]] = []
        try:
            for folder in folders:
                self._open(folder)
        except BaseException:
            self.close()
            raise

    def _open(self, folder: str) -> None:
        names = taken.read_node(folder)
        if names is None:
            raise RescueError("its ranks take no snapshots (holdfast.snapshot.Snapshots)")
        if self._nodes and names.life != self._nodes[0][0].life:
            raise RescueError("its launchers here are not in one cycle now; try again")
        arenas: list[ArenaMemory] = []
        self._nodes.append((names, arenas))
        for local_rank in range(names.n_ranks):
            rank = names.first_rank + local_rank
            try:
                arenas.append(taken.open_arena(folder, local_rank))
                fcntl.flock(arenas[-1].fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RescueError("another holdfast rescue of this job is running") from error
            except FileNotFoundError as error:
                raise RescueError(f"rank {rank} has no memory for snapshots yet") from error
            except OSError as error:
                raise RescueError(
                    f"the memory of rank {rank} cannot be opened: {error.strerror or error}"
                ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release them: the ranks may write all slots again."""
        for _, arenas in self._nodes:
            for memory in arenas:
                with contextlib.suppress(OSError):
                    fcntl.flock(memory.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    memory.pin(layout.RESCUE, 0)
                    fcntl.flock(memory.fd, fcntl.LOCK_UN)  # its mapping would hold it
                os.close(memory.fd)
        self._nodes.clear()

    # ------------------------------------------------------------ which
    @property
    def _arenas(self) -> list[ArenaMemory]:
        return [memory for _, arenas in self._nodes for memory in arenas]

    @property
    def ranks(self) -> list[int]:
        """Of this host."""
        return [
            names.first_rank + index
            for names, arenas in self._nodes
            for index, _ in enumerate(arenas)
        ]

    @property
    def world_size(self) -> int:
        """Of the job."""
        return self._nodes[0][0].world_size

    @property
    def elsewhere(self) -> list[int]:
        """Ranks of other hosts."""
        return sorted({*range(self.world_size)} - {*self.ranks})

    @property
    def _lives(self) -> dict[str, str]:
        return {cycle: life for names, _ in self._nodes for cycle, life in names.lives.items()}

    @property
    def last_step(self) -> int:
        """The last that a rank here has ended; -1: none."""
        return max(memory.words[layout.LAST_STEP] for memory in self._arenas)

    def newest(self) -> list[SlotOfRank]:
        """Pin the newest snapshot that all ranks of this host have.

        Raises:
            RescueError: They have none.
        """
        for _ in range(_TRIES):
            held = [*map(self._ids, self._arenas)]
            if not all(held):
                break
            # None: a rank has taken others since the look at the one before.
            if common := set.intersection(*held):
                found = self._pinned(max(common).step)
                if all(isinstance(it, HeldSlot) for it in found):
                    return self._sources(found)
            wait_for.any_readable((), _LOOK_S)
        raise RescueError(
            f"{named(self.ranks)} have no snapshot in common now (last step: {self.last_step}); "
            "try again when they have taken one"
        )

    def at(self, step: int, timeout_s: float) -> list[SlotOfRank]:
        """Pin a step, and wait until all ranks of this host have taken its snapshot.

        Raises:
            RescueError: A rank has not taken it.
        """
        every = max(memory.words[layout.EVERY] for memory in self._arenas)
        if every and step % every:
            raise RescueError(
                f"snapshots are taken of every {every}. step, and {step} is none of those: choose "
                f"{step - step % every + every}"
            )
        until = clock.monotonic() + timeout_s
        found = self._pinned(step)
        while any(isinstance(it, Pending) for it in found):
            if clock.monotonic() >= until:
                raise RescueError(
                    f"step {step} has not come within {timeout_s:g} s (last step: {self.last_step})"
                )
            wait_for.any_readable((), _LOOK_S)
            found = [memory.pinned(step) for memory in self._arenas]
        lacking = [rank for rank, it in zip(self.ranks, found, strict=True) if it is None]
        if lacking:
            raise RescueError(
                f"{named(lacking)} have no snapshot of step {step} any more, or did not take it "
                f"(last step: {self.last_step}); choose a later one"
            )
        return self._sources(found)

    def _ids(self, memory: ArenaMemory) -> set[SnapshotId]:
        lives = self._lives
        found = (it.held for it in memory.all_held() if str(it.held.cycle) in lives)
        return {it.id for it in found if it.world_size == self.world_size}

    def _pinned(self, step: int) -> list[HeldSlot | Pending | None]:
        for memory in self._arenas:
            memory.pin(layout.RESCUE, step)
        return [memory.pinned(step) for memory in self._arenas]

    def _sources(self, found: Sequence[HeldSlot | Pending | None]) -> list[SlotOfRank]:
        pairs = zip(self._arenas, found, strict=True)
        sources = [SlotOfRank(memory, it) for memory, it in pairs if isinstance(it, HeldSlot)]
        theirs = sorted(it.slot.held.rank for it in sources)
        if theirs != sorted(self.ranks):  # after a restart in place
            raise RescueError(
                f"a restart in place has given {named(self.ranks)} other numbers "
                f"({', '.join(map(str, theirs))}): their snapshots cannot be rescued"
            )
        return sources

    # ------------------------------------------------------------ written
    def write(
        self, sources: Sequence[SlotOfRank], folder: str, goes_on: Callable[[], bool]
    ) -> RescuedSnapshot:
        """Write a pinned snapshot; no job begins from it before its mark is removed.

        Raises:
            RescueError: It is of a cycle before this node had ranks.
            OSError: The system does not take it, or a restart has made it void.
        """
        held = sources[0].slot.held
        life = self._lives.get(str(held.cycle))
        if life is None:
            raise RescueError(f"the snapshot of step {held.step} is older than this launcher")
        name = NamedSnapshot(held.step, held.world_size, life)
        path = Path(folder, str(name))
        path.mkdir(0o700, exist_ok=True)
        snapshot_files.mark(folder, str(name), Mark.RESCUED)
        n_bytes = 0
        try:
            for _, arenas in self._nodes:
                own = [it for it in sources if any(it.arena is memory for memory in arenas)]
                n_bytes += snapshot_files.write(folder, name, own, goes_on)
        except BaseException:
            if not any(is_list(it.name) for it in path.iterdir()):
                snapshot_files.remove(folder, str(name))
            raise
        return RescuedSnapshot(str(path), held.step, named(self.ranks), held.world_size, n_bytes)
