"""The snapshots of one node as they are now: from its events, and from its ranks' memory.

Other processes of this host read the memory through the links that the launcher makes
(``arena/taken.py``); of a node elsewhere, the last event is known.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.arena import taken
from holdfast.arena.taken import TakenByNode
from holdfast.events.pure import schema
from holdfast.events.pure.schema import Event


class NodeSnapshots:
    """Follows one launcher.

    Attributes:
        is_used: A rank has asked for memory.
        off: Why ranks take none in this cycle; empty: they do, or have not asked.
        restores: How often all ranks have begun from a snapshot.
        steps_lost: Steps computed again in those cycles, as far as they are known.
    """

    def __init__(self) -> None:
        self.is_used = False
        self.off = ""
        self.restores = 0
        self.steps_lost = 0
        self._cycle = 0
        self._last: TakenByNode | None = None
        self._most: dict[int, tuple[int, float]] = {}

    def take(self, event: Event) -> None:
        """Take the next event."""
        match event.body:
            case schema.CycleJoined():
                self._cycle, self.off = event.cycle, ""
            case schema.SnapshotsOn():
                self.is_used, self.off = True, ""
            case schema.SnapshotsOff(why=why):
                self.is_used, self.off = True, why
            case schema.SnapshotsTaken() as seen:
                self.is_used, self._last = True, TakenByNode(**vars(seen))
                self._note(event.cycle, self._last)
            case schema.SnapshotRestored(lost_steps=lost):
                self.is_used = True
                self.restores += 1
                self.steps_lost += lost or 0

    def now(self, folder: str | None, local_ranks: Iterable[int]) -> TakenByNode | None:
        """The newest that is known.

        Args:
            folder: Runtime folder of the launcher; None: it runs elsewhere.
            local_ranks: Of the latest cycle.
        """
        if folder is not None and self.is_used:
            found = [taken.read(folder, local_rank) for local_rank in local_ranks]
            known = [it for it in found if it is not None]
            if known and len(known) == len(found):
                seen = taken.of_node(known)
                if seen is not None:
                    self._note(self._cycle, seen)
                return seen
        return self._last

    def _note(self, cycle: int, seen: TakenByNode) -> None:
        n, seconds = self._most.get(cycle, (0, 0.0))
        self._most[cycle] = max(n, seen.taken), max(seconds, seen.seconds)

    @property
    def taken(self) -> int:
        """In all cycles, by one rank; never less than before."""
        return sum(n for n, _ in self._most.values())

    @property
    def seconds(self) -> float:
        """That they have cost it."""
        return sum(s for _, s in self._most.values())
