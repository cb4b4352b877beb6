"""Names of snapshots: nodes tell the leader which they hold, and it says which to restore.

A *life* is the time from one start of the training function to the next: a cycle, or within it a
restart in place (iteration). After a restore, steps above it exist twice, with different bytes: so
a step alone names nothing.
"""

from __future__ import annotations

from holdfast.base.pure.codec import Count, Limit, Name, OrMinusOne, Raw, Text
from holdfast.base.pure.value import Value

OF_A_FILE = -1
"""In place of the cycle, in the name of a snapshot that another job has left on disk: it is older
than any of this job."""


class _Ordered(Value):
    """As tuples of their fields are. Imported by the node guard: without ``dataclasses``."""

    def __lt__(self, other: _Ordered) -> bool:
        return (*vars(self).values(),) < (*vars(other).values(),)

    def __le__(self, other: _Ordered) -> bool:
        return (*vars(self).values(),) <= (*vars(other).values(),)

    def __gt__(self, other: _Ordered) -> bool:
        return other < self

    def __ge__(self, other: _Ordered) -> bool:
        return other <= self


class SnapshotId(_Ordered):
    """The state of all ranks after ``step`` steps, as a life has computed it.

    ``cycle``: or :data:`OF_A_FILE`.
    """

    AS_LIST = True

    cycle: OrMinusOne
    iteration: Count
    step: Count


class Held(_Ordered):
    """A committed snapshot of one rank, in the memory of the node that says so.

    ``term``: of the leader that had formed the cycle; see :class:`Ancestor`.
    """

    AS_LIST = True

    rank: Count
    world_size: Count
    cycle: Count
    iteration: Count
    step: Count
    term: Count = 0

    @property
    def id(self) -> SnapshotId:
        """Without the rank."""
        return SnapshotId(self.cycle, self.iteration, self.step)


class Refused(Value):
    """A rank could not use its part of a snapshot.

    Attributes:
        why: For people.
        is_damaged: The bytes of this copy of it are not those that were taken, or are not there:
            another copy may be good. Otherwise no rank uses that snapshot.
        source: The node that had sent the copy; empty: none had.
    """

    SPARSE = True

    snapshot: SnapshotId
    rank: Count
    why: Text
    is_damaged: bool = False
    source: Raw = ""


class DamagedCopy(_Ordered):
    """A copy of a rank's part of a snapshot that no cycle begins from: ``node`` voids it."""

    snapshot: SnapshotId
    rank: Count
    node: Name


class OnDisk(Value):
    """Files of one snapshot in the folder of the node that says so (``--ft-snapshot-dir``).

    Attributes:
        name: Of the snapshot: equal in the folders of all nodes of the job that has written it.
        step: Number of steps done.
        world_size: Of the ranks that took it.
        ranks: Those whose files are there, whole: a set, as :mod:`holdfast.base.pure.rank_sets`
            has it.
    """

    name: Name
    step: Count
    world_size: Count
    ranks: Raw


class Holdings(Value):
    """Snapshots of a node, when its ranks are gone.

    Attributes:
        held: Committed snapshots.
        last_step: The last step that any of its ranks has ended in the last life; -1: not known.
        refused: Snapshots that a rank of it could not use, and why.
        every: As agreed; 0: not agreed, as far as this node knows.
        files: Snapshots of an earlier job, in the folder of this node.
        kept: The last kept step that this node knows of; None: it knows of none.
        complete: The last step of which its peer has its ranks' snapshots; None: of none.
        void_until: A rank has given up its snapshots up to this one: no copy of them, on any node,
            is used.
    """

    SPARSE = True

    held: tuple[Held, ...] = ()
    last_step: int = -1
    refused: tuple[Refused, ...] = ()
    every: Count = 0
    files: tuple[OnDisk, ...] = ()
    kept: SnapshotId | None = None
    complete: SnapshotId | None = None
    void_until: SnapshotId | None = None


class CopySource(Value):
    """The node that has a rank's part of a snapshot, where the rank's own node lacks it."""

    AS_LIST = True

    rank: Count
    node: Name


class Restore(Value):
    """All ranks of a cycle begin from this snapshot.

    Attributes:
        snapshot: Its name.
        world_size: Of the ranks that took it.
        lost_steps: Steps that are computed again; -1: not known.
        times: So many lives in a row have begun from it, this one among them.
        file: The name that it has on disk; empty: it is in memory.
        sources: Of ranks whose node lacks it: that node sends it there.
    """

    SPARSE = True

    snapshot: SnapshotId
    world_size: Count
    lost_steps: int = -1
    times: Count = 1
    file: Raw = ""
    sources: tuple[CopySource, ...] = ()


class Ancestor(_Ordered):
    """A cycle that the present life goes back to, up to this step of this restart in place.

    The leader of a later term may form a cycle of the same number, where the one before it died
    with its decision: so its term is part of the name of a life.
    """

    AS_LIST = True

    term: Count
    cycle: Count
    iteration: Count
    step: Count


class Beginning(Value):
    """The snapshot that all ranks of a cycle begin from, in a job that uses snapshots.

    Attributes:
        restore: None: from none; from the user's checkpoint, if there is one.
        lineage: Lives before this one, the oldest first; empty: it begins anew. Snapshots of none
            of them are void.
        every: Snapshots are taken of steps that this divides; 0: not agreed yet.
        why: Why no newer snapshot could be chosen, for people; empty: it is the newest.
        given_up: Names of snapshots on disk that are not used again, by no job.
        kept: The last kept step, which no rank and no peer overwrites; None: there is none.
        kept_age_s: Since the leader had named it, for people; 0: not known.
        damaged: Copies that nodes of earlier cycles have sent, and that were not usable.
    """

    SPARSE = True

    restore: Restore | None = None
    lineage: tuple[Ancestor, ...] = ()
    every: Count = 0
    why: Text = ""
    given_up: tuple[Name, ...] = ()
    kept: SnapshotId | None = None
    kept_age_s: Limit = 0.0
    damaged: tuple[DamagedCopy, ...] = ()
