"""Messages of the launchers of a job: up to the leader; and its decisions, down to all launchers.

Pure: plain values; their JSON form follows from their fields (``base/pure/codec.py``).

    launchers --- messages, in the order of their arrival ---> leader
    launchers <-- decisions 1, 2, 3 ..., one writer ---------- leader

A message may arrive late, twice, out of order, or never if its sender dies; nothing in it depends
on its neighbours. Every launcher reads all decisions in order: two launchers know the same of a
cycle. A round carries the *term* of its leader: 0, and more after each time leadership moves
(:mod:`holdfast.job.pure.succession`).

*Node*: one incarnation of a launcher, ``<host>-<pid>-<random>``; a launcher that comes back is
another node.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

from holdfast.arena.pure.snapshots import Beginning, Holdings, SnapshotId
from holdfast.base.pure.codec import Count, Limit, Name, OrMinusOne, Raw, Text, Whole, family
from holdfast.base.pure.value import Value
from holdfast.evidence.pure.evidence import RankDigest, Verdict
from holdfast.job.pure.workload import OneOrMore, Workload

ExitCode = Annotated[int, Whole(0, 255)]
SHUTDOWN = "ShutdownWorkload"
EXCLUDE = "ExcludeThisNode"
"""Requests of a rank to its job: the names of ``WorkloadAction`` that have an effect here."""


class NodeState(enum.Enum):
    """State of a node's ranks in a cycle; the last two are final for it."""

    HEALTHY = "HEALTHY"
    LEAVING = "LEAVING"
    """Its launcher is to end; its ranks have the signal and may be saving their work."""
    UNHEALTHY = "UNHEALTHY"
    """Some ranks failed; others still run."""
    FAILED = "FAILED"
    """No rank runs any more, and not all ended well."""
    SUCCEEDED = "SUCCEEDED"
    """All ranks exited with 0 and nothing of them is left."""


class LeaveWhy(enum.Enum):
    """Why a node leaves."""

    EXCLUDED = "excluded"
    """One of its ranks asked for it."""
    UNHEALTHY = "unhealthy"
    """Its health checks failed."""
    SIGNALLED = "signalled"
    """Its launcher was signalled, or asked to end by its program."""
    FINISHED = "finished"
    """The job is over; this is its acknowledgement."""
    STUCK = "stuck"
    """One of its ranks cannot be killed."""
    FENCED = "fenced"
    """It lost the leader, or was refused, and ended its ranks by itself."""


class JobOutcome(enum.Enum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SHUT_DOWN = "shut down"


class StopWhy(enum.Enum):
    """Why a cycle is stopped."""

    FAILURE = "failure"
    """Ranks failed, or too few nodes are left."""
    LOST = "lost"
    """A node left, was lost, or ended its ranks because it was cut off."""
    LEADER_SLEPT = "leader slept"
    """A node ended its ranks because the leader slept, and sent nothing."""
    GROWTH = "growth"
    """The job goes on with more nodes."""


# ---------------------------------------------------------------- messages up
@dataclass(frozen=True)
class Descriptor:
    """A launcher, as the others know it.

    Attributes:
        addr: Where ranks of other nodes reach it.
        nproc: Ranks it would start.
        infra_rank: Its number from outside (SLURM_PROCID, GROUP_RANK); None: it has none.
        infra_is_place: The number is meant as group rank; False: it only orders nodes.
        domain: Nodes of one domain (NVLink, rack) belong together; None: it does not matter.
        port: Free on that host for the next cycle's MASTER_PORT; 0: not said.
        serves: The port at which the launcher would lead; 0: it cannot.
        workload: The command that it was started for; None: not said (an older version).
        is_witness: It is a witness: it has no ranks, never leads, and may have a vote.
        keeps: The port at which it takes snapshots of a peer's ranks; 0: it does not.
    """

    RARE: ClassVar[tuple[str, ...]] = ("is_witness", "keeps")

    addr: str
    hostname: str
    nproc: OneOrMore
    pid: Count
    infra_rank: Count | None = None
    infra_is_place: bool = True
    domain: str | None = None
    port: Count = 0
    workload: Workload | None = None
    serves: Count = 0
    is_witness: bool = False
    keeps: Count = 0


class FailureReport(Value):
    """The failure that ended a cycle on one node, or as far as the whole job knows.

    Attributes:
        cause: For people; no code reads it.
        rank: The global rank that failed first; -1: it was not a rank.
        exit_code: Of its process; None: it has not ended.
        kind: See :class:`.Attribution`; empty: not known.
        others: The set of ranks that hung, or had ended, with it.
        names_a_peer: Its error says that another rank is gone.
        signature: See :attr:`.Attribution.signature`.
        incident: Number of the one that explains it; 0: none does.
    """

    SPARSE = True

    cause: Text = ""
    rank: OrMinusOne = -1
    exit_code: int | None = None
    kind: Raw = ""
    others: Raw = ""
    names_a_peer: bool = False
    signature: Raw = ""
    incident: Count = 0

    @property
    def facts(self) -> tuple[object, ...]:
        """Equal for two reports of one failure of which as much is known."""
        return tuple(value for name, value in vars(self).items() if name != "cause")


class Join(Value):
    """The node has no ranks any more, and is ready for the next cycle.

    ``have_cycle``: the last one it took part in, -1 for none: tells a late copy from news.
    ``failure``: of that cycle here, now that all ranks of the node have ended; None: none failed.
    ``holdings``: snapshots of its ranks; None: they have used none.
    """

    RARE = ("holdings",)

    node: Name
    desc: Descriptor
    have_cycle: OrMinusOne = -1
    failure: FailureReport | None = None
    holdings: Holdings | None = None


class ControlAsked(Value):
    """A rank requests this of the whole job; sent when its node has left the cycle.

    ``rank`` -1: the launcher itself does.
    """

    node: Name
    action: Name
    rank: OrMinusOne
    text: Text = ""


class StateChanged(Value):
    """The ranks of the node are worse than before in this cycle, or have all succeeded.

    ``failure``: the first one. ``may_restart`` False: a rank asked for no restart. ``asks``: the
    request of a rank in the place of a restart. ``unheard_s``: its launcher has ended its ranks
    because the leader was silent for so long; 0: that is not the cause.
    """

    node: Name
    cycle: Count
    state: NodeState
    failure: FailureReport = FailureReport()
    may_restart: bool = True
    asks: ControlAsked | None = None
    unheard_s: Limit = 0.0


class Leave(Value):
    """The last message of a node: its ranks are gone, or stuck."""

    node: Name
    why: LeaveWhy
    text: Text = ""


class Beat(Value):
    """The node is alive. Sent only when nothing else was for a while.

    ``reported``: the last cycle in which a rank of it has reported to its monitor; -1: none.
    ``received``: the version of the last round that it has received; empty: none. ``echo``: the
    number of the last beat of the leader that it has received; 0: none.
    """

    node: Name
    reported: OrMinusOne = -1
    received: tuple[Count, ...] = ()
    echo: Count = 0


class Suspect(Value):
    """A rank is overdue: evidence of every rank should be taken before one is signalled.

    ``rank``: global. ``after``: the last incident that the node knows of, 0 for none: tells a rank
    that belongs to a later one, which is open or judged, from news. ``clock``: that ran out; "":
    one with a timeout that the user chose.
    """

    node: Name
    cycle: Count
    rank: Count
    after: Count = 0
    clock: Raw = ""


class Digests(Value):
    """Evidence of a node's ranks at an incident; the answer to :class:`OpenIncident`, once."""

    node: Name
    cycle: Count
    incident: Count
    digests: tuple[RankDigest, ...] = ()


class SnapshotCosts(Value):
    """What snapshots cost the ranks of a node, once in a cycle, when all of them have said it.

    ``step``: the last that one of them has ended. ``every``: one of so many steps should be taken.
    """

    node: Name
    cycle: Count
    step: Count
    every: OneOrMore


class Missed(Value):
    """The ranks of a node cannot keep the step that :class:`Keep` names.

    Attributes:
        keep: That step.
        step: The last that one of them has ended.
        why: They could have; for people. Empty: they were past it, or it only asked for the step.
        for_good: This node can keep none in this cycle.
        gave_up: One of its ranks has given its snapshots up, so no step is kept any more.
    """

    SPARSE = True

    node: Name
    cycle: Count
    keep: Count
    step: OrMinusOne = -1
    why: Text = ""
    for_good: bool = False
    gave_up: bool = False


class Complete(Value):
    """The peer of a node has this snapshot of all of its ranks, so many bytes."""

    node: Name
    cycle: Count
    snapshot: SnapshotId
    n_bytes: Count


class Offer(Value):
    """A launcher whose leader has died would follow the receiver: a vote, which binds.

    It follows no other launcher before the receiver has released it or has died as well.

    Attributes:
        term: That the receiver would lead in; a launcher votes once in each.
        join: Its ranks are gone, and it is ready for the next cycle.
        last: Version of the last round that it has received.
        is_sure: No later round can have been formed: its cycle ran when the leader died.
        ended: Launchers that have died, as their kernels say; the leader is one.
        incident: Number of the last one that it knows of.
        restarts_used: As the last round has it.
        round: The last round, of a witness: it may be the only one that has it, and cannot lead.
        ranks_s: For how long ranks of leaders that it has followed may be alive, at most.
        followed: The greatest term of those leaders: it never returns to a lower one.
    """

    RARE = ("round", "ranks_s", "followed")

    node: Name
    term: OneOrMore
    join: Join
    last: tuple[Count, ...]
    is_sure: bool = False
    ended: tuple[Name, ...] = ()
    incident: Count = 0
    restarts_used: Count = 0
    round: Round | None = None
    ranks_s: Limit = 0.0
    followed: Count = 0


Message = (
    Join
    | StateChanged
    | Leave
    | ControlAsked
    | Beat
    | Suspect
    | Digests
    | Offer
    | SnapshotCosts
    | Missed
    | Complete
)

MESSAGES: Mapping[str, type[Message]] = family(Message)


# ---------------------------------------------------------------- decisions down
def elector(node: str) -> str:
    """The launcher of a node, which keeps its vote when it comes back as another node (``.1``)."""
    host, dash, launcher = node.rpartition("-")
    return host + dash + launcher.partition(".")[0]


@dataclass(frozen=True)
class CyclePlace:
    """Place of one node in a cycle: its ranks are ``rank_offset`` ... ``+ nproc - 1``."""

    AS_LIST: ClassVar[bool] = True  # with 10,000 nodes every launcher reads all of them
    node: Name
    group_rank: Count
    nproc: Count
    rank_offset: Count
    addr: str


@dataclass(frozen=True)
class Keeper:
    """The part of a node in kept steps.

    ``port``: at which it takes the snapshots of other nodes' ranks. ``peer``: the group rank of the
    node that takes those of its own.
    """

    AS_LIST: ClassVar[bool] = True
    port: Count
    peer: Count


@dataclass(frozen=True)
class Successor:
    """A launcher that leads the job if those before it cannot; where it would serve."""

    AS_LIST: ClassVar[bool] = True
    node: Name
    addr: str
    port: Count


@dataclass(frozen=True)
class Round:
    """A cycle is formed: its nodes start their ranks now, its spares wait.

    Nodes in neither list joined too late and stay in the queue. ``places`` are in the order of
    their group ranks; group rank 0 is the master. ``restarts_used``: of the budget, so far.
    ``ended_by``: the first of all reported, if the cycle before has failed. ``workload``: the
    leader's; None: not said. ``is_last``: no other can follow unless each of its nodes has reported
    that its ranks are gone, so none has to end them because the leader is silent.

    ``leader``: the node that leads; ``leads_at``: where it serves; ``successors``: the launchers
    that lead after it, in order. ``restarts_left``: of the budget. ``revision``: of this round,
    while its cycle runs; later ones have other spares and successors. ``after``: the version of the
    round before; empty: there was none. ``beginning``: the snapshot that all ranks begin from;
    None: no rank of the job has used snapshots. ``witness``: has a vote; empty: none has.
    ``since``: the launchers that had a vote in each round before, from the last settled one on;
    empty: a launcher that has not received these rounds does not learn that. ``keepers``: in the
    order of ``places``; empty: the job keeps no steps at peers. ``again_for``: the node that has
    missed this round, and gets it once more; empty: it is for all. ``learners``: spares without a
    vote: they are new, and may not have received a round yet.
    """

    RARE: ClassVar[tuple[str, ...]] = (
        *("beginning", "witness", "since", "keepers", "again_for", "learners"),
    )

    cycle: Count
    places: tuple[CyclePlace, ...]
    spares: tuple[Name, ...] = ()
    world_size: OneOrMore = 1
    master_addr: str = ""
    master_port: Count = 0
    restarts_used: Count = 0
    term: Count = 0
    ended_by: FailureReport | None = None
    workload: Workload | None = None
    is_last: bool = False
    leader: Raw = ""
    leads_at: Successor | None = None
    successors: tuple[Successor, ...] = ()
    restarts_left: Count = 0
    revision: Count = 0
    after: tuple[Count, ...] = ()
    beginning: Beginning | None = None
    witness: Raw = ""
    since: tuple[tuple[Name, ...], ...] = ()
    keepers: tuple[Keeper, ...] = ()
    again_for: Raw = ""
    learners: tuple[Name, ...] = ()

    @property
    def version(self) -> tuple[int, ...]:
        """Of two rounds the later one has the greater."""
        return self.term, self.cycle, self.revision

    @cached_property
    def electorate(self) -> frozenset[str]:
        """Who has a vote when the leader is lost: launchers of the cycle, spares, a witness."""
        witness = [self.witness] if self.witness else []
        spares = [node for node in self.spares if node not in self.learners]
        nodes = [place.node for place in self.places] + spares + witness
        return frozenset(map(elector, nodes))

    @cached_property
    def _by_node(self) -> dict[str, CyclePlace]:
        return {place.node: place for place in self.places}

    def place_of(self, node: str) -> CyclePlace | None:
        """Place of ``node`` in this cycle; None: it has no ranks in it."""
        return self._by_node.get(node)


class StopCycle(Value):
    """All nodes leave this cycle: they stop their ranks, then join again.

    A Round or the End follows when all have done so. ``cause``, ``no_restart``: for people;
    ``why`` and ``failure`` are the facts. ``node``: the one with the cause, if any. ``over``: the
    :class:`.Ending` for which there will be no other cycle; empty: it seems that there will.
    ``silent_s``: how long that node had sent nothing when it was given up.
    """

    cycle: Count
    cause: Text
    node: str | None = None
    restarts_left: Count = 0
    no_restart: Text = ""
    term: Count = 0
    silent_s: Limit = 0.0
    over: Raw = ""
    why: StopWhy = StopWhy.FAILURE
    failure: FailureReport = FailureReport()


class End(Value):
    """The job is over: all nodes stop their ranks, acknowledge, leave.

    ``exit_code`` None: that of a launcher is 1 if its own ranks failed, else 0. ``why``: there is
    no other cycle after one that failed of ``cause``; empty where the cause says it all.
    ``workload``: of the job, for a launcher that the leader has not compared. ``over``: the
    :class:`.Ending`. ``stopped``: the cycle that was stopped for the same cause; -1: none.
    """

    outcome: JobOutcome
    exit_code: ExitCode | None
    cause: Text
    why: Text = ""
    term: Count = 0
    workload: Workload | None = None
    over: Raw = ""
    stopped: OrMinusOne = -1


class OpenIncident(Value):
    """A rank of ``node`` is overdue: take evidence of your ranks of this cycle, send Digests.

    ``incident``: counted from 1, over the whole job. ``rank``: global. ``is_gentle``: as in
    :class:`.monitor_messages.CollectEvidence`.
    """

    incident: OneOrMore
    cycle: Count
    node: Name
    rank: Count
    term: Count = 0
    is_gentle: bool = False


class Judged(Value):
    """The verdict on an incident, from all evidence that came in time.

    ``without``: nodes that sent none, and why; empty: all did.
    """

    incident: OneOrMore
    cycle: Count
    verdict: Verdict
    without: Text = ""
    term: Count = 0


class Cadence(Value):
    """From this step on, snapshots are taken of steps that ``every`` divides; before, of each."""

    cycle: Count
    every: OneOrMore
    from_step: Count


class Keep(Value):
    """All nodes send the snapshots of this step to their peers, each when its ranks have it.

    ``step`` 0: each says with :class:`Missed` how far its ranks are. ``kept``: the last kept step,
    which stays untouched until :class:`Kept` names another; None: there is none.
    """

    cycle: Count
    step: Count
    kept: SnapshotId | None = None


class Kept(Value):
    """All nodes have sent this snapshot to their peers: it is the kept step.

    ``n_bytes``: of all ranks. ``seconds``: since :class:`Keep`.
    """

    cycle: Count
    snapshot: SnapshotId
    n_bytes: Count
    seconds: Limit


class NodeRefused(Value):
    """This one node can't take part.

    ``may_return``: it can, as another node, when its ranks are gone: it was only silent.
    """

    node: Name
    why: Text
    term: Count = 0
    may_return: bool = False


class Resigned(Value):
    """The launcher that leads goes, its ranks are gone, and it decides nothing after this.

    ``stays``: it steps down, and follows the next leader. ``ranks_s``: for how long ranks of nodes
    that it does not reach may be alive, at most.
    """

    RARE = ("stays", "ranks_s")

    why: Text
    term: Count = 0
    stays: bool = False
    ranks_s: Limit = 0.0


class LeaderBeat(Value):
    """The leader is alive. Each launcher answers with a beat of its own.

    ``waits``: the nodes that are here, and why they wait, for people; empty: they do not.
    ``news``: its number, as of :class:`.News`.
    ``reported``: the last cycle in which a rank of any node has reported to its monitor.
    ``settled``: the last round, by its version, that so many launchers have that none can lead
    without it; empty: not that of this cycle.
    ``number``: counted from 1, by each leader. ``lease_s``: the rest of its lease
    (:mod:`.leader_lease`): ranks may run for so long; 0: it has none now; infinity: it needs none.
    ``sent_at``: when, on the leader's clock (:mod:`.beat_age`); 0: not known.
    """

    waits: Text = ""
    term: Count = 0
    reported: OrMinusOne = -1
    news: Count = 0
    settled: tuple[Count, ...] = ()
    number: Count = 0
    lease_s: Limit = math.inf
    sent_at: Limit = 0.0


Decision = (
    Round
    | StopCycle
    | End
    | NodeRefused
    | Resigned
    | LeaderBeat
    | OpenIncident
    | Judged
    | Cadence
    | Keep
    | Kept
)

DECISIONS: Mapping[str, type[Decision]] = family(Decision)
