"""Lead a job: decide for all of its launchers, as long as no other may.

Pure: reads no clock, touches no store. Times are seconds on the caller's monotonic clock. The
decisions are made in :mod:`.cycles`; this module says whether this leader may make any.

A leader without a lease (:mod:`.leader_lease`) is as one that sleeps, but for its beats: events
wait until the lease is back, or until it steps down, after ``step_down_s``. It steps down, too, if
it is superseded: another launcher has proved that it leads.

Duties of the caller:

1. Hand over messages in the order of their arrival, all that are there before :class:`TimePassed`.
2. Publish decisions in order, each before the next event is handled.
3. Come back at :meth:`Leader.next_deadline`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from holdfast.base.pure.common_events import Begin, TimePassed
from holdfast.base.pure.excuse import Excuse
from holdfast.job.pure import membership as msg
from holdfast.job.pure.cycles import JobCycles, JobPhase
from holdfast.job.pure.incidents import Incidents
from holdfast.job.pure.lapse import Lapse
from holdfast.job.pure.leader_lease import LeaderLease
from holdfast.job.pure.leader_messages import (
    Abdicate,
    Close,
    Effect,
    Event,
    LauncherEnded,
    StepDown,
    Superseded,
)
from holdfast.job.pure.rules import Rules
from holdfast.job.pure.sleep import SleepDetector
from holdfast.job.pure.succession_messages import Leads
from holdfast.job.pure.timing import Pace


@dataclass
class Leader:
    """Decides for a job; lives in one of its launchers."""

    rules: Rules
    pace: Pace = field(default_factory=Pace)
    home: str = ""
    """The node that the leader lives in."""
    inherited: Leads | None = None
    """From the leader before; None: this is the first."""
    moves_by_silence: bool = True
    """Another launcher may lead when this one cannot be reached: it needs a lease."""

    _waiting: list[Event] = field(default_factory=list, init=False)
    """For a lease."""
    _effects: list[Effect] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._sleep = SleepDetector(self.pace.beat_s)
        is_needed = self.moves_by_silence and not self.rules.is_of_one
        self.lease = LeaderLease(self.pace, self.home, is_needed)
        self._lapse = Lapse(self.lease)
        about = self.rules, self.pace, self.home, self.inherited
        self.cycles = JobCycles(*about, self.lease, self._sleep)
        self._takeover, self._beats = self.cycles.takeover, self.cycles.beats

    # ------------------------------------------------------------ the job
    @property
    def phase(self) -> JobPhase:
        """Of the job; CLOSED: this leader decides nothing more."""
        return self.cycles.phase

    @property
    def cycle(self) -> int:
        """The last that was formed; -1: none yet."""
        return self.cycles.cycle

    @property
    def end(self) -> msg.End | None:
        """How the job has ended; None: it goes on."""
        return self.cycles.end

    @property
    def incidents(self) -> Incidents:
        """Of the job."""
        return self.cycles.incidents

    @property
    def restarts_used(self) -> int:
        """Restarts after a failure, since the job began."""
        return self.cycles.restarts_used

    @property
    def term(self) -> int:
        """Greater than that of each leader before; 0: there was none."""
        return self._takeover.term

    # ------------------------------------------------------------ events and time
    def own_lease_s(self, now: float) -> float:
        """For how long ranks of its own node may run, whatever others do; 0: they ask."""
        return self.lease.left_s(now) if self.lease.is_held(now) else 0.0

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        if self.phase in (JobPhase.NEW, JobPhase.CLOSED):
            return None
        at = self.cycles.next_at() if self._lapse.since is None else self._lapse.next_at()
        at = min(at, self._beats.at)
        return None if math.isinf(at) else at

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Effects of ``event``, in order."""
        self._effects = []
        if self.phase is JobPhase.CLOSED:
            return self._effects
        self._on_waking(now)
        if isinstance(event, Abdicate):
            if self._leaves_job(event, now):
                self._effects += [msg.Resigned(f"it left: {event.why}"), Close()]
                self.cycles.close()
                return self._effects
        elif not isinstance(event, Begin):
            self._note_lease(event, now)
        if self._lapse.since is None:
            waiting, self._waiting = self._waiting, []
            for one in (*waiting, event):
                self._hand_over(one, now)
        elif isinstance(event, Abdicate):
            self._hand_over(event, now)
            self._lapse.over()
        elif not isinstance(event, msg.Beat | Superseded | TimePassed):
            self._waiting.append(event)
        self._on_time(now)
        self._sleep.handled(now, self.next_deadline())
        return self._effects

    def _hand_over(self, event: Event, now: float) -> None:
        if isinstance(event, Begin) and self.inherited is not None:
            self.lease.inherit(self.inherited.electorates, self.inherited.leases_until)
            self._lapse.begin(now)
        if not isinstance(event, Superseded | TimePassed):
            self._effects += self.cycles.handle(event, now)

    def _on_time(self, now: float) -> None:
        is_superseded = bool(self._takeover.superseded) and self.cycles.is_open
        if self._lapse.since is not None or is_superseded:
            self._step_down_if_due(now)
        else:
            self._effects += self.cycles.time_passed(now)
        is_over = self.phase in (JobPhase.NEW, JobPhase.CLOSED)
        if not is_over and now >= self._beats.at:
            self._effects.append(self._beats.next(now))

    def _on_waking(self, now: float) -> None:
        excuse = self._sleep.called(now)
        if excuse is not None:
            self.cycles.slept(excuse)
            self._lapse.woke(now)

    # ------------------------------------------------------------ the lease
    def _note_lease(self, event: Event, now: float) -> None:
        """Whether the lease is held, when this has come."""
        lease = self.lease
        match event:
            case msg.Beat(node, echo=echo):
                if lease.answered(node, echo, now):
                    self._beats.ask(now)
                if self._lapse.since is not None:
                    self.cycles.has_sent(node, now)
            case LauncherEnded(node):
                lease.died(node, now)
            case msg.Leave(node):
                lease.left(node)
            case msg.Offer():
                if self._takeover.offered(event, now, has_formed=self.cycles.has_formed):
                    self._lapse.others_until()
            case Superseded(term, node):
                self._takeover.superseded_by(term, node)
        if self._lapse.note(now, self._sleep.woke_at, is_needed=self.cycles.is_open):
            # It grants time to the ranks that the next round starts.
            self._effects.append(self._beats.next(now))
            # It was cut off itself: one majority answers first, and the others may be as well.
            self.cycles.excuse_others(Excuse(now, self.pace.ask_s))

    def _leaves_job(self, event: Abdicate, now: float) -> bool:
        """The others go on, or may: without a lease this leader ends no job."""
        may_move = event.can_move or not self.lease.is_held(now)
        return may_move and self.phase is not JobPhase.ENDING

    def _step_down_if_due(self, now: float) -> None:
        takeover = self._takeover
        ranks_s = self._lapse.ranks_s(now, is_superseded=bool(takeover.superseded))
        if ranks_s and not takeover.knows_too_little and not takeover.superseded:
            return
        why = takeover.superseded or "no majority of its launchers has answered it"
        self._effects += [msg.Resigned(why, stays=True, ranks_s=ranks_s), StepDown(why, ranks_s)]
        self.cycles.close()
