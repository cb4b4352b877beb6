"""Kept steps: which one a job can go back to when a node is lost. Pure.

A kept step is in the memory of all ranks and in that of their nodes' peers, and stays there until
all have a newer one.
"""

from __future__ import annotations

from holdfast.arena.pure.choice import owners_of, without_damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from holdfast.arena.pure.snapshots import Ancestor, DamagedCopy, Held, Holdings, SnapshotId


def kept_step(
    holdings: Mapping[str, Holdings],
    last_nodes: Collection[str],
    known: SnapshotId | None,
    places: Mapping[str, Collection[int]],
    lineage: Collection[Ancestor],
    damaged: Collection[DamagedCopy] = (),
) -> SnapshotId | None:
    """The kept step of the cycle that begins; None: there is none.

    The leader that named one may have died, and no other launcher may know of it. But then all
    nodes have said that their peers have it.

    Args:
        holdings: By node.
        last_nodes: Those of them that had ranks in the last cycle.
        known: The kept step that the leader knows of.
        places: By node of the next cycle, its ranks.
        lineage: Of the next cycle.
        damaged: Copies that do not count.
    """
    candidates = {known, *(it.kept for it in holdings.values())}
    complete = {holdings[node].complete for node in last_nodes}
    if len(complete) == 1:
        candidates |= complete
    held = without_damaged({node: it.held for node, it in holdings.items()}, damaged)
    n_ranks = sum(len(ranks) for ranks in places.values())
    whole = (
        it
        for it in candidates
        if it is not None and len(owners_of(it, held, places, lineage)) == n_ranks
    )
    return max(whole, default=None)


def replicas_in_use(
    own: Sequence[Collection[SnapshotId]], replicas: Iterable[Held]
) -> Iterable[Held]:
    """Of the snapshots that a node has for its peer, those that its own ranks have as well.

    A kept step is in the memory of all ranks. One that is not there has been given up: a restart in
    place voids snapshots of the ranks of a node, and knows nothing of those of other nodes.

    Args:
        own: By rank of the node.
        replicas: Of other nodes' ranks.
    """
    common = set.intersection(*map(set, own)) if own else set()
    return (it for it in replicas if it.id in common)
