"""Decide for one launcher as a member of its job: join, start, stop, acknowledge, leave.

Pure: reads no clock, touches no store and no process. Times are seconds on the caller's monotonic
clock. The node's machine runs the ranks.

               Round without this node
         +----------------------------------------+
         v                                        |
      WAITING --- Round with this node --> ACTIVE(cycle)
         ^      StopCycle(cycle), or          |   |
         |      the leader is silent          |   | End, NodeRefused, a signal,
         |      v                             |   | or the leader is lost
         +-- STOPPING <-----------------------+   v
        the ranks are gone                     LEAVING ---> DONE
                                                  the ranks are gone

A launcher that receives nothing from the leader for ``fence_s`` must assume that the others go on
without it: it ends its ranks at once (*fences* itself), and reports :class:`LeaderMissing`. So it
does when the leader is there, and has had no lease for too long (:mod:`.leader_lease`). It leaves,
with exit code 1, after ``return_s`` more: the leader may be asleep. If the leader sends a message
again, the launcher reports that its ranks are gone; if its place has been given away, it joins
again, as another node.

It does not fence itself

- where it has slept itself, before it has asked the leader, once (:mod:`.leader_watch`);
- in a cycle that no other follows (``Round.is_last``), while none of its ranks has failed: the
  others cannot go on without it;
- after a signal: when all launchers of a job are signalled, the leader may be the first that is
  done, and the others must not lose the work they are saving.

Duties of the caller:

1. Hand over decisions in order, all that are there before :class:`TimePassed`.
2. Carry out effects in order; a message must be with the store before the next event.
3. Report the end of the ranks of a cycle, after :class:`StopRanks` always: once nothing that they
   started is alive.

Invariants: R-1 no ranks of a cycle are started while ranks of another may be alive. R-2 after
Stop, this node either joins again or leaves. K-1 no :class:`LeaveJob` while its ranks may be alive,
unless they can't be killed.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from holdfast.arena.pure.snapshots import Holdings
from holdfast.base.pure.common_events import (
    Begin,
    ControlRequested,
    Note,
    SignalArrived,
    TimePassed,
)
from holdfast.base.pure.never import assert_never
from holdfast.evidence.pure.failure import signal_name
from holdfast.job.pure import membership as msg
from holdfast.job.pure.beats import Beats
from holdfast.job.pure.exit_codes import Ending
from holdfast.job.pure.leader_watch import LastCycle, LeaderWatch
from holdfast.job.pure.member_messages import (
    CauseFound,
    CycleStopping,
    Effect,
    Event,
    HoldingsRead,
    How,
    JobReported,
    KeepStep,
    LeaderFound,
    LeaderLost,
    LeaderMissing,
    LeaderReplaced,
    LeaveJob,
    NodeReported,
    RanksFailed,
    RanksStopped,
    RanksStuck,
    RanksSucceeded,
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
    EXCLUDE,
    SHUTDOWN,
    LeaveWhy,
    NodeState,
)
from holdfast.job.pure.timing import Pace
from holdfast.job.pure.workload import difference

MAX_CAUSE = 2000
"""Longest cause that is sent, in characters; the node's own report has the whole of it."""


class MemberPhase(enum.Enum):
    """State of a member; see the picture in the module's docstring."""

    NEW = "new"
    WAITING = "waiting"
    ACTIVE = "active"
    STOPPING = "stopping"
    LEAVING = "leaving"
    DONE = "done"


def _cut(report: msg.FailureReport) -> msg.FailureReport:
    return msg.FailureReport(**{**vars(report), "cause": report.cause[:MAX_CAUSE]})


@dataclass
class Member:
    """One launcher's part in the job.

    ``node`` is this incarnation, and never used by another launcher. ``desc`` is sent with each
    join; the caller may replace it (a fresh ``port``) before it reports :class:`RanksStopped`.
    """

    node: str
    desc: msg.Descriptor
    pace: Pace = field(default_factory=Pace)

    phase: MemberPhase = field(default=MemberPhase.NEW, init=False)
    own_lease_s: float = field(default=0.0, init=False)
    """The rest of the leader's lease, if the leader lives in this launcher; else 0."""
    cycle: int = field(default=-1, init=False)
    """The last cycle this node has ranks in, or had; -1: none yet."""
    ranks_alive: bool = field(default=False, init=False)
    """Whether anything of that cycle may be alive on this node."""
    _may_restart: bool = field(default=True, init=False)
    _own_state: NodeState = field(default=NodeState.HEALTHY, init=False)
    _all_ended_well: bool = field(default=False, init=False)
    _cause: msg.FailureReport | None = field(default=None, init=False)
    """Of the last cycle of this node, if it failed here."""
    _holdings: Holdings | None = field(default=None, init=False)
    _holdings_of: int = field(default=-1, init=False)
    """The cycle that had ended when they were read."""
    _requests: list[ControlRequested] = field(default_factory=list, init=False)
    _stop: msg.StopCycle | None = field(default=None, init=False)
    """Of the last cycle; None: it runs, or has ended without one."""
    _keeps_signal_grace: bool = field(default=False, init=False)
    _last_words: LeaveJob | None = field(default=None, init=False)
    _news: int = field(default=0, init=False)
    """Number of the last that was logged."""
    _has_compared: bool = field(default=False, init=False)
    _fenced_s: float | None = field(default=None, init=False)
    """The ranks were ended after such a silence, and the leader does not know it."""
    _is_given_up: bool = field(default=False, init=False)
    """The place may be another's; this launcher comes back as another node."""
    _returns: int = field(default=0, init=False)
    _are_ended: bool = field(default=False, init=False)
    """The ranks have SIGKILL already, because of a silence."""
    _why_fenced: str = field(default="", init=False)
    _job_reported: int = field(default=-1, init=False)
    _stands_by: int = field(default=-1, init=False)
    """The last cycle in which this node is a spare."""
    _look_at: float = field(default=math.inf, init=False)
    """Without a leader no beat is due, and this launcher finds out in time whether it sleeps."""
    _effects: list[Effect] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._first_name = self.node
        self._leader = LeaderWatch(self.pace)
        self._last_cycle = LastCycle()
        self._beats = Beats(self.pace)

    @property
    def ranks_may_live_until(self) -> float | None:
        """When the monitors must end the ranks, as the launcher is stopped; None: never.

        A little later than the launcher would, and before another node can have their places. Never
        after a signal: see above.
        """
        if self.phase in (MemberPhase.NEW, MemberPhase.DONE):
            return None
        if self._last_words is not None and self._last_words.why is LeaveWhy.SIGNALLED:
            return None
        if math.isinf(self.pace.silence_s) or self._is_patient or not self.ranks_alive:
            return None
        return self._leader.killed_at(are_ended=self._are_ended)

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        if self.phase in (MemberPhase.NEW, MemberPhase.DONE):
            return None
        beat_at = self._look_at if self._leader.is_leaderless else self._beats.at
        at = min(beat_at, self._patient_until(), self._missing_at())
        return None if math.isinf(at) else at

    @property
    def _is_patient(self) -> bool:
        """Whether no silence ends the ranks: none can follow them, and all of them work.

        If one has failed, only the leader stops the others, so it is needed.
        """
        return self._last_cycle.is_certain and self._own_state is NodeState.HEALTHY

    def _patient_until(self) -> float:
        """When the silence of the leader has lasted too long."""
        if self.phase is MemberPhase.LEAVING:
            return math.inf
        if not self.ranks_alive:
            return self._leader.leaves_at
        return math.inf if self._is_patient or self._are_ended else self._leader.fence_at

    def _missing_at(self) -> float:
        """When the leader has been silent for so long that this node can vote for another one."""
        must_end = self.ranks_alive and not self._are_ended
        if must_end or self.phase in (MemberPhase.LEAVING, MemberPhase.DONE):
            return math.inf
        ended_well = self._all_ended_well and self.phase is MemberPhase.ACTIVE
        return self._leader.missing_at(ended_well=ended_well)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Effects of ``event``, in order."""
        self._effects = []
        if self.phase is MemberPhase.DONE:
            return self._effects
        self._leader.woke(now)
        match event:
            case Begin():
                self._leader.begin(now)
                self._join()
            case RanksFailed(cycle, every=every, may_restart=may_restart, failure=failure):
                if cycle == self.cycle:
                    self._on_failure(failure, every=every, may_restart=may_restart)
            case CauseFound(cycle, failure):
                self._cause = failure if cycle == self.cycle else None
            case RanksSucceeded(cycle):
                self._on_success(cycle)
            case RanksStopped(cycle):
                self._on_stopped(cycle)
            case RanksStuck(cycle, text):
                if cycle == self.cycle and self.ranks_alive:
                    self.ranks_alive = False  # as dead as it gets
                    self._leave(LeaveJob(Ending.STUCK.code(), LeaveWhy.STUCK, text))
            case ControlRequested():
                self._on_request(event)
            case SignalArrived(signum):
                self._on_signal(signal_name(signum))
            case Unhealthy(text):
                self._leave(LeaveJob(Ending.UNHEALTHY.code(), LeaveWhy.UNHEALTHY, text))
            case NodeReported(cycle):
                self._beats.reported(cycle)
            case HoldingsRead(cycle, holdings):
                if cycle == self.cycle:
                    is_news = holdings != self._holdings
                    self._holdings, self._holdings_of = holdings, cycle
                    if is_news and self._is_leaderless_and_waits:
                        self._join()  # its next vote says so: a copy has come since the last one
            case SnapshotsMeasured(cycle, step, every):
                if cycle == self.cycle and self.phase is MemberPhase.ACTIVE:
                    self._send(msg.SnapshotCosts(self.node, cycle, step, every))
            case StepCopied(cycle, snapshot, n_bytes):
                if cycle == self.cycle and self.phase is MemberPhase.ACTIVE:
                    self._send(msg.Complete(self.node, cycle, snapshot, n_bytes))
            case StepMissed(cycle=cycle):
                if cycle == self.cycle and self.phase is MemberPhase.ACTIVE:
                    self._send(msg.Missed(self.node, **vars(event)))
            case LeaderLost(text):
                if self.phase is MemberPhase.NEW:
                    # there never was a way
                    self._leave(LeaveJob(Ending.LEADER_LOST.code(), LeaveWhy.FENCED, text))
                else:
                    self._fence(f"the leader of the job is lost: {text}")
            case LeaderReplaced(text, how):
                self._on_replaced(text, how, now)
            case LeaderFound(waited_s):
                self._leader.found(waited_s, now)
                self._beats.leader_changes()
            case msg.Suspect(cycle=cycle):
                if cycle == self.cycle and self.phase is MemberPhase.ACTIVE:
                    self._send(event)
            case msg.Digests(node=node):
                if node == self.node:  # else it has joined again since, as another node
                    self._send(event)
            case TimePassed():
                pass
            case _:
                if self._leader.received(event, now, self.own_lease_s):
                    self._beats.ask(now)
                self._follow(event, now)
        self._on_time(now)
        self._look_at = now + self.pace.beat_s
        self._leader.handled(now, self.next_deadline())
        return self._effects

    # ------------------------------------------------------------ decisions of the leader
    def _follow(self, decision: msg.Decision, now: float) -> None:
        match decision:
            case msg.Round(again_for=node) if node not in ("", self.node):
                pass  # it has this one, or gets it itself when the leader has its vote
            case msg.Round():
                self._beats.on_round(decision, self.node, now)
                may_be_old = self._leader.may_be_old(now) and not decision.is_last
                self._on_round(decision, may_be_old=may_be_old)
                self._last_cycle.received(decision)
            case msg.StopCycle(cycle=cycle):
                if cycle == self.cycle:
                    self._on_stop(decision)
            case msg.End():
                self._on_end(decision)
            case msg.NodeRefused(node=node, why=why, may_return=may_return):
                if node == self.node and may_return and self.phase is not MemberPhase.LEAVING:
                    self._on_given_up(why)
                elif node == self.node:
                    self._fence(f"refused by the leader: {why}")
            case msg.LeaderBeat(waits=waits, reported=reported, news=news):
                self._beats.on_leader_beat(decision, now)
                self._last_cycle.settled(decision.settled, self.cycle)
                if self.phase is MemberPhase.ACTIVE and self._job_reported < reported == self.cycle:
                    self._job_reported = reported
                    self._effects.append(JobReported(reported))
                if self.phase is MemberPhase.WAITING and waits and news != self._news:
                    self._news = news
                    self._note("info", waits)
            case msg.OpenIncident(cycle=cycle) | msg.Judged(cycle=cycle):
                if cycle == self.cycle:
                    self._effects.append(decision)
            case msg.Cadence(cycle, every, from_step):
                if cycle == self.cycle and self.phase is MemberPhase.ACTIVE:
                    self._effects.append(SetCadence(every, from_step))
            case msg.Keep(cycle, step, kept):
                if cycle == self.cycle and self.phase is MemberPhase.ACTIVE:
                    self._effects.append(KeepStep(cycle, step, kept))
            case msg.Kept(cycle=cycle):
                if cycle == self.cycle and self.phase is MemberPhase.ACTIVE:
                    self._effects.append(StepKept(**vars(decision)))
            case msg.Resigned():
                pass  # LeaderReplaced or LeaderLost comes with it
            case _:
                assert_never(decision)

    def _on_round(self, formed: msg.Round, *, may_be_old: bool) -> None:
        # A revision comes to a launcher that has missed the round before the leader knows that.
        begins = formed.again_for == self.node or not formed.revision
        place = formed.place_of(self.node) if begins else None
        if self.phase is MemberPhase.WAITING and place is not None and formed.cycle > self.cycle:
            self.phase = MemberPhase.ACTIVE
            self.cycle = formed.cycle
            self.ranks_alive = True
            self._own_state = NodeState.HEALTHY
            self._may_restart = True
            self._cause = None
            self._all_ended_well = False
            self._stop = None
            self._report_difference(formed)
            self._are_ended, self._fenced_s = False, None
            self._why_fenced = ""
            self._last_cycle.began(formed)
            if may_be_old:
                self.phase, self.ranks_alive = MemberPhase.STOPPING, False
                self._report_fenced(self._leader.silent_s)
                return
            self._effects.append(StartRanks(formed, place))
        elif self.phase is MemberPhase.WAITING and self.node in formed.spares:
            self._own_state = NodeState.HEALTHY
            self._report_difference(formed)
            if self._stands_by < formed.cycle:
                self._stands_by = formed.cycle
                self._effects.append(WaitAsSpare(formed.cycle))
        elif self.phase is MemberPhase.STOPPING and self.ranks_alive and formed.cycle > self.cycle:
            self._effects.append(StopRanks(self.cycle, How.AT_ONCE))  # given up
        elif self.phase is MemberPhase.ACTIVE and formed.cycle > self.cycle:
            # Cannot be while there is one leader: a Stop comes first.
            self._fence(f"the leader formed cycle {formed.cycle} while {self.cycle} runs here")

    def _report_difference(self, formed: msg.Round) -> None:
        """Log once how the command of this launcher differs from the leader's."""
        if self._has_compared:
            return
        self._has_compared = True
        found = difference(formed.workload, self.desc.workload)
        if found is not None:
            self._note(
                "warning",
                f"this launcher differs from the leader of its job: {found.text}. If it is of "
                "another job, end it, and give each job an --rdzv-id of its own",
            )

    def _on_end(self, end: msg.End) -> None:
        found = difference(end.workload, self.desc.workload)
        if found is not None and found.is_another_job:
            self._fence(f"the job that has ended is another one: {found.text}")
            return
        exit_code = end.exit_code
        if exit_code is None:
            failed = self._own_state in (NodeState.UNHEALTHY, NodeState.FAILED)
            exit_code = (Ending.FAILED if failed else Ending.OTHERS_FAILED).code()
        text = f"{end.cause}; {end.why}" if end.why else end.cause
        if (stop := self._stop) is not None and stop.cycle == end.stopped:
            text = "" if end.over == stop.over else end.why  # the Stop has said the rest
        self._leave(LeaveJob(exit_code, LeaveWhy.FINISHED, text, end.outcome))

    # ------------------------------------------------------------ the ranks
    def _on_request(self, request: ControlRequested) -> None:
        self._requests.append(request)
        means_something = request.action in (SHUTDOWN, EXCLUDE)
        was_promised = self.phase is MemberPhase.STOPPING and not self._is_last_stop
        instead = ", in the place of the restart" if means_something and was_promised else ""
        self._note(
            "info",
            f"rank {request.rank} asks for {request.action} ({request.text}); "
            f"takes effect when cycle {self.cycle} is over{instead}",
        )

    def _on_failure(
        self, failure: msg.FailureReport, *, every: bool, may_restart: bool = True
    ) -> None:
        asks_first = self._may_restart and not may_restart
        if self.phase is not MemberPhase.ACTIVE and not (
            asks_first and self.phase is MemberPhase.STOPPING
        ):
            return
        state = NodeState.FAILED if every else NodeState.UNHEALTHY
        if self._own_state in (state, NodeState.FAILED) and not asks_first:
            return  # reported before
        self._may_restart = self._may_restart and may_restart
        self._own_state = state
        report, asks = _cut(failure), self._request()
        self._send(msg.StateChanged(self.node, self.cycle, state, report, may_restart, asks))

    def _request(self) -> msg.ControlAsked | None:
        """The request of a rank of this node that comes in the place of a restart."""
        asked = {request.action: request for request in self._requests}
        request = asked.get(SHUTDOWN) or asked.get(EXCLUDE)
        if request is None:
            return None
        return msg.ControlAsked(self.node, request.action, request.rank, request.text[:MAX_CAUSE])

    def _on_success(self, cycle: int) -> None:
        if self.phase is not MemberPhase.ACTIVE:
            self._on_stopped(cycle)
        elif cycle == self.cycle and self.ranks_alive:
            self.ranks_alive = False
            self._all_ended_well = True
            self._send(msg.StateChanged(self.node, self.cycle, NodeState.SUCCEEDED))

    def _on_stopped(self, cycle: int) -> None:
        if cycle != self.cycle or not self.ranks_alive:
            return
        self.ranks_alive = False
        if self.phase is MemberPhase.STOPPING and self._leader.is_leaderless:
            self._cycle_over()
        elif self.phase is MemberPhase.STOPPING and self._fenced_s is not None:
            self._report_fenced(self._fenced_s)
        elif self.phase is MemberPhase.STOPPING:
            self._cycle_over()
        elif self.phase is MemberPhase.LEAVING and self._last_words is not None:
            self._leave(self._last_words)
        elif self.phase is MemberPhase.ACTIVE:
            # No Stop came before: the leader decides.
            found = self._cause or msg.FailureReport("the ranks are gone")
            self._on_failure(found, every=True)

    def _report_fenced(self, silent_s: float) -> None:
        """This node has no ranks in this cycle: the leader decides, if it has not done so."""
        self._fenced_s, self._own_state = silent_s, NodeState.FAILED
        state = msg.StateChanged(
            self.node,
            self.cycle,
            NodeState.FAILED,
            msg.FailureReport(self._why_fenced or self._leader.why_silent(silent_s)),
            self._may_restart,
            self._request(),
            unheard_s=silent_s,
        )
        self._send(state)

    def _on_stop(self, stop: msg.StopCycle) -> None:
        no_restart = stop.no_restart
        asks = self._request()
        if not stop.over and asks is not None:
            no_restart = f"a rank has asked for {asks.action}"
        here = stop.node == self.node and not stop.silent_s
        for_good = bool(stop.over) or asks is not None
        stopping = CycleStopping(
            self.cycle,
            stop.cause,
            here,
            stop.restarts_left,
            no_restart,
            silent_s=stop.silent_s,
            for_good=for_good,
            failure=stop.failure,
        )
        # If this node was the silent one, others go on without it now.
        how = How.AT_ONCE if stop.node == self.node and stop.silent_s else How.POLITE
        if self.phase is MemberPhase.LEAVING and self._keeps_signal_grace:
            # The others wait for these ranks to end, which have no peers any more.
            self._keeps_signal_grace = False
            self._effects += [stopping, StopRanks(self.cycle, How.POLITE, for_good=True)]
        is_fenced, self._fenced_s = self._fenced_s is not None, None
        if self.phase is not MemberPhase.ACTIVE and not is_fenced:
            return
        self.phase = MemberPhase.STOPPING
        self._stop = stop
        if is_fenced:
            self._note("info", f"cycle {self.cycle} is over for this node: {stop.cause}")
        else:
            self._effects.append(stopping)
        if self.ranks_alive:
            self._effects.append(StopRanks(self.cycle, how, for_good=for_good))
        else:
            self._cycle_over()

    def _cycle_over(self) -> None:
        """The ranks are gone: their requests take effect, or the node joins again."""
        asks = self._request()
        self._requests.clear()
        if self._is_given_up:
            self._returns += 1
            self.node = f"{self._first_name}.{self._returns}"
            self._is_given_up, self._cause = False, None
        if asks is None:
            self._join()
        elif asks.action == SHUTDOWN:
            if self._leader.is_leaderless:
                self._join()  # with a vote
            self.phase = MemberPhase.WAITING  # for the End that follows
            self._send(asks)
        elif self._is_last_stop:
            self._join()  # the job is over for all, and has failed
        else:
            text = f"rank {asks.rank}: {asks.text}"
            self._leave(LeaveJob(Ending.EXCLUDED.code(), LeaveWhy.EXCLUDED, text))

    def _join(self) -> None:
        self.phase = MemberPhase.WAITING
        self._leader.joined()
        report = None if self._cause is None else _cut(self._cause)
        holdings = self._holdings
        if holdings is not None and self._holdings_of != self.cycle:
            # Ranks of the last cycle never started here: steps and copies are of an earlier one.
            holdings = holdings.but(last_step=-1, complete=None)
        self._send(msg.Join(self.node, self.desc, self.cycle, report, holdings))

    @property
    def _is_leaderless_and_waits(self) -> bool:
        return self._leader.is_leaderless and self.phase is MemberPhase.WAITING

    @property
    def _is_last_stop(self) -> bool:
        """Whether the Stop of the last cycle said that there would be no other."""
        return self._stop is not None and bool(self._stop.over)

    def _on_given_up(self, why: str) -> None:
        """Others go on without this node, as it was silent: it ends its ranks, and comes back."""
        self._is_given_up, self._fenced_s = True, None
        then = "stops its ranks, and joins again" if self.ranks_alive else "joins again"
        self._note("warning", f"the others have gone on without this node ({why}), which {then}")
        if not self.ranks_alive:
            self._cycle_over()
            return
        self._end_ranks(why, How.AT_ONCE)
        self.phase = MemberPhase.STOPPING

    def _on_replaced(self, text: str, how: How, now: float) -> None:
        """The leader is gone: no ranks of this cycle may be alive when another one leads."""
        if self.phase is MemberPhase.LEAVING:
            return
        self._leader.lost(now)
        self._beats.leader_changes()
        self._fenced_s = None
        if not self.ranks_alive:
            self._cycle_over()
            return
        why = f"the launcher that led the job is lost ({text})"
        self._note("warning", f"{why}: this node stops its ranks, and another launcher will lead")
        self._are_ended = how is How.AT_ONCE
        self._end_ranks(why, how)
        self.phase = MemberPhase.STOPPING

    # ------------------------------------------------------------ the way out
    def _on_signal(self, how: str) -> None:
        if self.phase is MemberPhase.LEAVING:
            return
        ends_well = self._all_ended_well and self.phase is MemberPhase.ACTIVE
        ending = Ending.SIGNALLED_WELL if ends_well else Ending.SIGNALLED
        self._last_words = LeaveJob(ending.code(), LeaveWhy.SIGNALLED, how)
        if not self.ranks_alive:
            self._leave(self._last_words)
            return
        if self.phase is MemberPhase.ACTIVE:
            # They keep the grace that came with the signal, unless the others want to go on.
            self._keeps_signal_grace = True
            report = msg.FailureReport(how)
            self._send(msg.StateChanged(self.node, self.cycle, NodeState.LEAVING, report))
        self.phase = MemberPhase.LEAVING

    def _fence(self, why: str, silent_s: float = 0.0) -> None:
        """End the ranks at once, and leave."""
        if self.phase is MemberPhase.LEAVING:
            return
        ends = "stops its ranks and leaves" if self.ranks_alive else "leaves"
        self._note("error", f"{why}: this node {ends} the job")
        self._leave(
            LeaveJob(Ending.LEADER_LOST.code(), LeaveWhy.FENCED, why), How.AT_ONCE, silent_s
        )

    def _fence_ranks(self, silent_s: float) -> None:
        """End the ranks: others may go on without them; or the leader sleeps, and comes back."""
        why = self._why_fenced = self._leader.why_silent(silent_s)
        self._note(
            "error",
            f"{why}: this node stops its ranks, and waits up to {self.pace.return_s:g} s for it or "
            "another leader",
        )
        self._are_ended = True
        self._end_ranks(why, How.AT_ONCE, silent_s)
        if self.phase is MemberPhase.ACTIVE:
            self.phase, self._fenced_s = MemberPhase.STOPPING, silent_s

    def _end_ranks(
        self, why: str, how: How, silent_s: float = 0.0, *, for_good: bool = False
    ) -> None:
        """End the ranks for another cause than a Stop; the cycle may be over by a Stop already."""
        if self.phase is not MemberPhase.STOPPING:
            stopping = CycleStopping(self.cycle, why, how=how, silent_s=silent_s, for_good=for_good)
            self._effects.append(stopping)
        self._effects.append(StopRanks(self.cycle, how, for_good))

    def _leave(self, last_words: LeaveJob, how: How = How.POLITE, silent_s: float = 0.0) -> None:
        """Leave when the ranks are gone; the first reason to leave is kept."""
        if self._last_words is None:
            self._last_words = last_words
            if self.ranks_alive:
                self._end_ranks(last_words.text, how, silent_s, for_good=True)
        last_words = self._last_words
        if self.ranks_alive:
            self.phase = MemberPhase.LEAVING
            return
        text = "" if last_words.why is LeaveWhy.FINISHED else last_words.text[:MAX_CAUSE]
        self._send(msg.Leave(self.node, last_words.why, text))
        self.phase = MemberPhase.DONE
        self._effects.append(last_words)

    # ------------------------------------------------------------ time
    def _on_time(self, now: float) -> None:
        if self.phase in (MemberPhase.NEW, MemberPhase.DONE):
            return
        if now >= self._patient_until():
            silent_s = max(now - self._leader.leader_at, 0.001)
            if self.ranks_alive:
                self._fence_ranks(silent_s)
            elif self._leader.has_met:
                self._fence(self._leader.why_silent(silent_s), silent_s)
            else:
                self._fence("no message from any leader of the job came", silent_s)
        if now >= self._missing_at():
            self._effects.append(LeaderMissing(self._leader.reported(now)))
        if any(isinstance(effect, msg.Message) for effect in self._effects):
            self._beats.sent(now)
            self._leader.sent(now)
        if now >= self._beats.at and not self._leader.is_leaderless:
            self._send(self._beats.next(self.node, now))
            self._leader.sent(now)

    def _send(self, message: msg.Message) -> None:
        self._effects.append(message)

    def _note(self, level: str, text: str) -> None:
        self._effects.append(Note(level, text))
