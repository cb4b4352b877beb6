"""Decide how a life begins: from which snapshot, how often that one was tried, and why. Pure.

One rule for both kinds of restart: the leader uses it for a cycle (``job/pure/state_choice.py``),
the coordinator for a restart in place (``inplace/pure/coordinator.py``).
"""

from __future__ import annotations

from holdfast.arena.pure import trust
from holdfast.arena.pure.choice import choose, why_not_newer
from holdfast.arena.pure.snapshots import DamagedCopy, Restore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from holdfast.arena.pure.snapshots import Ancestor, Held, Refused, SnapshotId


def next_restore(
    held: Mapping[str, Iterable[Held]],
    places: Mapping[str, Collection[int]],
    lineage: Collection[Ancestor],
    last: Restore | None,
    last_step: int,
    refused: Mapping[str, Collection[Refused]],
    progress: int,
    damaged: Collection[DamagedCopy] = (),
    *,
    void_until: SnapshotId | None = None,
    had_ranks: Collection[str] | None = None,
    may_move: bool = False,
) -> tuple[Restore | None, str]:
    """The snapshot that all ranks begin from, and for people why it is no newer one.

    Args:
        held: By node.
        places: By node, the ranks that it will have.
        lineage: Of the last life, with that life.
        last: The snapshot that the last life began from.
        last_step: The last step that it has ended; -1: not known.
        refused: By node, snapshots that a rank could not use.
        progress: New steps after which a snapshot counts as one that leads on.
        damaged: Copies that were found to be damaged before, and may be there still.
        void_until: A rank has given up those up to this one; None: no rank has.
        had_ranks: Nodes of the last life; None: all. The word of others is of an earlier one.
        may_move: Nodes send each other missing parts.
    """
    everyone = [it for each in refused.values() for it in each]
    of_last = [it for k in (refused if had_ranks is None else had_ranks) for it in refused[k]]
    if last is not None and any(it.is_damaged and it.snapshot == last.snapshot for it in of_last):
        last = last.but(times=last.times - 1)  # a damaged copy says nothing about the snapshot
    is_spent = last is not None and trust.is_spent(last, last_step, progress)
    spent = last.snapshot if last is not None and is_spent else None
    bad = {*damaged, *damaged_of(refused)}
    chosen = choose(
        *(held, places, lineage, everyone, spent, bad), void_until=void_until, may_move=may_move
    )
    world_size = sum(len(ranks) for ranks in places.values())
    why = why_not_newer(chosen, world_size, progress)
    if (snapshot := chosen.snapshot) is None:
        return None, why
    lost = last_step - snapshot.step if last_step >= snapshot.step else -1
    times = trust.times(last, last_step, progress, snapshot)
    return Restore(snapshot, world_size, lost, times, sources=chosen.sources), why


def damaged_of(refused: Mapping[str, Collection[Refused]]) -> Iterator[DamagedCopy]:
    """The copies that ranks could not use: that of their own node, and the one it came from.

    Args:
        refused: By node.
    """
    for node, each in refused.items():
        for it in each:
            if it.is_damaged:
                nodes = {node, it.source} - {""}
                yield from (DamagedCopy(it.snapshot, it.rank, of) for of in nodes)
