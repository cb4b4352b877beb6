"""Which snapshots belong to the history that the job goes on with. Pure.

    life (0, 0)   1 2 3 4 5 6            all ranks have 5, some have 6
    life (1, 0)             6 7 8        began from 5 of the first: so its 6 has other bytes
    lineage of the next life, if that begins from 7:    ((0, 0) up to 5, (1, 0) up to 7)

Everything else is void: the first 6, and the 8. So a snapshot that was given up, because a rank
could not use it or because it led nowhere, never comes back: the life after it begins from an older
one, or anew.

Restarts in place are lives within a cycle. At each, the guards of the nodes void all snapshots that
it does not go back to (``inplace/pure/guard_snapshots.py``). One that begins from none leaves those
before it until it has made progress, and takes none meanwhile (decision 59). So all that are left
of a cycle are of one history, up to the one that the next cycle begins from.
"""

from __future__ import annotations

from holdfast.arena.pure.snapshots import Ancestor, Held, SnapshotId

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

ANY = 2**63 - 1


def last_life(term: int, cycle: int) -> Ancestor:
    """A cycle that has ended, with all of its restarts in place and their steps."""
    return Ancestor(term, cycle, ANY, ANY)


def belongs(held: Held, lineage: Iterable[Ancestor]) -> bool:
    """Whether a snapshot is of one of these cycles, from before it was left."""
    return any(it.term == held.term and _is_of(held.id, it) for it in lineage)


def names(lineage: Iterable[Ancestor], snapshot: SnapshotId) -> bool:
    """Whether a snapshot of one of these cycles has this name."""
    return any(_is_of(snapshot, it) for it in lineage)


def _is_of(snapshot: SnapshotId, life: Ancestor) -> bool:
    is_before_end = (snapshot.iteration, snapshot.step) <= (life.iteration, life.step)
    return snapshot.cycle == life.cycle and is_before_end


def cut(lineage: Iterable[Ancestor], at: SnapshotId | None) -> tuple[Ancestor, ...]:
    """The lineage of a life that begins from a snapshot of it; None: it begins anew."""
    if at is None:
        return ()
    kept: list[Ancestor] = []
    for life in lineage:
        if life.cycle == at.cycle:
            return (*kept, Ancestor(life.term, life.cycle, at.iteration, at.step))
        kept.append(life)
    raise ValueError(f"{at} is of no life of {lineage}")
