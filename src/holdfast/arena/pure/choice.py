"""Decide which snapshot all ranks of the next cycle begin from: one for all, or none. Pure.

The newest whose parts are all committed, each on the node that will have its rank, or on any where
nodes send each other snapshots; of the lineage (:mod:`.lineage`), and not refused. A damaged copy
does not count, and others of the same part do. No rank is asked, and none waits. Invariant T-1: all
ranks of a cycle begin from one snapshot, or all from none.
"""

from __future__ import annotations

from holdfast.arena.pure.lineage import belongs
from holdfast.arena.pure.snapshots import CopySource, DamagedCopy, Held, SnapshotId
from holdfast.base.pure.rank_sets import named
from holdfast.base.pure.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from holdfast.arena.pure.snapshots import Ancestor, Refused


class Chosen(Value):
    """The snapshot, and why it is no newer one; those are facts, not texts.

    Attributes:
        snapshot: None: all ranks begin without one.
        newest: Of any rank, in the lineage; None: there is none.
        without: Ranks that lack the newest where they will be.
        world_size: Of the ranks that took it.
        refused: Why it, or one copy of it, cannot be used; None: it was not refused.
        is_spent: It has led nowhere: it, and all newer than ``newest``.
        sources: Nodes that have the parts of ranks whose own nodes lack them.
    """

    snapshot: SnapshotId | None = None
    newest: SnapshotId | None = None
    without: tuple[int, ...] = ()
    world_size: int = 0
    refused: Refused | None = None
    is_spent: bool = False
    sources: tuple[CopySource, ...] = ()


def choose(
    held: Mapping[str, Iterable[Held]],
    places: Mapping[str, Collection[int]],
    lineage: Collection[Ancestor],
    refused: Collection[Refused] = (),
    spent: SnapshotId | None = None,
    damaged: Collection[DamagedCopy] = (),
    *,
    void_until: SnapshotId | None = None,
    may_move: bool = False,
) -> Chosen:
    """Choose it.

    Args:
        held: By node.
        places: By node of the next cycle, its global ranks.
        lineage: With the last life.
        refused: Snapshots that a rank could not use.
        spent: From this one on none is used.
        damaged: Copies that are not used.
        void_until: Up to this one none is used.
        may_move: A part may be on any of the nodes.
    """
    world_size = sum(len(ranks) for ranks in places.values())
    ranks_with: dict[SnapshotId, set[int]] = {}
    sizes: dict[SnapshotId, int] = {}
    for node, snapshots in held.items():
        ranks = places.get(node, ())
        for it in snapshots:
            if belongs(it, lineage):
                sizes[it.id] = it.world_size
                owners = ranks_with.setdefault(it.id, set())
                is_there = it.rank in ranks or (may_move and node in places)
                if is_there and it.world_size == world_size and not _is_damaged(it, node, damaged):
                    owners.add(it.rank)
    bad = {it.snapshot for it in refused if not it.is_damaged}
    fit = (
        it
        for it, owners in ranks_with.items()
        if len(owners) == world_size
        and it not in bad
        and (spent is None or it < spent)
        and (void_until is None or it > void_until)
    )
    chosen, newest = max(fit, default=None), max(ranks_with, default=None)
    sources: tuple[CopySource, ...] = ()
    if chosen is not None and may_move:
        sources = _sources(chosen, without_damaged(held, damaged), places, lineage)
    why = next((it for it in refused if it.snapshot == newest), None)
    found = Chosen(chosen, newest, refused=why, sources=sources)
    if newest is None or chosen == newest:
        return found
    return found.but(
        without=tuple(sorted({*range(world_size)} - ranks_with[newest])),
        world_size=sizes[newest],
        is_spent=spent is not None and newest >= spent,
    )


def without_damaged(
    held: Mapping[str, Iterable[Held]], damaged: Collection[DamagedCopy]
) -> dict[str, list[Held]]:
    """The copies that may be used, by node."""
    return {
        node: [it for it in snapshots if not _is_damaged(it, node, damaged)]
        for node, snapshots in held.items()
    }


def _is_damaged(held: Held, node: str, damaged: Collection[DamagedCopy]) -> bool:
    return bool(damaged) and DamagedCopy(held.id, held.rank, node) in damaged


def _sources(
    chosen: SnapshotId,
    held: Mapping[str, Iterable[Held]],
    places: Mapping[str, Collection[int]],
    lineage: Collection[Ancestor],
) -> tuple[CopySource, ...]:
    """Of the ranks whose nodes lack their part, or have a damaged one."""
    owners = owners_of(chosen, held, places, lineage)
    return tuple(
        CopySource(rank, min(owners[rank]))
        for node, ranks in places.items()
        for rank in ranks
        if node not in owners[rank]
    )


def owners_of(
    snapshot: SnapshotId,
    held: Mapping[str, Iterable[Held]],
    places: Mapping[str, Collection[int]],
    lineage: Collection[Ancestor],
) -> dict[int, set[str]]:
    """By rank, the nodes of the next cycle that have its part of a snapshot."""
    world_size = sum(len(ranks) for ranks in places.values())
    owners: dict[int, set[str]] = {}
    for node in held.keys() & places.keys():
        for it in held[node]:
            if it.id == snapshot and it.world_size == world_size and belongs(it, lineage):
                owners.setdefault(it.rank, set()).add(node)
    return owners


def why_not_newer(chosen: Chosen, world_size: int, progress: int) -> str:
    """For people; empty: nothing was lost but steps on their way when the ranks ended."""
    newest, refused = chosen.newest, chosen.refused
    if newest is None:
        return ""
    if refused is not None:
        if newest != chosen.snapshot:
            return f"rank {refused.rank} could not use step {newest.step}: {refused.why}"
        return f"rank {refused.rank} gets another copy, as its own is damaged: {refused.why}"
    if newest == chosen.snapshot:
        return ""
    if chosen.is_spent:
        return f"two restarts from it made fewer than {progress} new steps each"
    if chosen.snapshot is not None:
        return ""
    if chosen.world_size != world_size:
        return f"step {newest.step} is of {chosen.world_size} ranks, and there are {world_size}"
    return f"step {newest.step} is not there for {named(chosen.without)}"
