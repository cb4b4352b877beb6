"""The guard's part of snapshots in a restart in place: which are held, and which are void. Pure.

The guard keeps the memory of its ranks' snapshots when they die. A list of them goes up with
RanksReady, when no rank writes any more. BeginFrom comes when all ranks have their places: the
guard voids newer snapshots before any rank can take another, and tells each rank where the state of
its place is. Where an epoch begins from none, those up to the fallback stay: each rank voids its
own when it has made progress (``snapshot/_taking.py``). A guard that has no rank that is called
makes none, and voids at once. The launchers' choice for the cycle goes up with the list: it stays
in force until a snapshot of this cycle is held, or the coordinator gives it up
(docs/decisions/0053).
"""

from __future__ import annotations

from holdfast.arena.pure.snapshots import Held, Holdings, Refused, SnapshotId
from holdfast.arena.pure.trust import PROGRESS
from holdfast.base.pure.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.arena.pure.messages import SnapshotUnusable
    from holdfast.arena.pure.snapshots import Restore
    from holdfast.inplace.pure import messages as msg


# ---------------------------------------------------------------- events
class FoundSnapshot(Value):
    """A committed snapshot in a slot of the memory file at ``path``."""

    held: Held
    path: str
    slot: int


class SnapshotsRead(Value):
    """All snapshots that the guard keeps; the answer to :class:`ReadSnapshots`.

    ``last_step``: the last one that any of them has ended; -1: not known. ``void_until``: as in
    :class:`.Holdings`.
    """

    found: tuple[FoundSnapshot, ...]
    last_step: int = -1
    void_until: SnapshotId | None = None


# ---------------------------------------------------------------- effects
class HoldArena(Value):
    """Map the memory with descriptor ``fd`` of this rank's process, and keep it."""

    rank: int
    fd: int


class ReadSnapshots(Value):
    """Read the list of all snapshots that are kept, and feed :class:`SnapshotsRead`, now."""


class VoidSnapshots(Value):
    """Void those newer than this one; None: all."""

    but_until: SnapshotId | None


OfSnapshots = HoldArena | ReadSnapshots | VoidSnapshots


class GuardSnapshots:
    """Those of the ranks of one node.

    Attributes:
        are_held: A rank has had memory for snapshots.
    """

    def __init__(self) -> None:
        self.are_held = False
        self._began: Restore | None = None
        self._progress = PROGRESS
        self._found: tuple[FoundSnapshot, ...] = ()
        """When all ranks of this node were ready."""
        self._refused: list[Refused] = []

    def hold(self, rank: int, opened: msg.OpenedArena) -> HoldArena:
        """A rank has memory for snapshots."""
        self.are_held = True
        self._began, self._progress = opened.began or self._began, opened.progress
        return HoldArena(rank, opened.fd)

    def refuse(self, found: SnapshotUnusable) -> None:
        """A rank cannot begin from the one that was chosen."""
        self._refused.append(Refused(found.snapshot, found.rank, found.why, found.is_damaged))

    def add_to(self, ready: msg.RanksReady, read: SnapshotsRead) -> msg.RanksReady:
        """The message that all ranks are ready, with the list of snapshots."""
        self._found = read.found
        holdings = None
        if self._refused or self.are_held:
            held = tuple(it.held for it in read.found)
            holdings = Holdings(
                held, read.last_step, tuple(self._refused), void_until=read.void_until
            )
        return ready.but(holdings=holdings, began=self._began, progress=self._progress)

    def begin_from(
        self, begins: msg.BeginFrom, places: Collection[msg.Place | None]
    ) -> list[VoidSnapshots]:
        """Void newer snapshots: before a rank gets the message, and takes new ones."""
        self._refused.clear()
        if not self.are_held:
            return []
        if begins.restore is not None:
            return [VoidSnapshots(begins.restore.snapshot)]
        is_called = not all(place is not None and place.place < 0 for place in places)
        return [VoidSnapshots(begins.fallback if is_called else None)]

    def with_path(self, begins: msg.BeginFrom, place: msg.Place | None) -> msg.BeginFrom:
        """The message for the rank that has this place, with the memory of that."""
        if place is None or begins.restore is None:
            return begins
        for it in self._found:
            held = it.held
            is_its = (held.rank, held.world_size) == (place.place, place.world)
            if is_its and held.id == begins.restore.snapshot:
                return begins.but(path=it.path, slot=it.slot)
        return begins
