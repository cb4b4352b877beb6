"""Decide on the cycles of a job, for all launchers: the nodes of each, its end, the job's end.

Pure: reads no clock, touches no store. Times are seconds on the leader's clock.

             enough nodes have joined, no other is awaited
    FORMING ------------------------------------------------> RUNNING
       ^  |                                                      |  |
       |  | no restart is left,      Stop: a node failed, was    |  | all succeeded,
       |  | too few in time,         lost, or one more can grow  |  | or the only node left
       |  | shutdown asked           the job                     |  |
       +----------------|----------------------------------------+  |
                        v                                           |
                     ENDING <---------------------------------------+
                        |  every living node has acknowledged, or linger_s is over
                        v
                     CLOSED

After a failure comes a Stop, always, and one decision when all survivors are back.

Silence (decision 42). A node that sends nothing for ``silence_s`` is given up: the cycle is
stopped, its place is another's; if it was only silent, it may come back, as another. In a last
cycle (``Round.is_last``) a silent node is awaited while ranks of others run, and no cycle follows
that one before each of its nodes has reported that its ranks are gone. A leader that slept gives
its sleep to the others.

The leader (:mod:`.leader`) hands events over while it may decide.

Invariants: R-1 one round per cycle and one owner per group rank; no round while a survivor of the
last cycle may still have ranks. B-1 restarts never exceed the budget, for the whole job. R-2 after
a Stop comes exactly one Round or End, in bounded time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from holdfast.base.pure.common_events import Begin, IterationRead, Note
from holdfast.base.pure.excuse import Excuse
from holdfast.base.pure.never import assert_never
from holdfast.job.pure import job_words as words
from holdfast.job.pure import membership as msg
from holdfast.job.pure.assign import Assignment, AssignmentNote
from holdfast.job.pure.exit_codes import Ending
from holdfast.job.pure.forming import Forming
from holdfast.job.pure.incidents import Incidents
from holdfast.job.pure.job_admission import JobAdmission
from holdfast.job.pure.job_snapshots import JobSnapshots
from holdfast.job.pure.leader_beats import LeaderBeats
from holdfast.job.pure.leader_lease import LeaderLease
from holdfast.job.pure.leader_messages import (
    Abdicate,
    Close,
    Effect,
    JobEvent,
    LauncherEnded,
    ReadIteration,
    WitnessMoved,
)
from holdfast.job.pure.membership import SHUTDOWN, LeaveWhy, NodeState, StopWhy
from holdfast.job.pure.nodes import Nodes
from holdfast.job.pure.restarts import Restarts
from holdfast.job.pure.rounds import Rounds
from holdfast.job.pure.rules import Rules
from holdfast.job.pure.running import RunningCycle
from holdfast.job.pure.sleep import SleepDetector
from holdfast.job.pure.succession_messages import Leads
from holdfast.job.pure.takeover import Takeover
from holdfast.job.pure.timing import Pace


class JobPhase(enum.Enum):
    """State of a job; see the picture in the module's docstring."""

    NEW = "new"
    FORMING = "forming"
    RUNNING = "running"
    ENDING = "ending"
    CLOSED = "closed"


@dataclass
class JobCycles:
    """Of one job, while this leader leads it.

    Attributes:
        home: The node that the leader lives in.
        inherited: From the leader before; None: this is the first.
        cycle: The last that was formed; -1: none yet.
        end: Of the job; None: it goes on.
    """

    rules: Rules
    pace: Pace
    home: str
    inherited: Leads | None
    lease: LeaderLease
    sleep: SleepDetector
    """Of the leader."""

    phase: JobPhase = field(default=JobPhase.NEW, init=False)
    cycle: int = field(default=-1, init=False)
    end: msg.End | None = field(default=None, init=False)

    nodes: Nodes = field(default_factory=Nodes, init=False)
    _noted: set[AssignmentNote] = field(default_factory=set, init=False)
    _returned: dict[str, msg.Join] = field(default_factory=dict, init=False)
    """Launchers whose ranks have ended in a cycle that goes on without them."""
    _close_by: float = field(default=0.0, init=False)
    _effects: list[Effect] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        about = self.rules, self.pace, self.nodes
        self._forming, self._running = Forming(*about), RunningCycle(*about)
        self._restarts = Restarts(self.rules)
        self.incidents = Incidents(self.rules.evidence_s, self.rules.stall)
        self._snapshots = JobSnapshots(self.rules)
        self._admission = JobAdmission(self.rules.workload, self.nodes)
        self.takeover = Takeover(self.inherited, self._forming, self.lease)
        before, term = None if self.inherited is None else self.inherited.round, self.takeover.term
        self._rounds = Rounds(self.home, term, before, self.nodes, self.lease)
        self.beats = LeaderBeats(self.pace, term, self.lease, self._rounds)

    @property
    def restarts_used(self) -> int:
        """Restarts after a failure, since the job began."""
        return self._restarts.used

    @property
    def is_open(self) -> bool:
        """Something is to be decided: the job has begun, and has not ended."""
        return self.phase in (JobPhase.FORMING, JobPhase.RUNNING)

    @property
    def has_formed(self) -> bool:
        """This leader has published a round."""
        return self._rounds.formed is not None

    def next_at(self) -> float:
        """Earliest time at which :meth:`time_passed` would do something; infinity: never."""
        at = self.nodes.silent_at(self.pace.silence_s)
        if self.beats.news.due_at is not None:
            at = min(at, self.beats.news.due_at)
        if self.phase is JobPhase.FORMING:
            at = min(at, self._forming.join_by)
            if self._forming.form_at is not None:
                at = min(at, self._forming.form_at)
        elif self.phase is JobPhase.RUNNING:
            due_at = self.incidents.until or self._running.grow_at
            at = at if due_at is None else min(at, due_at)
            at = min(
                at, self._running.awaited_until(), self._rounds.revise_at(), self._snapshots.due_at
            )
        elif self.phase is JobPhase.ENDING:
            at = min(at, self._close_by)
        return at

    def handle(self, event: JobEvent, now: float) -> list[Effect]:
        """Effects of ``event``, in order."""
        self._effects = []
        match event:
            case Begin():
                self._begin(now)
            case IterationRead(iteration):
                self._restarts.iteration_read(iteration, self.cycle)
            case Abdicate(why):
                self._end(Ending.LEADER_LOST, f"the launcher that led the job left: {why}", now)
            case LauncherEnded(node):
                if node in self.nodes.witnesses:
                    self._lose_witness(node, "its process has ended", silent_s=0.0)
                elif node in self.nodes.alive:
                    self._lose(node, "its launcher has ended", now, silent_s=0.0)
            case _:
                self._on_message(event, now)
        return self._effects

    def has_sent(self, node: str, now: float) -> None:
        """A launcher is there, though its messages wait for a lease."""
        if node in self.nodes.alive or node in self.nodes.witnesses:
            self.nodes.has_sent(node, now)

    def close(self) -> None:
        """This leader decides nothing more."""
        self.phase = JobPhase.CLOSED

    def slept(self, excuse: Excuse) -> None:
        """A leader that slept ends nothing for a silence that it overslept."""
        self.excuse_others(excuse)
        self._forming.extend(excuse.late_s)
        self._close_by += excuse.late_s

    def excuse_others(self, excuse: Excuse) -> None:
        """Launchers have that much longer to send a message."""
        limit_s, before = self.pace.silence_s, self.nodes.excuse
        if before is None or before.extend(0.0, limit_s) < excuse.extend(0.0, limit_s):
            self.nodes.excuse = excuse

    # ------------------------------------------------------------ nodes come and go
    def _on_message(self, message: msg.Message, now: float) -> None:
        node = message.node
        if self.nodes.is_gone(node):
            is_over = self.phase is JobPhase.ENDING
            if (refusal := self._admission.refusal(message, is_over=is_over)) is not None:
                self._publish(refusal)
            return
        join = message.join if isinstance(message, msg.Offer) else message
        is_witness = isinstance(join, msg.Join) and join.desc.is_witness
        if is_witness or node in self.nodes.witnesses:
            self._on_witness(message, now)
            return
        if node in self.nodes.alive:
            if node in self.nodes.awaited:
                silent = f"after {self.nodes.silence_of(node, now):.1f} s of silence"
                self._note("info", f"{self.nodes.shown(node)} sends messages again, {silent}")
            self.nodes.has_sent(node, now)
        elif isinstance(message, msg.Leave):
            self.nodes.never_joins(message)
            self._end_if_alone(message, now)
            return
        elif not isinstance(message, msg.Join | msg.Offer):
            return  # overtook its sender's join, or its sender is no launcher of the job
        match message:
            case msg.Join():
                self._on_join(message, now)
            case msg.Offer(join=join):
                if self.phase is JobPhase.ENDING and self.end is not None:
                    self._publish(self.end)  # it may have missed the first
                    return
                if self._has_missed_round(message):
                    # The others wait for its ranks.
                    self._publish(self._rounds.once_more(node))
                    return
                self._note_more(message, now)
                if message.term > self.takeover.term or self.phase is JobPhase.FORMING:
                    # It has ended its ranks, or has missed the round, and maybe its stop, too.
                    join = join.but(have_cycle=max(join.have_cycle, self.cycle))
                    self._on_return(join, now)
                self._on_join(join, now)
            case msg.StateChanged():
                self._on_state(message, now)
            case msg.Leave(why=why, text=text):
                self.nodes.note_unfit(message)
                self._end_if_alone(message, now)
                is_over = why is LeaveWhy.FINISHED and not text
                self._lose(
                    node, f"{why.value}: {text}" if text else why.value, now, is_over=is_over
                )
            case msg.ControlAsked(action=action):
                if action == SHUTDOWN:
                    self._restarts.asked_to_shut_down(message, self.nodes.shown(node))
                    self._forming.awaited.discard(node)  # it does not join again
                    if self.phase is not JobPhase.FORMING:
                        self._end_shut_down(now)
            case msg.Suspect():
                self._on_suspect(message, now)
            case msg.Digests():
                self.incidents.answered(message)
            case msg.SnapshotCosts() | msg.Missed() | msg.Complete():
                if self.phase is JobPhase.RUNNING:  # else they are of a cycle that is over
                    about = message, self.cycle, self._running.states
                    self._effects += self._snapshots.on_message(*about, now)
            case msg.Beat(reported=reported, received=received):
                self.beats.reported(reported)
                self._note_received(node, received, now)
            case _:
                assert_never(message)

    def _on_witness(self, message: msg.Message, now: float) -> None:
        """It may have a vote, and no part in anything else."""
        node = message.node
        if node in self.nodes.witnesses:
            self.nodes.has_sent(node, now)
        match message:
            case msg.Join():
                self._on_witness_join(message, now)
            case msg.Offer(join=join):
                self._note_more(message, now)
                self._on_witness_join(join, now)
            case msg.Leave(why=why, text=text):
                self._lose_witness(node, text or why.value)
            case msg.Beat(received=received):
                self._note_received(node, received, now)
            case _:
                pass  # of ranks, which it has not

    def _on_witness_join(self, join: msg.Join, now: float) -> None:
        if self.nodes.join(join, now):
            self._effects.append(WitnessMoved(join.node))
            self._note("info", f"the witness on {self.nodes.shown(join.node)} is here")
        if self.phase is JobPhase.ENDING and self.end is not None:
            self._publish(self.end)  # it may have missed the first, as it looked for a leader

    def _lose_witness(self, node: str, why: str, *, silent_s: float | None = None) -> None:
        lost = words.lost(f"the witness on {self.nodes.shown(node)}", why, silent_s)
        self.nodes.lose(node, why, silent_s)
        self._effects.append(WitnessMoved(node, why))
        if self.phase is not JobPhase.ENDING:
            self._note("warning", f"{lost}: the job continues without it")

    def _note_received(self, node: str, version: tuple[int, ...], now: float) -> None:
        if self._rounds.received(node, version):
            self.beats.ask(now)  # they should know soon

    def _end_if_alone(self, leave: msg.Leave, now: float) -> None:
        """A job that can have no other node is over when its node leaves."""
        if not self.rules.is_of_one:
            return
        if (ending := self._restarts.ending_without(leave)) is not None:
            self._end(ending, leave.text or leave.why.value, now)

    def _on_join(self, join: msg.Join, now: float) -> None:
        node = join.node
        self.takeover.joined(join)
        was_in_it = node in self._running.states
        if was_in_it and (self.phase is JobPhase.RUNNING or join.have_cycle < self.cycle):
            return  # a late copy: an active node joins again only after a Stop
        if node not in self.nodes.alive:
            is_refused, effects = self._admission.refuses(join)
            self._effects += effects
            if is_refused:
                return
        is_new = self.nodes.join(join, now)
        self._snapshots.joined(join)
        self.takeover.account_for(node)
        if self.phase is JobPhase.ENDING:
            if is_new and self.end is not None:
                self._publish(self.end)  # it may have missed the first
            return
        if self._forming.joined(node) and join.failure is not None:
            self._restarts.reported(node, join.failure)
        if self.phase is JobPhase.RUNNING and is_new:
            self._running.joined(node, self._restarts.started_at)

    def _has_missed_round(self, offer: msg.Offer) -> bool:
        """It has a place in the cycle that runs, and has looked for another leader instead."""
        formed = self._rounds.formed
        if formed is None or not self._is_at_work(offer.node):
            return False
        is_healthy = self._running.states[offer.node] is NodeState.HEALTHY
        return is_healthy and offer.last < formed.version and offer.join.have_cycle < self.cycle

    def _on_return(self, join: msg.Join, now: float) -> None:
        """It could not reach this leader, has ended its ranks, and looked for another leader."""
        if self.phase is not JobPhase.RUNNING or join.node not in self._running.states:
            return
        if self._is_at_work(join.node):
            cause = "nothing came from the leader, and it stopped its ranks"
            report = msg.FailureReport(f"{self.nodes.shown(join.node)} was cut off: {cause}")
            self._running.set_state(join.node, NodeState.FAILED)
            self._restarts.reported(join.node, report)
            self._judge(report.cause, join.node, now, StopWhy.LOST)
        if self.phase is JobPhase.RUNNING:
            self._returned[join.node] = join

    def _note_more(self, offer: msg.Offer, now: float) -> None:
        """It knows a later round: that one spent its restarts, and the death of its leader one."""
        if offer.last and offer.last[0] == self.takeover.term and self._rounds.formed is not None:
            return  # a round of this leader
        if self.takeover.knows_later_round(offer):
            used, most = offer.restarts_used + 1, self.rules.max_restarts
            self._restarts.at_least(
                used if self.rules.restarts_period_s is not None else min(used, most), now
            )

    def _lose(
        self,
        node: str,
        why: str,
        now: float,
        *,
        silent_s: float | None = None,
        is_over: bool = False,
    ) -> None:
        """Out of the job, by its message (None) or its silence; ``is_over``: so is the job."""
        lost = words.lost(self.nodes.shown(node), why, silent_s)
        self.nodes.lose(node, why, silent_s)
        self.incidents.lost(node, lost)
        self._snapshots.lost(node)
        is_missed = node in self._forming.awaited or self._is_at_work(node)
        if silent_s is not None and is_missed:
            self._restarts.lost(node, lost)
        self._forming.forget(node)
        if not is_over and not self.rules.is_of_one:
            self._note("warning", lost)
        if self._is_at_work(node):
            self._running.set_state(node, None)
            self._judge(lost, node, now, StopWhy.LOST)

    def _is_at_work(self, node: str) -> bool:
        """Whether it is in the cycle that runs, and has not completed it."""
        return self.phase is JobPhase.RUNNING and self._running.is_at_work(node)

    # ------------------------------------------------------------ a cycle forms
    def _begin(self, now: float) -> None:
        self.phase = JobPhase.FORMING
        self.beats.ask(now)
        self._open(now)
        if self.inherited is not None:
            self._inherit(self.inherited, now)
            return
        workload = self.rules.workload
        if workload is not None and not workload.is_named and not self.rules.is_of_one:
            self._note("warning", words.unnamed_job())

    def _inherit(self, before: Leads, now: float) -> None:
        """Go on with the job of a leader that has died."""
        formed, stop = before.round, before.stop
        self.cycle = formed.cycle
        self._running.ranks = {place.node: place.group_rank for place in formed.places}
        self._snapshots.inherit(formed)
        self.incidents.number = before.incident
        restarts = self._restarts
        restarts.inherit(formed.restarts_used, formed.restarts_left, now)
        wait_s = 0.0
        if stop is None:
            cause = f"the launcher that led the job is lost: {before.text}"
            wait_s, _ = restarts.failed(cause, formed.leader, now)
        elif stop.why is not StopWhy.GROWTH:
            wait_s, _ = restarts.failed(stop.cause, stop.node or "", now)
        self._open(max(now + wait_s, before.ranks_until))
        self.takeover.begin(before, now + wait_s)
        for offer in before.offers:
            if offer.join.desc.is_witness:
                self._on_witness_join(offer.join, now)
            else:
                self._on_join(offer.join, now)
        self.takeover.start_early_if_sure()

    def _open(self, earliest_at: float) -> None:
        self._forming.open(self.cycle, earliest_at)
        self.beats.news.forget()

    def _try_to_form(self, now: float) -> None:
        """Form the round if nothing is missing, or say when it can be."""
        forming, restarts = self._forming, self._restarts
        if forming.is_late(now) and forming.awaited:
            if self._running.is_last and restarts.cause is None:
                # Enough may be there; but the others' ranks may live, and no restart is left.
                self._end(Ending.FAILED, words.ranks_not_gone(forming), now)
                return
            for node in sorted(forming.awaited):
                self._refuse(node, words.not_back(forming), now)
        if not forming.may_decide(now, restarts.waits_until(now)):
            return
        self._decide(now)
        if self.phase is not JobPhase.FORMING:
            return
        if forming.may_form(now):
            self._form(now)
        elif forming.is_in_vain(now):
            self._end(Ending.NO_NODE_LEFT, words.too_small(forming), now)
        if forming.is_late(now) and self.phase is JobPhase.FORMING:
            self._end(Ending.TOO_FEW, words.too_few(forming), now)

    def _decide(self, now: float) -> None:
        """All survivors are back: is there another cycle?"""
        restarts = self._restarts
        if restarts.cause is None:
            if restarts.shut_down is not None:
                self._end_shut_down(now)
            return
        over = restarts.decided()
        if over is Ending.SHUT_DOWN:
            self._end_shut_down(now)
        elif over is not None:
            cause = restarts.ended_by.cause if restarts.ended_by is not None else ""
            stopped = self.cycle if restarts.was_said else -1
            self._end(over, cause, now, restarts.why_no_restart(over), stopped)

    def _end_shut_down(self, now: float) -> None:
        assert self._restarts.shut_down is not None
        self._end(Ending.SHUT_DOWN, self._restarts.shut_down, now)

    def _form(self, now: float) -> None:
        assignment = self._assign(now)
        if assignment is None:
            return
        self.cycle = max(self.cycle, self.takeover.newest) + 1
        self.phase = JobPhase.RUNNING
        places = assignment.places
        for place in places:
            del self.nodes.ready[place.node]
        self.beats.news.forget()
        ended_by = self._restarts.ended_by
        self._restarts.cycle_started(now)
        self.takeover.formed()
        nodes = [self.nodes.alive[place.node] for place in places]
        about = self.cycle, self.takeover.term, places, nodes
        beginning, parts, notes = self._snapshots.choose(*about, now)
        self._effects += notes
        bare = msg.Round(
            cycle=self.cycle,
            places=places,
            spares=assignment.spares,
            world_size=assignment.world_size,
            master_addr=places[0].addr,
            master_port=nodes[0].port,
            restarts_used=self.restarts_used,
            ended_by=ended_by,
            workload=self.rules.workload,
            is_last=self._restarts.is_none_left,
            restarts_left=self._restarts.left,
            beginning=beginning,
            keepers=parts,
        )
        formed = self._rounds.form(bare)
        self._running.began(assignment.group_ranks, is_last=formed.is_last)
        self._publish_round(formed, now)
        self._snapshots.begin(formed, now)
        self.incidents.cycle_began(formed)
        if self.cycle == 0 and self.rules.reads_iterations:
            self._effects.append(ReadIteration(first=True))
        for note in assignment.notes:
            if note not in self._noted:
                self._noted.add(note)
                self._note("info", words.assignment_note(note))

    def _publish_round(self, formed: msg.Round, now: float) -> None:
        self._rounds.published(formed, now)
        self._publish(formed)
        if not self.rules.is_of_one:
            self.beats.ask(now)  # a launcher that dies soon after has answered it
        self._note_received(self.home, formed.version, now)

    def _assign(self, now: float) -> Assignment | None:
        """Ranks for the nodes that are ready, less those that can't have any; None: not now."""
        while True:
            assignment, at_fault = self._forming.assign(self._running.ranks)
            for node in at_fault:
                self._refuse(node, str(self._forming.why_not), now)
            if not at_fault:
                return assignment

    def _refuse(self, node: str, why: str, now: float) -> None:
        """The node stays out of the job."""
        self._publish(msg.NodeRefused(node, why))
        self._lose(node, why, now)

    # ------------------------------------------------------------ news for launchers that wait
    def _gather_news(self, now: float) -> None:
        news: tuple[object, ...] | None = None
        is_decided = self._restarts.cause is None
        if self.phase is JobPhase.FORMING:
            news = self._forming.news(is_decided=is_decided)
        elif self.phase is JobPhase.RUNNING and self._running.newcomer:
            news = (len(self.nodes.ready),)
        if not self.beats.news.are_due(news, self.cycle, now):
            return
        if self.phase is JobPhase.FORMING:
            self.beats.news.text = words.wait_for_cycle(self._forming, now, is_decided=is_decided)
        else:
            self.beats.news.text = words.wait_for_place(self._running, self.cycle, now)
        self._publish(self.beats.next(now))

    # ------------------------------------------------------------ a cycle runs
    def _on_state(self, message: msg.StateChanged, now: float) -> None:
        node, state = message.node, message.state
        known = self._running.states.get(node)
        if message.cycle != self.cycle or known is None:
            return  # of another cycle, or not in this one
        restarts = self._restarts
        restarts.may_restart = restarts.may_restart and message.may_restart
        if message.asks is not None and message.asks.action == SHUTDOWN:
            restarts.asked_to_shut_down(message.asks, self.nodes.shown(node))
        if self.phase is JobPhase.FORMING and restarts.cause is None and not message.may_restart:
            # The report of the first failure may arrive last.
            why_no_restart = restarts.why_no_restart(Ending.NO_USE)
            self._end(Ending.NO_USE, message.failure.cause, now, why_no_restart)
        failure, why = message.failure, StopWhy.FAILURE
        if message.unheard_s:
            failure, why = self._why_unheard(message, now)
        if self.phase is JobPhase.FORMING and message.unheard_s:  # of this cycle: others lost it
            restarts.reported(node, failure)
        if self.phase is not JobPhase.RUNNING or not self._running.is_news(node, state):
            return  # decided, or overtaken by worse news
        self._running.set_state(node, state)
        if failure.cause and state is not NodeState.LEAVING:
            restarts.reported(node, failure)
        self._judge(failure.cause, node, now, why)

    def _why_unheard(
        self, state: msg.StateChanged, now: float
    ) -> tuple[msg.FailureReport, StopWhy]:
        """A node ended its ranks, because the leader was silent: cut off, or asleep.

        A leader that slept has just woken up, as the node has waited for that.
        """
        name = self.nodes.shown(state.node)
        if now - self.sleep.woke_at > self.pace.silence_s:
            cause = words.cut_off(name, state.failure.cause)
            return msg.FailureReport(cause), StopWhy.LOST
        cause = words.leader_slept(self.sleep.slept_s, name, state.unheard_s)
        return msg.FailureReport(cause), StopWhy.LEADER_SLEPT

    def _judge(self, cause: str, node: str, now: float, why: StopWhy) -> None:
        """One node's state changed: does the cycle go on?"""
        if (over := self._running.over(cause)) is None:
            return
        ending, cause = over
        if ending is Ending.SUCCEEDED:
            self._end(ending, cause, now)
        else:
            self._fail(cause, node, why, now)

    def _on_suspect(self, suspect: msg.Suspect, now: float) -> None:
        runs = self.phase is JobPhase.RUNNING and suspect.cycle == self.cycle
        if runs and suspect.node in self._running.states and self.incidents.is_news(suspect):
            alive = self.nodes.alive
            hosts = {n: alive[n].hostname if n in alive else None for n in self._running.states}
            self._publish(self.incidents.open(suspect, hosts, now))

    def _conclude_incident(self, now: float) -> None:
        why_last = "no restart is left" if self._restarts.no_other_follows else ""
        if (judged := self.incidents.judged(now, why_last)) is None:
            return
        self._publish(judged)
        if (held := self.incidents.released()) is not None:
            self._fail(*held, now)

    def _fail(self, cause: str, node: str, why: StopWhy, now: float) -> None:
        if self.incidents.holds(cause, node, why):
            return
        wait_s, over = self._restarts.failed(cause, node, now)
        self._stop(cause, node, now + wait_s, why, over)
        if self.rules.reads_iterations and node in self.nodes.alive:
            self._restarts.reads_iteration(now)
            self._effects.append(ReadIteration(first=False))

    def _stop(
        self, cause: str, node: str, earliest_at: float, why: StopWhy, over: Ending | None = None
    ) -> None:
        self.phase = JobPhase.FORMING
        self._snapshots.stop()
        restarts = self._restarts
        self.nodes.awaited.clear()
        self._publish(
            msg.StopCycle(
                self.cycle,
                cause,
                node,
                restarts.left,
                no_restart="" if over is None else restarts.why_no_restart(over),
                silent_s=self.nodes.silent.get(node, 0.0),
                over="" if over is None else over.name,
                why=why,
                failure=msg.FailureReport() if why is StopWhy.GROWTH else restarts.of_node(node),
            )
        )
        self._forming.awaited = {node for node in self._running.states if node in self.nodes.alive}
        self._open(earliest_at)

    def _grow(self, now: float) -> None:
        if (cause := self._running.why_grow(now)) is not None:
            self._stop(cause, self._running.newcomer, now, StopWhy.GROWTH)

    # ------------------------------------------------------------ the end, and time
    def _end(
        self, ending: Ending, cause: str, now: float, why: str = "", stopped: int = -1
    ) -> None:
        """For ``why`` and ``stopped`` see :class:`.End`."""
        if self.phase is JobPhase.ENDING:
            return
        self.phase = JobPhase.ENDING
        self._close_by = now + self.rules.linger_s
        self.end = self._restarts.end(ending, cause, why, stopped)
        self._publish(self.end)
        self.nodes.awaited.clear()
        self._on_silence(now)

    def time_passed(self, now: float) -> list[Effect]:
        """Whatever is due, maybe by the last event."""
        self._effects = []
        self._on_silence(now)
        if self.phase is JobPhase.RUNNING:
            self._conclude_incident(now)
        may_grow = self.phase is JobPhase.RUNNING and not self.incidents.is_open
        grow_at = self._running.grow_at
        if may_grow and grow_at is not None and now >= grow_at:
            self._grow(now)
        if self.phase is JobPhase.RUNNING and now >= self._rounds.revise_at():
            self._publish_round(self._rounds.revised(), now)
        self._on_silence(now)  # the cycle may have been stopped since
        if self.phase is JobPhase.FORMING:
            returned, self._returned = self._returned, {}
            for join in returned.values():
                if join.node in self.nodes.alive:
                    self._on_join(join, now)
            self._try_to_form(now)
        if self.phase is JobPhase.RUNNING:
            self._effects += self._snapshots.time_passed(now)
        if self.phase is JobPhase.ENDING and (not self.nodes.alive or now >= self._close_by):
            self.phase = JobPhase.CLOSED
            self._effects.append(Close(tuple(self.nodes.alive)))
        else:
            self._gather_news(now)
        return self._effects

    def _on_silence(self, now: float) -> None:
        """Give up nodes that were silent for too long, or report that they are awaited."""
        silence_s = self.pace.silence_s
        while (silent := self.nodes.next_silent(silence_s, now)) is not None:
            node, silent_s = silent
            if node in self.nodes.witnesses:
                self._lose_witness(node, words.silent_for(silent_s), silent_s=silent_s)
            elif self._waits_for(node):
                self.nodes.awaited.add(node)
                self._note("warning", words.is_awaited(self.nodes.shown(node), silent_s))
            else:
                self._lose(node, words.silent_for(silent_s), now, silent_s=silent_s)
        while self.phase is JobPhase.RUNNING and now >= self._running.awaited_until():
            longest = self.nodes.longest_awaited(silence_s)
            assert longest is not None
            silent_s = self.nodes.silence_of(longest[0], now)
            self._lose(longest[0], words.silent_for(silent_s), now, silent_s=silent_s)

    def _waits_for(self, node: str) -> bool:
        """Whether a node of the last cycle may still have ranks: no other can take its place."""
        if not self._running.is_last or node not in self._running.states:
            return False
        if self.phase is JobPhase.FORMING:
            return self._restarts.cause is None and node in self._forming.awaited
        return self._is_at_work(node)

    def _publish(self, decision: msg.Decision) -> None:
        self._effects.append(decision)

    def _note(self, level: str, text: str) -> None:
        self._effects.append(Note(level, text))
