"""Messages between the machines of one launcher: its member, its node, the succession.

A record is the effect of one machine and the event of another, unchanged. The messages between
launchers are in :mod:`.membership`.
"""

from __future__ import annotations

import enum

from holdfast.arena.pure.snapshots import Holdings, SnapshotId
from holdfast.base.pure.common_events import (
    Begin,
    ControlRequested,
    Note,
    SignalArrived,
    TimePassed,
)
from holdfast.base.pure.value import Value
from holdfast.job.pure import membership as msg
from holdfast.job.pure.membership import CyclePlace, JobOutcome, LeaveWhy


class How(enum.Enum):
    """How much time ranks are given when they are stopped."""

    POLITE = "SIGTERM, then SIGKILL when their grace is over"
    AT_ONCE = "SIGKILL"


# ---------------------------------------------------------------- events
class Unhealthy(Value):
    """A health check failed: this node must not have ranks again.

    After a cycle it is reported before :class:`RanksStopped`.
    """

    text: str


class RanksSucceeded(Value):
    """All ranks of this cycle exited with 0, and nothing they started is alive."""

    cycle: int


class RanksStopped(Value):
    """No rank of this cycle is alive, nor anything they started; not all of them exited with 0."""

    cycle: int


class RanksStuck(Value):
    """A rank of this cycle cannot be killed; this node must never have ranks again."""

    cycle: int
    text: str


class RanksFailed(Value):
    """A rank of this cycle failed: the first, or the first that asks for no restart.

    The node finds it, the launcher's process adds ``failure`` from the rank's files and output, and
    the member reports it. ``every``: no rank runs any more, or those that do cannot go on without
    this one. ``may_restart`` False: the rank asks for no restart. That counts also while the cycle
    is being stopped: the report of the first failure may arrive last.
    """

    cycle: int
    local_rank: int
    every: bool = False
    may_restart: bool = True
    failure: msg.FailureReport = msg.FailureReport()


class CauseFound(Value):
    """All ranks of this cycle have ended here: the first of their failures.

    Reported before :class:`RanksStopped`.
    """

    cycle: int
    failure: msg.FailureReport


class HoldingsRead(Value):
    """The ranks of this cycle are gone, and the node holds these snapshots of them.

    Reported before :class:`RanksStopped`, where a rank has used snapshots.
    """

    cycle: int
    holdings: Holdings


class SnapshotsMeasured(Value):
    """What snapshots cost the ranks of this node: as in :class:`.SnapshotCosts`."""

    cycle: int
    step: int
    every: int


class StepCopied(Value):
    """The peer of this node has a snapshot of all of its ranks: as in :class:`.Complete`."""

    cycle: int
    snapshot: SnapshotId
    n_bytes: int


class StepMissed(Value):
    """The ranks of this node cannot keep a step: as in :class:`.Missed`."""

    cycle: int
    keep: int
    step: int = -1
    why: str = ""
    for_good: bool = False
    gave_up: bool = False


class NodeReported(Value):
    """A rank of this node has reported to its monitor in this cycle; the first one counts."""

    cycle: int


class LeaderLost(Value):
    """The way to the leader is gone for good."""

    text: str


class LeaderReplaced(Value):
    """The leader is gone, and another will be found: this node's ranks end, and it joins that.

    ``how``: they have their time to end if the leader went by itself: perhaps the whole job was
    signalled, and this node's signal is on its way.
    """

    text: str
    how: How = How.AT_ONCE


class LeaderFound(Value):
    """Another one leads, and has this node's join; its decisions may be ``waited_s`` old."""

    waited_s: float = 0.0


Event = (
    Begin
    | msg.Decision
    | RanksFailed
    | CauseFound
    | RanksSucceeded
    | RanksStopped
    | RanksStuck
    | ControlRequested
    | SignalArrived
    | Unhealthy
    | NodeReported
    | HoldingsRead
    | SnapshotsMeasured
    | StepCopied
    | StepMissed
    | LeaderLost
    | LeaderReplaced
    | LeaderFound
    | msg.Suspect
    | msg.Digests
    | TimePassed
)
"""``Begin``: the log is being followed, there is a leader, and this node is ready for ranks. A
decision is the next one of the log; ``Suspect`` and ``Digests`` are of this node.
``SignalArrived``: the node has sent the signal to its ranks, if it has any.
"""


# ---------------------------------------------------------------- effects
class StartRanks(Value):
    """Start this node's ranks of a cycle; ``round.places`` has the others."""

    round: msg.Round
    place: CyclePlace


class StopRanks(Value):
    """End this node's ranks of a cycle.

    A second one may follow a polite one: ``AT_ONCE``, or ``for_good``, that is, this node will not
    have ranks again.
    """

    cycle: int
    how: How
    for_good: bool = False


class CycleStopping(Value):
    """A cycle of this node is over, for this cause. Comes before :class:`StopRanks`.

    ``here``: the cause is on this node, which has reported it. ``for_good``: this node will not
    have ranks again; ``no_restart``: why, where the cause does not say it. ``silent_s``: how long
    the node of the cause had sent nothing.
    """

    cycle: int
    cause: str
    here: bool = False
    restarts_left: int = 0
    no_restart: str = ""
    how: How = How.POLITE
    silent_s: float = 0.0
    for_good: bool = False
    failure: msg.FailureReport = msg.FailureReport()


class WaitAsSpare(Value):
    """This node has no ranks in this cycle; it waits as a spare."""

    cycle: int


class LeaveJob(Value):
    """Leave, with this exit code. ``outcome``: of the job; None: it may go on."""

    exit_code: int
    why: LeaveWhy
    text: str
    outcome: JobOutcome | None = None


class SetCadence(Value):
    """Snapshots of this node's ranks are taken so often: as in :class:`.Cadence`."""

    every: int
    from_step: int


class KeepStep(Value):
    """Send the snapshots of this step to the peer: as in :class:`.Keep`."""

    cycle: int
    step: int
    kept: SnapshotId | None


class StepKept(Value):
    """All nodes have done so: as in :class:`.Kept`."""

    cycle: int
    snapshot: SnapshotId
    n_bytes: int = 0
    seconds: float = 0.0


class LeaderMissing(Value):
    """Nothing came from the leader for so long, and the ranks are gone or have SIGKILL."""

    silent_s: float


class JobReported(Value):
    """A rank of this cycle has reported to its monitor, here or on another node. Once."""

    cycle: int


Effect = (
    msg.Message
    | StartRanks
    | CycleStopping
    | StopRanks
    | WaitAsSpare
    | SetCadence
    | KeepStep
    | StepKept
    | JobReported
    | LeaderMissing
    | Note
    | LeaveJob
    | msg.OpenIncident
    | msg.Judged
)
"""A message goes to the leader's mailbox. ``OpenIncident``, ``Judged``: of the cycle that this node
has, or had, ranks in."""
