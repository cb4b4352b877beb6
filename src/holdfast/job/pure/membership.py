"""What the launchers of a job say to each other: messages up to the leader, decisions down from it.

Pure: plain values; their JSON form follows from their fields (``base/pure/codec.py``). The
launchers of a job share a store and nothing else:

    launchers --- messages, in the order of their arrival ---> leader
    launchers <-- decisions 1, 2, 3 ..., one writer ---------- leader

A message may arrive late, twice, out of order, or never if its sender dies; nothing in it depends
on its neighbours. Decisions are read by every launcher, all of them, in order: whatever two
launchers know of a cycle, they know the same. Each carries the *term* of the leader that made it,
0 for now: leadership will be able to move.

Words. *Node*: one incarnation of a launcher, ``<host>-<pid>-<random>``; a launcher that comes back
is another node. *Cycle*: one life of all ranks of the job, counted 0, 1, 2 ... and never twice.
*Active*: has ranks in this cycle. *Spare*: waits its turn, without ranks.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

from holdfast.base.pure.codec import Count, Limit, Name, Raw, Text, Whole, family
from holdfast.base.pure.value import Value
from holdfast.evidence.pure.evidence import RankDigest, Verdict
from holdfast.job.pure.workload import Workload

OneOrMore = Annotated[int, Whole(1)]
OrMinusOne = Annotated[int, Whole(-1)]
ExitCode = Annotated[int, Whole(0, 255)]
SHUTDOWN = "ShutdownWorkload"
EXCLUDE = "ExcludeThisNode"
"""What a rank may ask of its job; the names of ``WorkloadAction`` that mean something here."""


class NodeState(enum.Enum):
    """How the ranks of a node are doing in the cycle; the last two are final for the cycle."""

    HEALTHY = "HEALTHY"
    LEAVING = "LEAVING"
    """Its launcher was told to end; its ranks have the signal and may be saving their work."""
    UNHEALTHY = "UNHEALTHY"
    """Some ranks failed; others still run."""
    FAILED = "FAILED"
    """No rank runs any more, and not all ended well."""
    SUCCEEDED = "SUCCEEDED"
    """All ranks exited with 0 and nothing of them is left."""


class LeaveWhy(enum.Enum):
    """Why a node will not be heard of any more."""

    EXCLUDED = "excluded"
    """One of its ranks asked for it."""
    UNHEALTHY = "unhealthy"
    """Its health checks failed."""
    SIGNALLED = "signalled"
    """Its launcher was told to end."""
    FINISHED = "finished"
    """The job is over; this is its acknowledgement."""
    STUCK = "stuck"
    """One of its ranks cannot be killed."""
    FENCED = "fenced"
    """It lost the leader, or was refused, and ended its ranks by itself."""


class Outcome(enum.Enum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SHUT_DOWN = "shut down"


class StopWhy(enum.Enum):
    """What a cycle is stopped for."""

    FAILURE = "failure"
    """Ranks failed, or too few nodes are left."""
    LOST = "lost"
    """A node left, was lost, or ended its ranks because it was cut off."""
    LEADER_SLEPT = "leader slept"
    """A node ended its ranks because it heard nothing of the leader, which did nothing."""
    GROWTH = "growth"
    """The job goes on with more nodes."""


# ---------------------------------------------------------------- messages up
@dataclass(frozen=True)
class Descriptor:
    """What others need to know of a launcher.

    Attributes:
        addr: Where ranks of other nodes reach it.
        nproc: Ranks it would start.
        infra_rank: Its number from outside (SLURM_PROCID, GROUP_RANK); None: it has none.
        infra_is_place: The number is meant as group rank; False: it only orders nodes.
        domain: Nodes of one domain (NVLink, rack) belong together; None: it does not matter.
        port: Free on that host for the next cycle's MASTER_PORT; 0: not said.
        workload: What it was started to run; None: not said (an older version).
    """

    addr: str
    hostname: str
    nproc: OneOrMore
    pid: Count
    infra_rank: Count | None = None
    infra_is_place: bool = True
    domain: str | None = None
    port: Count = 0
    workload: Workload | None = None


class FailureReport(Value):
    """What a cycle failed of on one node, or as far as the whole job knows.

    Attributes:
        cause: For people; no code reads it.
        rank: The global rank that failed first; -1: it was not a rank.
        exit_code: Its, as of the process; None: it has not ended.
        kind: Of what failure, as far as that is known.
        others: The set of ranks that hung, or had ended, with it.
        names_a_peer: It failed of an error that says that another rank is gone.
        signature: See :attr:`.Attribution.signature`.
        incident: The one whose verdict says what it failed of; 0: none does.
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
    """My ranks, if I had any, are gone, and I am ready for the next cycle.

    ``have_cycle``: the last one I took part in, -1 for none: tells a late copy from news.
    ``failure``: of that cycle here, now that all ranks of this node have ended; None: none failed.
    """

    node: Name
    desc: Descriptor
    have_cycle: OrMinusOne = -1
    failure: FailureReport | None = None


class Control(Value):
    """A rank of mine wants this from the whole job; sent when its node has left the cycle.

    ``rank`` -1: the launcher itself wants it.
    """

    node: Name
    action: Name
    rank: OrMinusOne
    text: Text = ""


class State(Value):
    """The ranks of my node are doing worse than before in this cycle, or have all succeeded.

    ``failure``: the first one. ``may_restart`` False: a rank asked for no restart. ``asks``: what a
    rank wants in the place of a restart, if one does. ``unheard_s``: its launcher has ended its
    ranks, for it had heard nothing of the leader for so long; 0: that is not the cause.
    """

    node: Name
    cycle: Count
    state: NodeState
    failure: FailureReport = FailureReport()
    may_restart: bool = True
    asks: Control | None = None
    unheard_s: Limit = 0.0


class Leave(Value):
    """My ranks are gone (or stuck), and this node will not be heard of any more."""

    node: Name
    why: LeaveWhy
    text: Text = ""


class Beat(Value):
    """I am alive. Sent only when nothing else was for a while.

    ``reported``: the last cycle in which a rank of mine has reported to its monitor; -1: none.
    """

    node: Name
    reported: OrMinusOne = -1


class Suspect(Value):
    """A rank of mine is overdue: every rank should be looked at before one is signalled.

    ``rank``: global. ``after``: the last incident that I have heard of, 0 for none: tells a rank
    that belongs to a later one, which is open or judged, from news. ``clock``: that ran out; "":
    one whose timeout somebody chose.
    """

    node: Name
    cycle: Count
    rank: Count
    after: Count = 0
    clock: Raw = ""


class Digests(Value):
    """What my ranks show at an incident; the answer to :class:`Look`, once."""

    node: Name
    cycle: Count
    incident: Count
    digests: tuple[RankDigest, ...] = ()


class Wake(Value):
    """To the leader's own thread that takes messages: look whether it is to end."""


Message = Join | State | Leave | Control | Beat | Suspect | Digests

MESSAGES: Mapping[str, type[Message]] = family(Message)
MAILBOX: Mapping[str, type[Message | Wake]] = family(Message | Wake)


# ---------------------------------------------------------------- decisions down
@dataclass(frozen=True)
class Place:
    """Where one node stands in a cycle: its ranks are ``rank_offset`` ... ``+ nproc - 1``."""

    AS_LIST: ClassVar[bool] = True  # with 10,000 nodes everyone reads all of them
    node: Name
    group_rank: Count
    nproc: Count
    rank_offset: Count
    addr: str


@dataclass(frozen=True)
class Round:
    """A cycle is formed: its nodes start their ranks now, its spares wait.

    Nodes in neither list joined too late and stay in the queue. ``places`` are in the order of
    their group ranks; group rank 0 is the master. ``restarts_used``: of the budget, so far.
    ``ended_by``: the first of all reported, if the cycle before has failed. ``workload``: of
    the job, which is the leader's; None: not said. ``is_last``: no
    other can follow unless each of its nodes has said that its ranks are gone, so none has to end
    them because it hears nothing of the leader.
    """

    cycle: Count
    places: tuple[Place, ...]
    spares: tuple[Name, ...] = ()
    world_size: OneOrMore = 1
    master_addr: str = ""
    master_port: Count = 0
    restarts_used: Count = 0
    term: Count = 0
    ended_by: FailureReport | None = None
    workload: Workload | None = None
    is_last: bool = False

    @cached_property
    def _by_node(self) -> dict[str, Place]:
        return {place.node: place for place in self.places}

    def place_of(self, node: str) -> Place | None:
        """Where ``node`` stands in this cycle; None: it has no ranks in it."""
        return self._by_node.get(node)


class Stop(Value):
    """Leave this cycle: stop your ranks, then join again.

    What follows, a Round or the End, is decided when all have done so. ``cause``, ``no_restart``:
    for people. ``node``: where the cause is, if one. ``over``: the :class:`.Ending` for which there
    will be no other cycle; empty: it seems that there will. ``silent_s``: for how long that node
    had said nothing when it was given up. ``why``, ``failure``: what the cause is.
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
    """The job is over for all: stop what still runs, acknowledge, leave.

    ``exit_code`` None: every launcher says 1 if its own ranks failed, else 0. ``why``: there is no
    other cycle after one that failed of ``cause``; empty where the cause says it all.
    ``workload``: of the job, for a launcher that the leader has not compared. ``over``: as of
    :class:`Stop`. ``stopped``: the cycle whose Stop had the same cause; -1: none had.
    """

    outcome: Outcome
    exit_code: ExitCode | None
    cause: Text
    why: Text = ""
    term: Count = 0
    workload: Workload | None = None
    over: Raw = ""
    stopped: OrMinusOne = -1


class Look(Value):
    """A rank of ``node`` is overdue: take evidence of your ranks of this cycle, send Digests.

    ``incident``: counted from 1, over the whole job. ``rank``: global.
    """

    incident: OneOrMore
    cycle: Count
    node: Name
    rank: Count
    term: Count = 0


class Judged(Value):
    """All evidence of an incident is there that will come, and this is what follows from it.

    ``without``: nodes whose evidence is missing, and why; empty: none is.
    """

    incident: OneOrMore
    cycle: Count
    verdict: Verdict
    without: Text = ""
    term: Count = 0


class Refused(Value):
    """This one node can't take part; nobody else is concerned.

    ``may_return``: it can, as another node, when its ranks are gone: it was only silent.
    """

    node: Name
    why: Text
    term: Count = 0
    may_return: bool = False


class LeaderBeat(Value):
    """The leader is alive. Published only when nothing else was for a while.

    ``waits``: who is here, and for what they wait, for people who have to; empty: nothing to say.
    ``news``: tells another such text from the one before.
    ``reported``: the last cycle in which a rank of any node has reported to its monitor.
    """

    waits: Text = ""
    term: Count = 0
    reported: OrMinusOne = -1
    news: Count = 0


Decision = Round | Stop | End | Refused | LeaderBeat | Look | Judged

DECISIONS: Mapping[str, type[Decision]] = family(Decision)


# ---------------------------------------------------------------- before both
class Hello(Value):
    """A launcher asks the leader for its session; ``nonce`` was never used before."""

    nonce: Name
    who: Text = ""


class Welcome(Value):
    """The session, and the number of the last decision in it."""

    session: Name
    decided: Count


HELLO: Mapping[str, type[Hello]] = family(Hello)
WELCOME: Mapping[str, type[Welcome]] = family(Welcome)


# ---------------------------------------------------------------- time
@dataclass(frozen=True)
class Pace:
    """How long silence may last, in seconds. All launchers of a job use the same.

    A node that is cut off must have ended its ranks before the others go on without it. Both clocks
    start at the last beat that came through, so the node gives up first: ``fence_s`` plus the time
    SIGKILL takes stays below ``silence_s`` less one ``beat_s`` and the delay of a message.

    Whoever was held up itself (suspended, stopped) has not been listening, and gives that time to
    the others: the leader up to ``silence_s``, for it may always wait longer; a node up to
    ``ask_s``, in which it asks the leader, for the others may have gone on without it. Late by less
    than a beat is no sleep.

    Attributes:
        silence_s: A node not heard of for this long is gone. Longer than any pause of a healthy
            launcher; the price of a machine that loses power is this long.
        beat_s: Say something at least this often; several beats fit in a silence.
        fence_s: A launcher that hears nothing of the leader for this long ends its ranks.
        join_timeout_s: How long a cycle may take to form before the job is given up.
    """

    silence_s: float = 15.0
    beat_s: float = 3.0
    fence_s: float = 10.0
    join_timeout_s: float = 900.0

    def __post_init__(self) -> None:
        if math.isinf(self.beat_s):
            return  # of a job that has one launcher, and can have no other
        if not 0 < self.beat_s < self.fence_s <= self.silence_s - self.beat_s:
            raise ValueError(
                f"beat_s ({self.beat_s:g}) < fence_s ({self.fence_s:g}) <= silence_s - beat_s "
                f"({self.silence_s - self.beat_s:g}) must hold: a node that is cut off ends its "
                "ranks before the others go on without it"
            )
        if self.join_timeout_s <= 0:
            raise ValueError(f"join_timeout_s must be positive, is {self.join_timeout_s:g}")

    @property
    def ask_s(self) -> float:
        """How long a node that slept may wait, once, for a word of the leader, its ranks alive.

        A leader that is there speaks within one ``beat_s``.
        """
        return min(self.fence_s, 1.5 * self.beat_s)

    @property
    def return_s(self) -> float:
        """How long a launcher without ranks waits, beyond ``fence_s``, for a leader to return.

        And the leader for a node that nobody else needs to wait for. It may be asleep.
        """
        return 8 * self.silence_s

    @property
    def lease_s(self) -> float:
        """How much later than the launcher its monitors end ranks, if the launcher cannot."""
        return (self.silence_s - self.beat_s - self.fence_s) / 4

    @classmethod
    def of(cls, silence_s: float, join_timeout_s: float = 900.0) -> Pace:
        """The pace for a silence limit: five beats in it, fenced after two thirds of it."""
        return cls(silence_s, silence_s / 5, silence_s * 2 / 3, join_timeout_s)

    @classmethod
    def of_one(cls) -> Pace:
        """Of a job that has one launcher, and can have no other: nobody is waited for."""
        return cls(math.inf, math.inf, math.inf, math.inf)
