"""Decide how a life begins: from which snapshot, how often that one was tried, and why. Pure.

One rule for both kinds of restart: the leader uses it for a cycle (``job/pure/state_choice.py``),
the coordinator for a restart in place (``inplace/pure/coordinator.py``).
"""

from __future__ import annotations

from holdfast.arena.pure import trust
from holdfast.arena.pure.choice import choose, why_not_newer
from holdfast.arena.pure.snapshots import Restore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from holdfast.arena.pure.snapshots import Ancestor, Held, Refused


def next_restore(
    held: Mapping[str, Iterable[Held]],
    places: Mapping[str, Collection[int]],
    lineage: Collection[Ancestor],
    last: Restore | None,
    last_step: int,
    refused: Collection[Refused],
    progress: int,
    *,
    may_move: bool = False,
) -> tuple[Restore | None, str]:
    """The snapshot that all ranks begin from, and for people why it is no newer one.

    Args:
        held: By node.
        places: By node, the ranks that it will have.
        lineage: Of the last life, with that life.
        last: The snapshot that the last life began from.
        last_step: The last step that it has ended; -1: not known.
        refused: Snapshots that a rank could not use.
        progress: New steps after which a snapshot counts as one that leads on.
        may_move: Nodes send each other missing parts.
    """
    is_spent = last is not None and trust.is_spent(last, last_step, progress)
    spent = last.snapshot if last is not None and is_spent else None
    chosen = choose(held, places, lineage, refused, spent, may_move=may_move)
    world_size = sum(len(ranks) for ranks in places.values())
    why = why_not_newer(chosen, world_size, progress)
    if (snapshot := chosen.snapshot) is None:
        return None, why
    lost = last_step - snapshot.step if last_step >= snapshot.step else -1
    times = trust.times(last, last_step, progress, snapshot)
    return Restore(snapshot, world_size, lost, times, sources=chosen.sources), why
