"""Decide all that one launcher does: its node, its part in the job, and the job, if it leads.

Pure: reads no clock, does nothing itself. Times are seconds on the caller's monotonic clock.

      processes, host                    the job's log                  (of one launcher: a deque,
           |  ^                          |           ^                   of several: a store)
        RankLives                        v           |
     +------------+   reports    +--------------+  Send   . . . . . . . . . . . . . . +------------+
     |    Node    | -----------> |    Member    | ------> . messages,   Arrived ----> |   Leader   |
     |            | <----------- |              | <------ . decisions,  <-- Publish - | (of a job, |
     +------------+ start, stop, +--------------+  Heard  . . . . . . . . . . . . . . |  only one) |
                    leave                                                             +------------+

What one machine says to another goes through one queue, in order, and is drained before the next
event: no machine is ever told something while effects of its own are still to be carried out. A job
of one launcher takes the same way as a job of many; only its log is shorter.

Duties of the caller:

1. Carry out the effects of one call of :meth:`Launcher.handle` in order, and only then hand over
   the next event, whatever carrying them out brings.
2. Answer :class:`~holdfast.node.pure.node.FailureSeen` with
   :class:`~holdfast.job.pure.member.RanksFailed`, which says in words what happened.
3. What the log has brought comes before :class:`TimePassed`: who spoke is not silent.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Mapping
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
from holdfast.job.pure import leader as leading
from holdfast.job.pure import member as belonging
from holdfast.job.pure import node_reports
from holdfast.job.pure.exit_codes import of_a_host
from holdfast.job.pure.leader import Leader
from holdfast.job.pure.member import Member
from holdfast.job.pure.membership import End, Judged, LeaveWhy, Look, Outcome, Place, Round
from holdfast.job.pure.rules import Rules
from holdfast.node.pure import node as ranks
from holdfast.node.pure import node_evidence, rank_life
from holdfast.node.pure.node import Node
from holdfast.node.pure.node_evidence import NodeEvidence
from holdfast.node.pure.rank_life import RankLife, RankLives


# ---------------------------------------------------------------- events
class Met(Value):
    """The job's log is being followed; ``leads``: its leader is to live here.

    ``addr``: where others reach this node, found out on the way; empty: as in the descriptor.
    """

    leads: bool
    addr: str = ""


class PortReserved(Value):
    """A port that is free here for rank 0 of the next cycle; told with the next join."""

    port: int


Event = (
    Met
    | PortReserved
    | belonging.Heard
    | belonging.RanksFailed
    | belonging.CauseFound
    | belonging.LeaderLost
    | leading.Arrived
    | ControlRequested
    | IterationRead
    | ranks.Event
    | rank_life.Event
)


# ---------------------------------------------------------------- effects
class Ended(enum.Enum):
    """How a launcher's part of the job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SIGNALLED = "stopped by a signal"
    SHUT_DOWN = "shut down by a rank"
    EXCLUDED = "excluded by a rank"
    STUCK = "a rank cannot be killed"
    UNHEALTHY = "not healthy"


class Finish(Value):
    """This launcher's part is over.

    ``text``: why it leaves, where that has not been said. ``signal``: the name of the signal that
    stopped it, if one did. ``never_ran``: the job is over, and no cycle of it had a place for this
    node; empty: it had ranks, or did not take part.
    """

    ended: Ended
    exit_code: int
    text: str = ""
    signal: str = ""
    never_ran: str = ""

    @property
    def how(self) -> str:
        """How it ended, in words: ``succeeded``, ``stopped by SIGTERM``."""
        return f"stopped by {self.signal}" if self.signal else self.ended.value


class Quit(Value):
    """Nothing more is to be done here, for the others neither; exit with this code."""

    exit_code: int


Effect = (
    Finish
    | Quit
    | belonging.Send
    | belonging.CycleStopping
    | belonging.Standby
    | leading.Publish
    | leading.ReadIteration
    | ranks.StartCycle
    | ranks.SignalRanks
    | ranks.KillRanks
    | ranks.MeasureWaits
    | ranks.Sweep
    | ranks.CheckHost
    | ranks.EndRank
    | ranks.FailureSeen
    | ranks.Explain
    | rank_life.StartMonitor
    | rank_life.AwaitReport
    | rank_life.HoldClocks
    | rank_life.EndHandlers
    | rank_life.Deliver
    | node_evidence.LookAt
    | node_evidence.LetGoOn
    | node_evidence.IncidentOver
    | Note
)


@dataclass
class Launcher:
    """One launcher.

    Args:
        node: The machine of its ranks.
        member: The machine that speaks for it.
        rules: Of the job, for the leader, if that will live here.
        lives: The machine of what is known of each rank.
        evidence: The machine of its part in the job's incidents.
    """

    node: Node
    member: Member
    rules: Rules
    lives: RankLives = field(default_factory=RankLives)
    evidence: NodeEvidence = field(default_factory=NodeEvidence)

    leader: Leader | None = field(default=None, init=False)
    rank_lives: Mapping[int, RankLife] = field(default_factory=dict, init=False)
    """Of this cycle, by local rank."""
    formed: Round | None = field(default=None, init=False)
    """The cycle that this node has, or had, ranks in."""
    place: Place | None = field(default=None, init=False)
    """Its place in that."""
    finished: Finish | None = field(default=None, init=False)
    _has_quit: bool = field(default=False, init=False)
    _has_met: bool = field(default=False, init=False)
    _may_join: ranks.MayJoin | None = field(default=None, init=False)
    _last_words: belonging.Finish | None = field(default=None, init=False)
    _has_abdicated: bool = field(default=False, init=False)
    _end_of_others: End | None = field(default=None, init=False)
    """How the job ended that this launcher had left, and stayed for as its host."""
    _effects: list[Effect] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.node.survives_ranks = self.rules.survives_ranks

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        if self._has_quit:
            return None
        machines = (self.lives, self.evidence, self.node, self.member, self.leader)
        return earliest(*(one.next_deadline() for one in machines if one is not None))

    @property
    def ranks_may_live_until(self) -> float | None:
        """See :attr:`.Member.ranks_may_live_until`; may change with every event."""
        return self.member.ranks_may_live_until

    @property
    def restarts_used(self) -> int:
        """Of the job's budget, before the cycle that this node has, or had, ranks in."""
        return self.formed.restarts_used if self.formed is not None else 0

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about ``event``, in order."""
        self._effects = []
        if self._has_quit:
            return self._effects
        for errand in self._errands_of(event):
            self._run(errand, now)
        self._finish_if_due()
        return self._effects

    def _errands_of(self, event: Event) -> list[_Errand]:
        """Whom it concerns, one after the other; each with all that follows."""
        lives, node, member, leader = self.lives, self.node, self.member, self.leader
        evidence = self.evidence
        match event:
            case Met():
                return self._on_met(event)
            case PortReserved(port):
                member.desc = dataclasses.replace(member.desc, port=port)
                return []
            case leading.Arrived() | IterationRead():
                return [] if leader is None else [(leader, event)]
            case (
                belonging.Heard()
                | belonging.RanksFailed()
                | belonging.CauseFound()
                | belonging.LeaderLost()
                | ControlRequested()
            ):
                return [(member, event)]
            case SignalArrived(signum):
                name = signal_name(signum)
                errands: list[_Errand] = [(node, event), (member, belonging.ToldToEnd(name))]
                if self._last_words is not None:  # it only hosts the leader any more
                    errands += self._abdicate(f"it got {name}")
                return errands
            case TimePassed():
                machines = (lives, evidence, leader, member, node)
                return [(one, event) for one in machines if one is not None]
            case ranks.Swept():
                if node.phase is not ranks.Phase.SWEEPING:
                    return []  # too late: see LeftoversRemain
                return [(lives, rank_life.Swept()), (node, event)]
            case _ if isinstance(event, rank_life.Event):
                return [(lives, event), (evidence, event)]
            case _:
                return [(node, event)]

    def _run(self, errand: _Errand, now: float) -> None:
        """Carry words between the machines until none has anything more to say."""
        todo = deque([errand])
        while todo:
            machine, event = todo.popleft()
            effects: list[Any] = machine.handle(event, now)
            for effect in effects:
                todo += self._pass_on(effect, now)

    def _pass_on(self, effect: Any, now: float) -> list[_Errand]:
        """To the machine that it is for; what is for none is for the caller."""
        match effect:
            case ranks.MayJoin():
                self._may_join = effect
                return self._join()
            case (
                node_reports.Unhealthy()
                | node_reports.RanksSucceeded()
                | node_reports.RanksStopped()
                | node_reports.RanksStuck()
            ):
                return [(self.member, effect)]
            case (
                ranks.RankKilled()
                | ranks.RankStuck()
                | ranks.OnlyStuckLeft()
                | ranks.WorkerExited()
            ):
                return [(self.node, effect)]
            case ranks.LeftoversRemain():
                return [(self.lives, rank_life.Swept())]
            case ranks.EndRank(local_rank, problem):
                self._effects.append(effect)
                return [(self.lives, rank_life.HostFailed(local_rank, problem))]
            case belonging.StartRanks(formed, place):
                self.formed, self.place = formed, place
                self.rank_lives = self.lives.start_cycle(formed.cycle, self.node.nproc, now)
                self.evidence.start_cycle(formed, place, self.member.desc.hostname)
                return [(self.node, ranks.StartAsked(formed.cycle))]
            case belonging.StopRanks(how=how, for_good=for_good):
                at_once = how is belonging.How.AT_ONCE
                return [(self.node, ranks.StopAsked(at_once=at_once, for_good=for_good))]
            case Look() | Judged():
                return [(self.evidence, effect)]
            case node_reports.RankOverdue() | node_reports.RanksLooked():
                return [(self.member, effect)]
            case node_evidence.IncidentOver():
                effect = self._of_all_nodes(effect)
            case rank_life.NodeReported(cycle):
                return [(self.member, belonging.NodeReported(cycle))]
            case belonging.JobReported(cycle):
                return [(self.lives, rank_life.JobReported(cycle))]
            case belonging.Finish():
                return self._on_last_words(effect)
            case leading.Close(missing):
                if missing:
                    text = "the job has ended, and these launchers sent no leave message: "
                    self._effects.append(Note("warning", text + ", ".join(missing)))
                return []
        self._effects.append(effect)
        if isinstance(effect, leading.Publish):
            match effect.decision:
                case End():
                    self._on_end(effect.decision)
                case Judged(incident, cycle, verdict, without) if cycle != self.evidence.cycle:
                    # It has no ranks in this cycle, and only hosts the leader.
                    over = node_evidence.IncidentOver(incident, cycle, (), verdict, {}, without)
                    self._effects.append(self._of_all_nodes(over))
        return []

    def _of_all_nodes(self, over: node_evidence.IncidentOver) -> node_evidence.IncidentOver:
        """The leader has the evidence of all."""
        if self.leader is None:
            return over
        known = self.leader.incidents
        if known.number != over.incident or known.is_open:
            return node_evidence.IncidentOver(**{**vars(over), "is_elsewhere": False})
        about = over.incident, over.cycle, over.overdue, over.verdict
        verdict = over.verdict
        digests, notifies = known.digests | over.digests, not (verdict.is_pause or verdict.is_known)
        return node_evidence.IncidentOver(*about, digests, over.without, notifies)

    # ------------------------------------------------------------ the way in
    def _on_met(self, met: Met) -> list[_Errand]:
        if self._last_words is not None:
            return []  # told to end meanwhile
        self._has_met = True
        if met.addr:
            self.member.desc = dataclasses.replace(self.member.desc, addr=met.addr)
        if not met.leads:
            return self._join()
        self.leader = Leader(self.rules, self.member.pace)
        return [(self.leader, Begin()), *self._join()]

    def _join(self) -> list[_Errand]:
        """Once the others are met, and the host was checked."""
        if not self._has_met or self._may_join is None:
            return []
        problem = self._may_join.problem
        return [(self.member, Begin() if problem is None else node_reports.Unhealthy(problem))]

    # ------------------------------------------------------------ the way out
    def _on_last_words(self, last: belonging.Finish) -> list[_Errand]:
        self._last_words = last
        failed = last.exit_code != 0 or last.outcome is None
        errands: list[_Errand] = [(self.node, ranks.Dismissed(failed))]
        if last.why is LeaveWhy.FENCED:  # so has everybody who hears what we heard
            errands += self._abdicate(last.text)
        elif last.why is LeaveWhy.SIGNALLED and not self.rules.is_of_one:
            errands += self._abdicate(f"it got {last.text}")
        return errands

    def _abdicate(self, why: str) -> list[_Errand]:
        self._has_abdicated = True
        return [] if self.leader is None else [(self.leader, leading.Abdicate(why))]

    def _on_end(self, end: End) -> None:
        """Who has left the job, and stayed as its host, hears of its end from nobody else."""
        if self._last_words is None or self._has_abdicated:
            return
        self._end_of_others = end
        if not self.rules.is_of_one:
            level = "info" if end.outcome is Outcome.SUCCEEDED else "error"
            text = f"{end.outcome.value}: {end.cause}" if end.cause else end.outcome.value
            self._effects.append(Note(level, f"the job of the others has ended, {text}"))

    @property
    def _is_leader_done(self) -> bool:
        """Nobody needs the leader that may be here."""
        return self.leader is None or self.leader.phase is leading.Phase.CLOSED

    def _finish_if_due(self) -> None:
        last, done = self._last_words, self._is_leader_done
        if last is None:
            return
        of_others = self._end_of_others.exit_code if self._end_of_others is not None else None
        code = of_a_host(last.exit_code, of_others)
        if self.finished is None and (done or not self.rules.is_of_one):
            ended = _how_it_ended(last)
            signal = last.text if ended is Ended.SIGNALLED else ""
            about = self._why_it_leaves(last), signal, self._why_it_never_ran(last)
            self.finished = Finish(ended, code, *about)
            self._effects.append(self.finished)
            if not done and last.why in (LeaveWhy.UNHEALTHY, LeaveWhy.EXCLUDED):
                text = "the others need this launcher to meet: it stays until they end"
                self._effects.append(Note("info", text))
        if self.finished is not None and done:
            self._has_quit = True
            self._effects.append(Quit(code))

    def _why_it_never_ran(self, last: belonging.Finish) -> str:
        if self.formed is not None or self.rules.is_of_one or last.why is not LeaveWhy.FINISHED:
            return ""
        return "was a spare for the whole job" if self._has_met else "came after the end of the job"

    def _why_it_leaves(self, last: belonging.Finish) -> str:
        """Where that has not been said."""
        if not last.text or last.why is LeaveWhy.SIGNALLED:
            return ""
        if last.why in (LeaveWhy.EXCLUDED, LeaveWhy.UNHEALTHY):
            return f"this node is {last.why.value}: {last.text}"
        if last.why is LeaveWhy.FENCED:
            return "" if self._has_met else f"this node could not join the job: {last.text}"
        if not self.rules.is_of_one:
            is_over = last.why is LeaveWhy.FINISHED
            return f"{'the job is over' if is_over else 'this node leaves the job'}: {last.text}"
        if last.outcome is Outcome.FAILED:
            return f"not started again: {last.text}"
        return last.text if last.outcome is Outcome.SHUT_DOWN else ""


_Errand = tuple[RankLives | NodeEvidence | Node | Member | Leader, Any]
"""A machine, and the event that it is to be told."""


def _how_it_ended(finish: belonging.Finish) -> Ended:
    if finish.outcome is not None:
        return {
            Outcome.SUCCEEDED: Ended.SUCCEEDED,
            Outcome.FAILED: Ended.FAILED,
            Outcome.SHUT_DOWN: Ended.SHUT_DOWN,
        }[finish.outcome]
    return {
        LeaveWhy.EXCLUDED: Ended.EXCLUDED,
        LeaveWhy.UNHEALTHY: Ended.UNHEALTHY,
        LeaveWhy.SIGNALLED: Ended.SIGNALLED,
        LeaveWhy.STUCK: Ended.STUCK,
    }.get(finish.why, Ended.FAILED)
