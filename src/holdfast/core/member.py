"""Decide what one launcher does as a member of its job: join, start, stop, acknowledge, leave.

Pure: reads no clock, touches no store and no process. Times are seconds on the caller's monotonic
clock. The ranks themselves are the business of the node's machine; it is told to start and stop
them and tells what becomes of them.

                Round without a place for us
         +----------------------------------------+
         v                                        |
      WAITING --- Round with our name ---> ACTIVE(cycle)
         ^                                    |   |
         |   Stop(cycle)                      |   | End, Refused, a signal,
         |      v                             |   | or the leader is silent
         +-- STOPPING <-----------------------+   v
        our ranks are gone                     LEAVING ---> DONE
                                                  our ranks are gone

Decisions are followed in order; those of cycles we are past, or were never in, mean nothing to us.

A launcher that hears nothing of the leader for ``fence_s`` must assume that the others are going
on without it: it ends its ranks at once (*fences* itself), and only then leaves, with exit code 1.
Not so after a signal: when a whole job is told to end, its leader may be the first that is done,
and the others must not lose the work they are saving.

Duties of the caller:

1. Hand over decisions in order, all that are there before :class:`TimePassed`.
2. Carry out effects in order; a :class:`Send` must be with the store before the next event.
3. Report what became of the ranks of a cycle, after :class:`StopRanks` always: once nothing that
   they started is alive.

Invariants: R-1 no ranks of a cycle are started while ranks of another may be alive. R-2 after
Stop, this node either joins again or leaves. K-1 no :class:`Finish` while our ranks may be alive,
unless they can't be killed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from holdfast.core.actions import EXCLUDE, SHUTDOWN
from holdfast.core.exit_codes import Ending
from holdfast.core.membership import (
    Beat,
    Control,
    Decision,
    Descriptor,
    End,
    Join,
    LeaderBeat,
    Leave,
    LeaveWhy,
    Message,
    NodeState,
    Outcome,
    Pace,
    Place,
    Refused,
    Round,
    State,
    Stop,
)
from holdfast.core.never import assert_never

MAX_CAUSE = 2000
"""Longest cause we send, in characters; the whole of it is in our own report."""


# ---------------------------------------------------------------- events
@dataclass(frozen=True)
class Begin:
    """The log of decisions is being followed, someone leads, and this node is ready for ranks."""


@dataclass(frozen=True)
class Heard:
    """The next decision of the log."""

    decision: Decision


@dataclass(frozen=True)
class RanksFailed:
    """Ranks of this cycle failed: ``every`` says that none runs any more.

    ``may_restart`` False: a rank asks for no restart. That counts also while the cycle is being
    stopped: who failed first may be heard of last.
    """

    cycle: int
    cause: str
    every: bool = False
    may_restart: bool = True


@dataclass(frozen=True)
class RanksSucceeded:
    """All ranks of this cycle exited with 0, and nothing they started is alive."""

    cycle: int


@dataclass(frozen=True)
class RanksStopped:
    """No rank of this cycle is alive, nor anything they started.

    ``failed``: not all of them exited with 0.
    """

    cycle: int
    failed: bool = True


@dataclass(frozen=True)
class RanksStuck:
    """A rank of this cycle cannot be killed; this node must never have ranks again."""

    cycle: int
    text: str


@dataclass(frozen=True)
class ControlRequested:
    """A rank asks something of its launcher; takes effect when its cycle is over."""

    rank: int
    action: str
    text: str = ""


@dataclass(frozen=True)
class SignalArrived:
    """The launcher was told to end; it has passed the signal on to its ranks, if it has any."""

    name: str


@dataclass(frozen=True)
class Unhealthy:
    """A health check failed: this node must not have ranks again.

    Checks between two cycles belong between the end of the ranks and :class:`RanksStopped`; a bad
    one is reported before it.
    """

    text: str


@dataclass(frozen=True)
class LeaderLost:
    """The way to the leader is gone for good: nothing more can be heard or sent."""

    text: str


@dataclass(frozen=True)
class TimePassed:
    """Nothing happened but time."""


Event = (
    Begin
    | Heard
    | RanksFailed
    | RanksSucceeded
    | RanksStopped
    | RanksStuck
    | ControlRequested
    | SignalArrived
    | Unhealthy
    | LeaderLost
    | TimePassed
)


# ---------------------------------------------------------------- effects
@dataclass(frozen=True)
class Send:
    """Put a message into the leader's mailbox."""

    message: Message


@dataclass(frozen=True)
class StartRanks:
    """Start this node's ranks of a cycle; ``round.places`` has the others."""

    round: Round
    place: Place


class How(enum.Enum):
    """How much time ranks are given when they are stopped."""

    POLITE = "SIGTERM, then SIGKILL when their grace is over"
    AT_ONCE = "SIGKILL"


@dataclass(frozen=True)
class StopRanks:
    """End this node's ranks of a cycle.

    A second one may follow a polite one: ``AT_ONCE``, or ``for_good``, that is, this node will not
    join again.
    """

    cycle: int
    how: How
    cause: str
    for_good: bool = False


@dataclass(frozen=True)
class Standby:
    """This node has no ranks in this cycle; it waits as a spare."""

    cycle: int


@dataclass(frozen=True)
class Note:
    """Something a person should read."""

    level: str
    text: str


@dataclass(frozen=True)
class Finish:
    """Leave, with this exit code. ``outcome``: of the job; None: it may go on without us."""

    exit_code: int
    why: LeaveWhy
    text: str
    outcome: Outcome | None = None


Effect = Send | StartRanks | StopRanks | Standby | Note | Finish


class Phase(enum.Enum):
    """Where a member is in its life; see the picture in the module's docstring."""

    NEW = "new"
    WAITING = "waiting"
    ACTIVE = "active"
    STOPPING = "stopping"
    LEAVING = "leaving"
    DONE = "done"


@dataclass
class Member:
    """One launcher's part in the job.

    Args:
        node: This incarnation; never used by another launcher.
        desc: Sent with each join; the caller may replace it (a fresh ``port``) before it reports
            :class:`RanksStopped`.
        pace: How long silence may last.
    """

    node: str
    desc: Descriptor
    pace: Pace = field(default_factory=Pace)

    phase: Phase = field(default=Phase.NEW, init=False)
    cycle: int = field(default=-1, init=False)
    """The last cycle this node has ranks in, or had; -1: none yet."""
    ranks_alive: bool = field(default=False, init=False)
    """Whether anything of that cycle may be alive on this node."""
    _may_restart: bool = field(default=True, init=False)
    _own_state: NodeState = field(default=NodeState.HEALTHY, init=False)
    _all_ended_well: bool = field(default=False, init=False)
    _requests: list[ControlRequested] = field(default_factory=list, init=False)
    _keeps_signal_grace: bool = field(default=False, init=False)
    _last_words: Finish | None = field(default=None, init=False)
    _heard_leader: bool = field(default=False, init=False)
    _told: str = field(default="", init=False)
    _fence_at: float = field(default=0.0, init=False)
    _beat_at: float = field(default=0.0, init=False)
    _effects: list[Effect] = field(default_factory=list, init=False)

    @property
    def ranks_may_live_until(self) -> float | None:
        """When others must end our ranks if we cannot, because we were stopped; None: never.

        A little after we would have done it, and still before another node can have their places.
        Nobody does after a signal: see above.
        """
        if self.phase in (Phase.NEW, Phase.DONE):
            return None
        if self._last_words is not None and self._last_words.why is LeaveWhy.SIGNALLED:
            return None
        pace = self.pace
        return self._fence_at + (pace.silence_s - pace.beat_s - pace.fence_s) / 4

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        if self.phase in (Phase.NEW, Phase.DONE):
            return None
        if self.phase is Phase.LEAVING:
            return self._beat_at
        return min(self._beat_at, self._fence_at)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about ``event``, in order."""
        self._effects = []
        if self.phase is Phase.DONE:
            return self._effects
        match event:
            case Begin():
                self._fence_at = now + self.pace.fence_s
                self._join()
            case Heard(decision):
                self._heard_leader = True
                self._fence_at = now + self.pace.fence_s
                self._follow(decision)
            case RanksFailed():
                self._on_failure(event)
            case RanksSucceeded(cycle):
                self._on_success(cycle)
            case RanksStopped(cycle, failed):
                self._on_stopped(cycle, failed=failed)
            case RanksStuck(cycle, text):
                if cycle == self.cycle and self.ranks_alive:
                    self.ranks_alive = False  # as dead as it gets
                    self._leave(Finish(Ending.STUCK.code(), LeaveWhy.STUCK, text))
            case ControlRequested():
                self._requests.append(event)
                self._note(
                    "info",
                    f"rank {event.rank} asks for {event.action} ({event.text}); "
                    f"takes effect when cycle {self.cycle} is over",
                )
            case SignalArrived(name):
                self._on_signal(name)
            case Unhealthy(text):
                self._leave(Finish(Ending.UNHEALTHY.code(), LeaveWhy.UNHEALTHY, text))
            case LeaderLost(text):
                if self.phase is Phase.NEW:
                    # there never was a way
                    self._leave(Finish(Ending.LEADER_LOST.code(), LeaveWhy.FENCED, text))
                else:
                    self._fence(f"the leader of the job is lost: {text}")
            case TimePassed():
                pass
            case _:
                assert_never(event)
        self._on_time(now)
        return self._effects

    # ------------------------------------------------------------ what the leader decides
    def _follow(self, decision: Decision) -> None:
        match decision:
            case Round():
                self._on_round(decision)
            case Stop(cycle=cycle, cause=cause):
                if cycle == self.cycle:
                    self._on_stop(cause)
            case End(outcome=outcome, exit_code=exit_code, cause=cause):
                if exit_code is None:
                    failed = self._own_state in (NodeState.UNHEALTHY, NodeState.FAILED)
                    exit_code = (Ending.FAILED if failed else Ending.OTHERS_FAILED).code()
                self._leave(Finish(exit_code, LeaveWhy.FINISHED, cause, outcome))
            case Refused(node=node, why=why):
                if node == self.node:
                    self._fence(f"refused by the leader: {why}")
            case LeaderBeat(waits=waits):
                if self.phase is Phase.WAITING and waits not in ("", self._told):
                    self._told = waits
                    self._note("info", waits)
            case _:
                assert_never(decision)

    def _on_round(self, formed: Round) -> None:
        place = formed.place_of(self.node)
        if self.phase is Phase.WAITING and place is not None and formed.cycle > self.cycle:
            self.phase = Phase.ACTIVE
            self.cycle = formed.cycle
            self.ranks_alive = True
            self._own_state = NodeState.HEALTHY
            self._may_restart = True
            self._all_ended_well = False
            self._effects.append(StartRanks(formed, place))
        elif self.phase is Phase.WAITING and self.node in formed.spares:
            self._own_state = NodeState.HEALTHY
            self._effects.append(Standby(formed.cycle))
        elif self.phase is Phase.ACTIVE and formed.cycle > self.cycle:
            # Cannot be while there is one leader: a Stop comes first.
            self._fence(f"cycle {formed.cycle} was formed while we are in {self.cycle}")

    # ------------------------------------------------------------ what becomes of the ranks
    def _on_failure(self, failure: RanksFailed) -> None:
        if failure.cycle != self.cycle:
            return
        asks_first = self._may_restart and not failure.may_restart
        if self.phase is not Phase.ACTIVE and not (asks_first and self.phase is Phase.STOPPING):
            return
        state = NodeState.FAILED if failure.every else NodeState.UNHEALTHY
        if self._own_state in (state, NodeState.FAILED) and not asks_first:
            return  # as bad as we said before
        self._may_restart = self._may_restart and failure.may_restart
        self._own_state = state
        cause = failure.cause[:MAX_CAUSE]
        self._send(State(self.node, self.cycle, state, cause, failure.may_restart))

    def _on_success(self, cycle: int) -> None:
        if cycle != self.cycle or not self.ranks_alive:
            return
        if self.phase is not Phase.ACTIVE:
            self._on_stopped(cycle, failed=False)
            return
        self.ranks_alive = False
        self._all_ended_well = True
        self._send(State(self.node, self.cycle, NodeState.SUCCEEDED))

    def _on_stopped(self, cycle: int, *, failed: bool) -> None:
        if cycle != self.cycle or not self.ranks_alive:
            return
        self.ranks_alive = False
        self._all_ended_well = not failed
        if self.phase is Phase.STOPPING:
            self._cycle_over()
        elif self.phase is Phase.LEAVING and self._last_words is not None:
            self._leave(self._last_words)
        elif self.phase is Phase.ACTIVE:
            # Nobody asked for it; the leader hears of it and decides.
            self._on_failure(RanksFailed(cycle, "the ranks are gone", every=True))

    def _on_stop(self, cause: str) -> None:
        if self.phase is Phase.LEAVING and self._keeps_signal_grace:
            # Others go on: they wait for our ranks to end, and those have nobody left to talk to.
            self._keeps_signal_grace = False
            self._effects.append(StopRanks(self.cycle, How.POLITE, cause, for_good=True))
        if self.phase is not Phase.ACTIVE:
            return
        self.phase = Phase.STOPPING
        if self.ranks_alive:
            self._effects.append(StopRanks(self.cycle, How.POLITE, cause))
        else:
            self._cycle_over()

    def _cycle_over(self) -> None:
        """Our ranks are gone: what they asked for takes effect, or we join again."""
        asked = {request.action: request for request in self._requests}
        self._requests.clear()
        if (request := asked.get(SHUTDOWN)) is not None:
            self.phase = Phase.WAITING  # for the End that follows
            self._send(Control(self.node, SHUTDOWN, request.rank, request.text[:MAX_CAUSE]))
        elif (request := asked.get(EXCLUDE)) is not None:
            text = f"rank {request.rank}: {request.text[:MAX_CAUSE]}"
            self._leave(Finish(Ending.EXCLUDED.code(), LeaveWhy.EXCLUDED, text))
        else:
            self._join()

    def _join(self) -> None:
        self.phase = Phase.WAITING
        self._send(Join(self.node, self.desc, self.cycle))

    # ------------------------------------------------------------ the way out
    def _on_signal(self, name: str) -> None:
        if self.phase is Phase.LEAVING:
            return
        ends_well = self._all_ended_well and self.phase is Phase.ACTIVE
        ending = Ending.SIGNALLED_WELL if ends_well else Ending.SIGNALLED
        self._last_words = Finish(ending.code(), LeaveWhy.SIGNALLED, name)
        if not self.ranks_alive:
            self._leave(self._last_words)
            return
        if self.phase is Phase.ACTIVE:
            # They keep the grace that came with the signal, unless others want to go on without us.
            self._keeps_signal_grace = True
            self._send(State(self.node, self.cycle, NodeState.LEAVING, name))
        self.phase = Phase.LEAVING

    def _fence(self, why: str) -> None:
        """Our ranks must not be alive one moment longer than needed."""
        if self.phase is Phase.LEAVING:
            return
        self._note("error", f"{why}; ending the ranks of this node")
        self._leave(Finish(Ending.LEADER_LOST.code(), LeaveWhy.FENCED, why), How.AT_ONCE)

    def _leave(self, last_words: Finish, how: How = How.POLITE) -> None:
        """Leave with these words, when our ranks are gone; the first reason to leave is kept."""
        if self._last_words is None:
            self._last_words = last_words
            if self.ranks_alive:
                text = last_words.text
                self._effects.append(StopRanks(self.cycle, how, text, for_good=True))
        last_words = self._last_words
        if self.ranks_alive:
            self.phase = Phase.LEAVING
            return
        if last_words.why is LeaveWhy.SIGNALLED and self._all_ended_well:
            code = Ending.SIGNALLED_WELL.code()
            last_words = Finish(code, LeaveWhy.SIGNALLED, last_words.text)
        text = "" if last_words.why is LeaveWhy.FINISHED else last_words.text[:MAX_CAUSE]
        self._send(Leave(self.node, last_words.why, text))
        self.phase = Phase.DONE
        self._effects.append(last_words)

    # ------------------------------------------------------------ time
    def _on_time(self, now: float) -> None:
        if self.phase in (Phase.NEW, Phase.DONE):
            return
        if self.phase is not Phase.LEAVING and now >= self._fence_at:
            silent_s = self.pace.fence_s + now - self._fence_at
            if self._heard_leader:
                self._fence(f"nothing heard of the leader of the job for {silent_s:.1f} s")
            else:
                self._fence("no leader of the job was ever heard of")
        if any(isinstance(effect, Send) for effect in self._effects):
            self._beat_at = now + self.pace.beat_s
        elif now >= self._beat_at:
            self._send(Beat(self.node))
            self._beat_at = now + self.pace.beat_s

    def _send(self, message: Message) -> None:
        self._effects.append(Send(message))

    def _note(self, level: str, text: str) -> None:
        self._effects.append(Note(level, text))
