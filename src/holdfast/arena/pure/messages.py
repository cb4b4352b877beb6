"""Messages of a rank to its launcher about snapshots, and the answers. Pure.

On the launcher's socket (``node/control_endpoint.py``), one request per connection::

    rank ──► launcher   OpenArena         ◄── Arena, with the descriptor of the memory; or Error;
                                              or SnapshotAwaited
                        SnapshotCost      ◄── Ok
                        SnapshotUnusable  ◄── Ok
"""

from __future__ import annotations

from holdfast.arena.pure.snapshots import SnapshotId
from holdfast.arena.pure.trust import PROGRESS
from holdfast.base.pure.codec import Count, Raw, Text
from holdfast.base.pure.value import Value


class OpenArena(Value):
    """The rank asks for memory, or for more of it.

    Attributes:
        rank: Global.
        slot_bytes: Memory that one snapshot needs now; 0: it only asks for the snapshot to restore.
        n_slots: How many the rank would use, without those for kept steps.
        iteration: Of a call that restarts in place; 0 otherwise.
    """

    rank: Count
    slot_bytes: Count
    n_slots: Count
    iteration: Count = 0


class FileToRestore(Value):
    """A rank's part of a snapshot on disk; its bytes are checked before they are used.

    Attributes:
        path: Of the file, a safetensors file.
        n_bytes: That it must have.
        total: Sum of its bytes, as :mod:`holdfast.arena.sums` adds them; None: not known.
        crc32: Likewise, as zlib has it; one of the two is known.
    """

    path: Raw
    n_bytes: Count
    total: int | None = None
    crc32: Count | None = None


class OtherWorld(Value):
    """A snapshot on disk of another number of ranks: the program may read it, on all ranks.

    Attributes:
        snapshot: Its name for the launchers.
        path: Of its folder, which has the files of all of its ranks.
    """

    snapshot: SnapshotId
    path: Raw


class Arena(Value):
    """The rank may use this memory.

    Attributes:
        n_slots: How many slots; fewer than asked for where memory is short.
        restore: All ranks begin from this snapshot; None: from none.
        slot: The one that holds it.
        cycle: Of the life that begins.
        lost_steps: Steps computed again, for people; -1: not known.
        file: It is not in memory, but there; None: it is in ``slot``.
        other_world: In place of ``restore``, if another number of ranks took it.
        times: So many lives in a row have begun from it, this one among them.
        progress: New steps after which it counts as one that leads on.
        kept: Slots of those for steps that are kept at a peer node.
    """

    n_slots: Count
    cycle: Count
    restore: SnapshotId | None = None
    slot: Count = 0
    lost_steps: int = -1
    file: FileToRestore | None = None
    other_world: OtherWorld | None = None
    times: Count = 1
    progress: Count = PROGRESS
    kept: Count = 0


class SnapshotAwaited(Value):
    """The snapshot of this rank is on its way from another node: ask again."""


class SnapshotCost(Value):
    """The cost of snapshots to this rank.

    Attributes:
        step: The last one that it has ended.
        every: It should take one of so many steps.
    """

    rank: Count
    step: Count
    every: Count


class SnapshotUnusable(Value):
    """The rank cannot begin from the snapshot that was chosen, and ends.

    ``why``: for people. ``is_damaged``: as in :class:`.Refused`.
    """

    rank: Count
    snapshot: SnapshotId
    why: Text
    is_damaged: bool = False
