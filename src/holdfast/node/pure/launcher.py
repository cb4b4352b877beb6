"""Connect the machines of one launcher: its node, its part in the job, and the job, if it leads.

      processes, host                    the job's log                  (of one launcher: a deque,
           |  ^                          |           ^                   of several: a store)
           v  |                          v           |
     +------------+   reports    +--------------+         . . . . . . . .          +------------+
     |    Node    | -----------> |    Member    | ------> . messages,   . -------> |   Leader   |
     |            | <----------- |              | <------ . decisions   . <------- | (of a job, |
     +------------+  StartRanks, +--------------+         . . . . . . . .          |  only one) |
              StopRanks, LeaveJob                                                  +------------+

All events between machines pass one queue, in order, which is drained before the next event. A job
of one launcher takes the same way as a job of many; only its log is shorter.

Duties of the caller:

1. Carry out the effects of one call of :meth:`Launcher.handle` in order, and only then hand over
   the next event, also those that come of carrying them out.
2. Hand :class:`~holdfast.job.pure.member_messages.RanksFailed` back with the failure report in it.
3. Hand over the decisions and messages of the log before :class:`TimePassed`: a node whose message
   has arrived is not silent.
4. Call :meth:`.Node.ranks_started` when :class:`StartRanks` is carried out.

Pure. Times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.pure.common_events import (
    Begin,
    ControlRequested,
    IterationRead,
    Note,
    SignalArrived,
    TimePassed,
)
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.value import Value
from holdfast.evidence.pure.failure import signal_name
from holdfast.job.pure.cycles import JobPhase
from holdfast.job.pure.exit_codes import of_a_host
from holdfast.job.pure.leader import Leader
from holdfast.job.pure.leader_messages import (
    Abdicate,
    Close,
    LauncherEnded,
    ReadIteration,
    StepDown,
    Superseded,
    WitnessMoved,
)
from holdfast.job.pure.member import Member
from holdfast.job.pure.member_messages import (
    CauseFound,
    CycleStopping,
    HoldingsRead,
    How,
    JobReported,
    KeepStep,
    LeaderFound,
    LeaderLost,
    LeaderMissing,
    LeaderReplaced,
    LeaveJob,
    RanksFailed,
    SetCadence,
    SnapshotsMeasured,
    StartRanks,
    StepCopied,
    StepKept,
    StepMissed,
    StopRanks,
    Unhealthy,
    WaitAsSpare,
)
from holdfast.job.pure.membership import (
    Decision,
    End,
    JobOutcome,
    Join,
    Judged,
    LeaderBeat,
    LeaveWhy,
    Message,
    NodeRefused,
    Offer,
    OpenIncident,
    Resigned,
    Round,
    Successor,
    elector,
)
from holdfast.job.pure.rules import Rules
from holdfast.job.pure.succession import Succession
from holdfast.job.pure.succession_by_key import SuccessionByKey
from holdfast.job.pure.succession_messages import (
    Approach,
    ClaimKey,
    Follows,
    Give,
    KeyHeld,
    KeyTaken,
    LeaderDied,
    LeaderKnown,
    LeaderSilent,
    Leads,
    LeaveLeader,
    NotReached,
    PeerDied,
    Reached,
    Ready,
    Release,
    Released,
)
from holdfast.net.pure.address import Endpoint
from holdfast.node.pure import node
from holdfast.node.pure.node import Node
from holdfast.node.pure.node_evidence import IncidentOver

_TO_NODE = StartRanks, StopRanks, JobReported, OpenIncident, Judged, LeaveJob
"""Effects of the member that are events of the node."""


# ---------------------------------------------------------------- events
class Met(Value):
    """This launcher follows the job's log; ``leads``: its leader is to live here.

    ``addr``: where others reach this node; empty: as in the descriptor. ``port``: where it would
    lead; 0: it cannot.
    """

    leads: bool
    addr: str = ""
    port: int = 0


class LedBy(Value):
    """The launcher that serves there has proved that it belongs to the job, and says it leads."""

    addr: str
    port: int
    term: int
    node: str


class Deposed(Value):
    """Another launcher leads the job, as the key says, though this one leads it."""

    text: str


class PortReserved(Value):
    """A port that is free here for rank 0 of the next cycle, for the next join."""

    port: int


Event = (
    Met
    | LedBy
    | Deposed
    | PortReserved
    | Decision
    | Message
    | RanksFailed
    | CauseFound
    | HoldingsRead
    | SnapshotsMeasured
    | StepCopied
    | StepMissed
    | LeaderLost
    | LauncherEnded
    | LeaderDied
    | Reached
    | NotReached
    | PeerDied
    | Follows
    | Released
    | KeyTaken
    | KeyHeld
    | ControlRequested
    | IterationRead
    | node.Event
)


# ---------------------------------------------------------------- effects
class LauncherEnd(enum.Enum):
    """How a launcher's part of the job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SIGNALLED = "stopped by a signal"
    SHUT_DOWN = "shut down by a rank"
    EXCLUDED = "excluded by a rank"
    STUCK = "a rank cannot be killed"
    UNHEALTHY = "not healthy"


class LeaveProcess(Value):
    """This launcher's part is over.

    ``text``: why it leaves, where no line of the log says so. ``signal``: the name of the signal
    that stopped it, if one did. ``never_ran``: the job is over, and no cycle of it had a place for
    this node; empty: it had ranks, or did not take part.
    """

    ended: LauncherEnd
    exit_code: int
    text: str = ""
    signal: str = ""
    never_ran: str = ""

    @property
    def how(self) -> str:
        """How it ended, in words: ``succeeded``, ``stopped by SIGTERM``."""
        return f"stopped by {self.signal}" if self.signal else self.ended.value


class QuitProcess(Value):
    """This launcher's work is done, for the others too; exit with this code."""

    exit_code: int


class SendOn(Value):
    """The job is led there: send callers on; ``joins``: and follow it."""

    addr: str
    port: int
    joins: bool


Effect = (
    LeaveProcess
    | QuitProcess
    | Message
    | Decision
    | CycleStopping
    | WaitAsSpare
    | SetCadence
    | KeepStep
    | StepKept
    | ReadIteration
    | WitnessMoved
    | Approach
    | Give
    | LeaveLeader
    | Release
    | ClaimKey
    | Leads
    | SendOn
    | StepDown
    | node.LocalEffect
)


@dataclass
class Launcher:
    """One launcher; ``rules`` are the job's, for the leader, if that will live here."""

    node: Node
    member: Member
    rules: Rules
    succession: Succession | None = None
    """None: the job ends with its leader."""

    leader: Leader | None = field(default=None, init=False)
    finished: LeaveProcess | None = field(default=None, init=False)
    _has_quit: bool = field(default=False, init=False)
    _has_met: bool = field(default=False, init=False)
    _first_report: Begin | Unhealthy | None = field(default=None, init=False)
    """Of the node: the member gets it when there is a leader."""
    _last_words: LeaveJob | None = field(default=None, init=False)
    _has_abdicated: bool = field(default=False, init=False)
    _has_stepped_down: bool = field(default=False, init=False)
    """It had the endpoint of a leader that had died, and another one leads."""
    _end_of_others: End | None = field(default=None, init=False)
    """How the job ended that this launcher had left, and stayed for as its host."""
    _effects: list[Effect] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.node.survives_ranks = self.rules.survives_ranks

    @property
    def is_job_over(self) -> bool:
        """Whether the job has ended on all nodes, as far as this launcher knows."""
        last = self._last_words
        return last is not None and (self.rules.is_of_one or last.outcome is not None)

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        if self._has_quit:
            return None
        machines = (self.node, self.member, self.leader, self.succession)
        return earliest(*(one.next_deadline() for one in machines if one is not None))

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The effects of ``event``, in order."""
        self._effects = []
        if self._has_quit:
            return self._effects
        if isinstance(event, Decision):
            leader = self.leader
            self.member.own_lease_s = 0.0 if leader is None else leader.own_lease_s(now)
        for machine, its_event in self._addressees(event):
            self._run(machine, its_event, now)
        self._finish_if_due()
        return self._effects

    def _addressees(self, event: Event) -> list[_Addressed]:
        """The machines that the event is for; each is run to its end before the next one."""
        if isinstance(event, Offer) and self.leader is None:
            return self._on_offer(event)
        if isinstance(event, Message | IterationRead | LauncherEnded):
            return self._to_leader(event)
        if isinstance(event, Resigned):
            return self._on_leader_gone(event, event.why)
        if (
            isinstance(event, Round | LeaderBeat | NodeRefused)
            and self.succession
            and self.succession.is_leaderless
        ):
            return []  # late, of the leader before; this launcher's ranks are to be gone
        if isinstance(event, Decision):
            if self.succession is not None and self.succession.is_superseded(event):
                return []
            return [*self._to_succession(event), (self.member, event)]
        if isinstance(
            event, Reached | NotReached | PeerDied | Follows | Released | KeyTaken | KeyHeld
        ):
            return self._to_succession(event)
        if isinstance(event, RanksFailed | CauseFound | LeaderLost | ControlRequested):
            return [(self.member, event)]
        if isinstance(event, HoldingsRead | SnapshotsMeasured | StepCopied | StepMissed):
            return [(self.member, event)]
        match event:
            case Met():
                return self._on_met(event)
            case LedBy():
                return self._on_led_by(event)
            case Deposed(text):
                lost = (self.member, LeaderLost(text))
                return [*self._abdicate(text, can_move=True), lost]
            case LeaderDied():
                return self._on_leader_gone(event, event.text)
            case PortReserved(port):
                self.member.desc = dataclasses.replace(self.member.desc, port=port)
                return []
            case SignalArrived(signum):
                addressed: list[_Addressed] = [(self.node, event), (self.member, event)]
                if self._last_words is not None:  # it only hosts the leader any more
                    why = f"it got {signal_name(signum)}"
                    addressed += self._abdicate(why, can_move=self._can_move)
                self._quit_succession()
                return addressed
            case TimePassed():
                others = self._to_leader(event) + self._to_succession(event)
                return [(self.node, event), *others, (self.member, event)]
            case _:
                return [(self.node, event)]

    def _to_leader(self, event: Any) -> list[_Addressed]:
        return [] if self.leader is None else [(self.leader, event)]

    def _to_succession(self, event: Any) -> list[_Addressed]:
        return [] if self.succession is None else [(self.succession, event)]

    # ------------------------------------------------------------ another launcher leads
    def _on_leader_gone(self, event: LeaderDied | Resigned, why: str) -> list[_Addressed]:
        if self.leader is not None or (self.succession and self.succession.is_leaderless):
            return []  # the one before; or it is known
        succession = self.succession
        if succession is None or not succession.can_move_after(event):
            return [(self.member, LeaderLost(why))]
        text = f"{succession.leader}: {why}"
        goes = isinstance(event, Resigned) and not event.stays
        how = How.POLITE if goes else How.AT_ONCE
        return [(succession, event), (self.member, LeaderReplaced(text, how))]

    def _on_leader_missing(self, missing: LeaderMissing) -> list[_Addressed]:
        """This launcher votes, if leadership moves by silence; its leader may not live here."""
        succession = self.succession
        if succession is None or self.leader is not None or not succession.can_move_by_silence:
            return []
        why = f"nothing came from it for {missing.silent_s:.1f} s"
        ranks_s = max(0.0, self.member.pace.takeover_s - missing.silent_s)
        text = f"{succession.leader}: {why}"
        return [
            (succession, LeaderSilent(why, ranks_s)),
            (self.member, LeaderReplaced(text)),
        ]

    def _on_step_down(self, step_down: StepDown) -> list[_Addressed]:
        """Another launcher may lead: this one looks for it."""
        self.leader = None
        why = f"this launcher does not lead the job any more: {step_down.text}"
        self._effects += [Note("warning", why), step_down]
        if self.succession is None or self._last_words is not None:
            return []
        # Its own ranks are ended by its lease.
        return [
            (self.succession, LeaderSilent(step_down.text, step_down.ranks_s)),
            (self.member, LeaderReplaced(step_down.text)),
        ]

    def _on_led_by(self, led: LedBy) -> list[_Addressed]:
        """This launcher was started anew at the endpoint of one that has died, or has slept.

        It steps down if it has formed no cycle, or if its term is over.
        """
        desc, addr, port = self.member.desc, led.addr, led.port
        if self._last_words is not None or (addr, port) == (desc.addr, desc.serves):
            return []
        known = LeaderKnown(led.term, Successor(led.node, addr, port))
        if self.leader is None:
            if self._has_stepped_down:  # the next one already
                self._effects.append(SendOn(addr, port, joins=False))
            elif self.succession is not None and self.succession.is_leaderless:
                return [(self.succession, known)]
        elif self.leader.cycle < 0:
            self.leader, self._has_stepped_down = None, True
            text = f"the job is led by the launcher at {Endpoint(addr, port)}: this one joins it"
            self._effects += [Note("info", text), SendOn(addr, port, joins=True)]
        elif led.term > self.leader.term:
            superseded = self.leader, Superseded(led.term, led.node)
            return [*self._to_succession(known), superseded]
        return []

    def _on_offer(self, offer: Offer) -> list[_Addressed]:
        if self.succession is None:
            self._effects.append(Release((offer.node,), offer.term + 1))
            return []
        addressed: list[_Addressed] = [(self.succession, offer)]
        if self.succession.shows_death(offer) and self.succession.can_move:
            why = f"{offer.node} has found that its launcher has ended"
            return self._on_leader_gone(LeaderDied(why), why) + addressed
        return addressed

    def _lead(self, leads: Leads) -> list[_Addressed]:
        by_key = isinstance(self.succession, SuccessionByKey)
        about = self.rules, self.member.pace, self.member.node, leads
        self.leader = Leader(*about, moves_by_silence=not by_key)
        electorate = leads.round.electorate
        votes = len(electorate.intersection(elector(offer.node) for offer in leads.offers))
        follow = "follow it, which the key names" if by_key else "have voted for it"
        text = (
            f"this launcher leads the job now, in term {leads.term}: {votes} of "
            f"{len(electorate)} launchers {follow}. {leads.leader}, which led it, is lost "
            f"({leads.text})"
        )
        self._effects.append(Note("warning", text))
        return [(self.leader, Begin()), (self.member, LeaderFound())]

    def _quit_succession(self) -> None:
        if self.succession is not None:
            released = self.succession.quit()
            self._effects += [it for it in released if isinstance(it, Release)]

    def _run(self, machine: _Machine, event: Any, now: float) -> None:
        """Hand events from machine to machine until the queue is empty."""
        queue: deque[_Addressed] = deque([(machine, event)])
        while queue:
            machine, event = queue.popleft()
            effects: list[Any] = machine.handle(event, now)
            for effect in effects:
                queue += self._route(machine, effect)

    def _route(self, source: _Machine, effect: Any) -> list[_Addressed]:
        """The machine that an effect of another one is for; the rest is for the caller."""
        if source is self.node:
            if isinstance(effect, Begin | Unhealthy) and self._first_report is None:
                self._first_report = effect
                return self._join()
            if isinstance(effect, node.Report):
                return [(self.member, effect)]
            if isinstance(effect, IncidentOver):
                effect = self._of_all_nodes(effect)
        elif source is self.member:
            leader_ends = self._on_last_words(effect) if isinstance(effect, LeaveJob) else []
            if isinstance(effect, _TO_NODE):
                return [(self.node, effect), *leader_ends]
            if isinstance(effect, Join) and self.succession and self.succession.is_leaderless:
                return [(self.succession, Ready(effect))]
            if isinstance(effect, LeaderMissing):
                return self._on_leader_missing(effect)
        elif source is self.succession:
            if isinstance(effect, LeaderFound):
                return [(self.member, effect)]
            self._effects.append(effect)
            return self._lead(effect) if isinstance(effect, Leads) else []
        elif isinstance(effect, StepDown):
            return self._on_step_down(effect)
        elif isinstance(effect, Close):
            if effect.missing:
                text = "the job has ended, and these launchers sent no leave message: "
                self._effects.append(Note("warning", text + ", ".join(effect.missing)))
            return []
        self._effects.append(effect)
        match effect:
            case End():
                self._on_end(effect)
            case Judged(incident, cycle, verdict, without) if cycle != self.node.cycle:
                # It has no ranks in this cycle, and only hosts the leader.
                over = IncidentOver(incident, cycle, (), verdict, {}, without)
                self._effects.append(self._of_all_nodes(over))
        return []

    def _of_all_nodes(self, over: IncidentOver) -> IncidentOver:
        """The leader has the evidence of all."""
        if self.leader is None:
            return over
        known, changed = self.leader.incidents, {**vars(over), "is_elsewhere": False}
        if known.number == over.incident and not known.is_open:
            changed["digests"] = known.digests | over.digests
            changed["notifies"] = not (over.verdict.is_pause or over.verdict.is_known)
        return IncidentOver(**changed)

    # ------------------------------------------------------------ the way in
    def _on_met(self, met: Met) -> list[_Addressed]:
        if self._last_words is not None:
            return []  # a signal came meanwhile
        self._has_met = True
        desc = self.member.desc
        addr = met.addr or desc.addr
        self.member.desc = dataclasses.replace(desc, addr=addr, serves=met.port)
        if not met.leads:
            return self._join()
        by_key = isinstance(self.succession, SuccessionByKey)
        pace, home = self.member.pace, self.member.node
        self.leader = Leader(self.rules, pace, home, moves_by_silence=not by_key)
        return [(self.leader, Begin()), *self._join()]

    def _join(self) -> list[_Addressed]:
        """Join when this launcher has met the others, and its host was checked."""
        is_ready = self._has_met and self._first_report is not None
        return [(self.member, self._first_report)] if is_ready else []

    # ------------------------------------------------------------ the way out
    def _on_last_words(self, last: LeaveJob) -> list[_Addressed]:
        self._last_words = last
        self._quit_succession()
        if last.why is LeaveWhy.FENCED:  # all other launchers have lost this leader, too
            return self._abdicate(last.text)
        if last.why is LeaveWhy.SIGNALLED and not self.rules.is_of_one:
            return self._abdicate(f"it got {last.text}", can_move=self._can_move)
        return []

    @property
    def _can_move(self) -> bool:
        return self.succession is not None and self.succession.can_move

    def _abdicate(self, why: str, *, can_move: bool = False) -> list[_Addressed]:
        self._has_abdicated = True
        return self._to_leader(Abdicate(why, can_move))

    def _on_end(self, end: End) -> None:
        """Log the end of a job that this launcher has left, and stayed for as its host."""
        if self._last_words is None or self._has_abdicated:
            return
        self._end_of_others = end
        if not self.rules.is_of_one:
            level = "info" if end.outcome is JobOutcome.SUCCEEDED else "error"
            text = f"{end.outcome.value}: {end.cause}" if end.cause else end.outcome.value
            self._effects.append(Note(level, f"the job of the others has ended, {text}"))

    def _finish_if_due(self) -> None:
        if (last := self._last_words) is None:
            return
        done = self.leader is None or self.leader.phase is JobPhase.CLOSED
        of_others = self._end_of_others.exit_code if self._end_of_others is not None else None
        code = of_a_host(last.exit_code, of_others)
        if self.finished is None and (done or not self.rules.is_of_one):
            ended = _how_it_ended(last)
            signal = last.text if ended is LauncherEnd.SIGNALLED else ""
            about = self._why_it_leaves(last), signal, self._why_it_never_ran(last)
            self.finished = LeaveProcess(ended, code, *about)
            self._effects.append(self.finished)
            if not done and last.why in (LeaveWhy.UNHEALTHY, LeaveWhy.EXCLUDED):
                text = "the others need this launcher to meet: it stays until they end"
                self._effects.append(Note("info", text))
        if self.finished is not None and done:
            self._has_quit = True
            self._effects.append(QuitProcess(code))

    def _why_it_never_ran(self, last: LeaveJob) -> str:
        took_part = self.node.cycle >= 0 or self.rules.is_of_one
        if took_part or last.why is not LeaveWhy.FINISHED:
            return ""
        return "was a spare for the whole job" if self._has_met else "came after the end of the job"

    def _why_it_leaves(self, last: LeaveJob) -> str:
        """The reason, where no other line of the log has it."""
        if not last.text or last.why is LeaveWhy.SIGNALLED:
            return ""
        if last.why in (LeaveWhy.EXCLUDED, LeaveWhy.UNHEALTHY):
            return f"this node is {last.why.value}: {last.text}"
        if last.why is LeaveWhy.FENCED:
            return "" if self._has_met else f"this node could not join the job: {last.text}"
        if not self.rules.is_of_one:
            is_over = last.why is LeaveWhy.FINISHED
            return f"{'the job is over' if is_over else 'this node leaves the job'}: {last.text}"
        if last.outcome is JobOutcome.FAILED:
            return f"not started again: {last.text}"
        return last.text if last.outcome is JobOutcome.SHUT_DOWN else ""


_Machine = Node | Member | Leader | Succession
_Addressed = tuple[_Machine, Any]
"""A machine, and an event for it."""


def _how_it_ended(last: LeaveJob) -> LauncherEnd:
    """Both enums have the same names, where this launcher's end is no plain failure."""
    name = last.why.name if last.outcome is None else last.outcome.name
    return LauncherEnd.__members__.get(name, LauncherEnd.FAILED)
