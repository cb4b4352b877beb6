"""Which slot of an arena the next snapshot is written to. Pure.

T-2: a committed slot is not written while it may be chosen. The ranks of a step wait for each
other in its collectives; so no rank is ahead of another by more than the slots below allow for.

    copied in the step     a rank writes s+1 when all have committed s       2 slots
    copied beside the next a rank writes s+2 when all have committed s       3 slots

Where steps are kept at a peer node, two more: the one that is kept, and the one that is on its way.
A pinned step (``layout.PINS``) is not written, however old it is.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from holdfast.arena.pure.snapshots import SnapshotId


KEPT_SLOTS = 2
"""For the step that is kept at a peer node, and the next one."""
PEER_SLOTS = 2
"""For each rank of the node whose kept steps this one holds."""


def n_slots(*, beside: bool, kept: int = 0) -> int:
    """How many a rank needs.

    Args:
        beside: Its copies run beside the next step.
        kept: Slots for steps that are kept at a peer node: :data:`KEPT_SLOTS`, or none.
    """
    return (3 if beside else 2) + kept


def next_slot(
    usable: Collection[int],
    held: Mapping[int, SnapshotId],
    writing: Collection[int] = (),
    pinned: Collection[int] = (),
) -> int | None:
    """The slot to write; None: there is none, and this snapshot is not taken.

    Args:
        usable: The slots that have memory for it.
        held: Committed snapshots, by slot.
        writing: Slots that are being written.
        pinned: Steps that are not overwritten.
    """
    newest = max(held, key=held.__getitem__, default=None)
    kept = {index for index, it in held.items() if it.step in pinned} | {newest}
    free = [index for index in usable if index not in kept and index not in writing]
    empty = [index for index in free if index not in held]
    return min(empty) if empty else min(free, key=held.__getitem__, default=None)
