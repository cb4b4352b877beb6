"""Decide which snapshot all ranks of the next cycle begin from: one for all, or none. Pure.

The newest whose parts are all committed, each on the node that will have its rank; of the lineage
(:mod:`.lineage`), and not refused. No rank is asked, and none waits. Invariant T-1: all ranks of a
cycle begin from one snapshot, or all from none.
"""

from __future__ import annotations

from holdfast.arena.pure.lineage import belongs
from holdfast.arena.pure.snapshots import Held, SnapshotId
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
        refused: Why it cannot be used; None: it was not refused.
        is_spent: It has led nowhere: it, and all newer than ``newest``.
    """

    snapshot: SnapshotId | None = None
    newest: SnapshotId | None = None
    without: tuple[int, ...] = ()
    world_size: int = 0
    refused: Refused | None = None
    is_spent: bool = False


def choose(
    held: Mapping[str, Iterable[Held]],
    places: Mapping[str, Collection[int]],
    lineage: Collection[Ancestor],
    refused: Collection[Refused] = (),
    spent: SnapshotId | None = None,
) -> Chosen:
    """Choose it.

    Args:
        held: By node.
        places: By node of the next cycle, its global ranks.
        lineage: With the last life.
        refused: Snapshots that a rank could not use.
        spent: From this one on none is used.
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
                if it.rank in ranks and it.world_size == world_size:
                    owners.add(it.rank)
    bad = {it.snapshot: it for it in refused}
    fit = (
        it
        for it, owners in ranks_with.items()
        if len(owners) == world_size and it not in bad and (spent is None or it < spent)
    )
    chosen, newest = max(fit, default=None), max(ranks_with, default=None)
    if newest is None or chosen == newest:
        return Chosen(chosen, newest)
    without = tuple(sorted({*range(world_size)} - ranks_with[newest]))
    is_spent = spent is not None and newest >= spent
    return Chosen(chosen, newest, without, sizes[newest], bad.get(newest), is_spent)


def why_not_newer(chosen: Chosen, world_size: int, progress: int) -> str:
    """For people; empty: nothing was lost but steps on their way when the ranks ended."""
    newest = chosen.newest
    if newest is None or newest == chosen.snapshot:
        return ""
    if chosen.refused is not None:
        return f"rank {chosen.refused.rank} could not use step {newest.step}: {chosen.refused.why}"
    if chosen.is_spent:
        return f"two restarts from it made fewer than {progress} new steps each"
    if chosen.snapshot is not None:
        return ""
    if chosen.world_size != world_size:
        return f"step {newest.step} is of {chosen.world_size} ranks, and there are {world_size}"
    return f"step {newest.step} is not there for {named(chosen.without)}"
