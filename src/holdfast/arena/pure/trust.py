"""When a snapshot is not used again: it has led nowhere twice. Pure.

A state that is broken, with weights that are not finite for example, makes every life that begins
from it fail soon. So a snapshot from which two lives in a row began, the last of which made fewer
than ``progress`` new steps, is given up with all newer ones.

A rank whose state a snapshot cannot hold gives up all that it has taken, and no copy of it on any
node is used either: checkpoints will be newer.
"""

from __future__ import annotations

from holdfast.arena.pure.snapshots import Restore, SnapshotId

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.arena.pure.snapshots import Holdings

LIVES = 2
PROGRESS = 10
"""New steps that make up for it, unless the user says otherwise."""


def is_spent(last: Restore | None, last_step: int, progress: int) -> bool:
    """Whether the snapshot that the last life began from is given up.

    Args:
        last: That snapshot; None: it began from none.
        last_step: The last step that it has ended; -1: not known, and none is counted.
        progress: New steps that make up for it.
    """
    return last is not None and last.times >= LIVES and last_step - last.snapshot.step < progress


def times(last: Restore | None, last_step: int, progress: int, chosen: SnapshotId) -> int:
    """How many lives in a row have begun from this one, with the next."""
    if last is None or last.snapshot != chosen or last_step - chosen.step >= progress:
        return 1
    return last.times + 1


def void_until(known: Iterable[Holdings]) -> SnapshotId | None:
    """A rank has given up its snapshots up to this one; None: no rank has."""
    return max((it.void_until for it in known if it.void_until is not None), default=None)
