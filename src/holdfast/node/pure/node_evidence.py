"""Evidence of a node's ranks at an incident: who looks, what has come, when monitors may go on.

                 a rank is overdue              Look                    all looked, or the bound
    AT REST ──────────────────────► SUSPECTS ─────────► LOOKING ────────────────┐
       ▲  └── Look: a rank is, on another node ─────────► ▲  ▲                    ▼
       │                               └─── no Look came ─┘  └─ to stop      ANSWERED
       └── the monitors go on ◄── Judged, or no verdict came ─────────────────────┘

The monitor of an overdue rank looks at it at once, and ends it when it is told to go on, or when
the timeout of evidence is over. Until then every rank of the job is looked at, for in a collective
job the one that is overdue first is a victim as often as not. The leader opens the incident and
judges it (:mod:`holdfast.job.pure.incidents`); a launcher that hears nothing of it judges what its
own ranks show, and so does one whose ranks are being stopped: nobody else is asked then.

K-2: what is missing is said, with the reason: a rank's in its digest, the other nodes' beside the
verdict. Nothing here waits longer than the bound, which counts from the first overdue rank, or from
the Look.

Pure. Times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.base.pure.common_events import TimePassed
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.never import assert_never
from holdfast.base.pure.rank_sets import text_of
from holdfast.base.pure.value import Value
from holdfast.evidence.pure.evidence import (
    BEING_STOPPED,
    ENDED,
    ENDED_BEFORE,
    ENDED_WELL,
    Missing,
    RankDigest,
    Verdict,
)
from holdfast.evidence.pure.stall_rules import belongs_to
from holdfast.job.pure.incidents import ANSWER_SHARE, LOOK_SHARE, verdict_on, what_is_missing
from holdfast.job.pure.membership import Judged, Look, Place, Round
from holdfast.job.pure.node_reports import RankOverdue, RanksLooked
from holdfast.node.pure import rank_life
from holdfast.node.pure.rank_life import (
    Exited,
    ExitsNow,
    GoesOn,
    HostFailed,
    JobReported,
    MonitorGone,
    MonitorSaid,
    Raised,
    Sent,
    Swept,
)
from holdfast.page.pure.clocks import PAUSE, STEP
from holdfast.watch.pure import monitor_messages as said

ALONE_SHARE = 0.25
"""Of the timeout of evidence: how long a launcher waits for the leader before it looks alone,"""
JUDGE_SHARE = 0.95
"""and for a verdict before it judges alone; a moment before the monitors go on by themselves."""
JOINS_S = 5.0
"""A rank that is overdue so soon after a verdict belongs to that incident."""
TURN_S = 50e-6
"""For each group rank: on thousands of nodes, ranks that wait for each other are overdue at once,
and the leader needs to hear it from one node only."""
_LEAST_TURN_S = 0.002

Event = rank_life.Event | Look | Judged


# ---------------------------------------------------------------- effects


class LookAt(Value):
    """Have these ranks looked at by their monitors, within so many seconds."""

    incident: int
    cycle: int
    local_ranks: tuple[int, ...]
    within_s: float


class LetGoOn(Value):
    """Tell the monitors of these ranks the verdict: they end those that are hung."""

    incident: int
    cycle: int
    local_ranks: tuple[int, ...]
    verdict: Verdict


class IncidentOver(Value):
    """Write down an incident. It may come again with more: the leader was late, or a rank was.

    Attributes:
        incident: Its number in the job, or the next one where the leader has no part in it.
        cycle: In which it is.
        overdue: Local ranks of this node that were found overdue.
        verdict: On all ranks.
        digests: By global rank: of this node; of all where the leader lives here.
        without: Nodes whose evidence is missing, and why; empty: none is.
        notifies: This node starts the command that people have given for incidents. Of the leader's
            incidents its node does (:mod:`holdfast.node.pure.launcher`).
        is_elsewhere: The node of the leader logs it, for all.
    """

    incident: int
    cycle: int
    overdue: tuple[int, ...]
    verdict: Verdict
    digests: dict[int, RankDigest]
    without: str
    notifies: bool = False
    is_elsewhere: bool = False


Effect = RankOverdue | RanksLooked | LookAt | LetGoOn | IncidentOver


@dataclass
class _Survey:
    """One incident here.

    Attributes:
        label: What monitors know it by.
        incident: The same for the job; None: the leader has not opened it.
        answer_by, judge_by: Until when looks, and a verdict, are waited for.
        awaited: Local ranks whose monitors have not answered.
        digests: By local rank.
        overdue: Local ranks that its verdict was given to.
        is_answered: Nothing more is waited for on this node.
        judged_at: When the monitors were let go on.
    """

    label: int
    incident: int | None
    answer_by: float
    judge_by: float
    awaited: set[int] = field(default_factory=set)
    digests: dict[int, RankDigest] = field(default_factory=dict)
    overdue: set[int] = field(default_factory=set)
    is_answered: bool = False
    judged_at: float | None = None
    verdict: Verdict = Verdict()  # noqa: RUF009 - a value
    without: str = ""
    notifies: bool = False


class NodeEvidence:
    """Of one launcher.

    Args:
        timeout_s: From a rank's being found overdue to its end, at most; 0: nobody is asked, every
            monitor ends its rank by itself.
    """

    def __init__(self, timeout_s: float = 0.0) -> None:
        self.timeout_s = timeout_s
        self.cycle = -1
        self._host = ""
        self._ranks = range(0)
        """Global ranks of this node."""
        self._world_size = 0
        self._turn_s = 0.0
        self._alive: set[int] = set()
        self._ended: dict[int, tuple[int, float]] = {}
        """Exit codes of local ranks, and when they were reaped."""
        self._stopped: set[int] = set()
        """Those of them that ended when they were being stopped."""
        self._without_monitor: set[int] = set()
        self._number = 0
        """Of the last incident that was heard of."""
        self._waiting: dict[int, float] = {}
        """Local ranks whose monitors wait to go on, and since when they do."""
        self._clock = ""
        """The first that ran out of those; "": a timeout that somebody chose."""
        self._suspect_at: float | None = None
        self._alone_at: float | None = None
        self._is_stopping = False
        self._survey: _Survey | None = None
        self._effects: list[Effect] = []

    def start_cycle(self, formed: Round, place: Place, host: str) -> None:
        """New ranks start; nothing of those before is waited for."""
        self.cycle, self._host, self._world_size = formed.cycle, host, formed.world_size
        self._ranks = range(place.rank_offset, place.rank_offset + place.nproc)
        turn_s = place.group_rank * TURN_S
        self._turn_s = turn_s if turn_s >= _LEAST_TURN_S else 0.0
        self._alive, self._ended, self._waiting = set(range(place.nproc)), {}, {}
        self._stopped = set()
        self._suspect_at = self._alone_at = self._survey = None
        self._is_stopping = False

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        it = self._survey
        survey_at = None
        if it is not None and it.judged_at is None:
            survey_at = it.judge_by if it.is_answered else it.answer_by
        return earliest(self._suspect_at, self._alone_at, survey_at)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about ``event``, in order."""
        self._effects = []
        if not self.timeout_s:
            return self._effects
        match event:
            case MonitorSaid(local_rank, message):
                self._on_message(local_rank, message, now)
            case MonitorGone(local_rank):
                self._without_monitor.add(local_rank)
                self._waits_no_more(local_rank)
                self._lacks({local_rank}, "its monitor died")
            case Exited(local_rank, exit_code):
                self._alive.discard(local_rank)
                self._waits_no_more(local_rank)
                self._ended[local_rank] = exit_code, now
                if self._is_stopping:
                    self._stopped.add(local_rank)
                if self._is_awaited(local_rank):
                    self._show(local_rank, self._of_ended(local_rank, now))
            case Sent():
                self._on_stopping(now)
            case Look(incident=incident, cycle=cycle):
                self._number = max(self._number, incident)
                if cycle == self.cycle:
                    self._on_look(incident, now)
            case Judged(incident=incident, cycle=cycle):
                it = self._survey
                if cycle == self.cycle and it is not None and it.incident == incident:
                    self._conclude(it, event.verdict, event.without, now)
            case Raised() | ExitsNow() | GoesOn():
                pass
            case HostFailed() | Swept() | JobReported() | TimePassed():
                pass
            case _:
                assert_never(event)
        self._on_time(now)
        return self._effects

    # ------------------------------------------------------------ what is heard
    def _on_message(self, local_rank: int, message: said.ToLauncher, now: float) -> None:
        match message:
            case said.Ready():
                self._without_monitor.discard(local_rank)
                self._look_again(local_rank)
            case said.Overdue(cycle=cycle, clock=clock):
                if cycle == self.cycle and local_rank in self._alive:
                    if not self._waiting:
                        self._clock = clock if clock in (PAUSE, STEP) else ""
                    self._waiting[local_rank] = now
                    self._on_overdue(local_rank, clock, now)
            case said.Looked(incident, cycle, digest):
                it = self._survey
                if it is not None and (cycle, incident) == (self.cycle, it.label):
                    it.awaited.discard(local_rank)
                    it.digests[local_rank] = digest
                    if it.judged_at is not None:
                        self._write_down(it)
            case said.Signalled(cycle=cycle) | said.Recovered(cycle) | said.Closed(cycle):
                if cycle == self.cycle:
                    self._waits_no_more(local_rank)

    def _waits_no_more(self, local_rank: int) -> None:
        self._waiting.pop(local_rank, None)
        if not self._waiting:
            self._suspect_at = self._alone_at = None

    def _on_overdue(self, local_rank: int, clock: str, now: float) -> None:
        it = self._survey
        is_fresh = it is not None and it.judged_at is not None and now < it.judged_at + JOINS_S
        if it is not None and is_fresh and belongs_to(clock, it.verdict):
            self._let_go_on(it, {local_rank})
            self._write_down(it)
        elif it is not None and it.judged_at is None:
            self._look_again(local_rank)
        elif self._is_stopping:
            self._begin(now)
        elif self._alone_at is None:
            self._suspect_at = now + self._turn_s
            self._alone_at = now + ALONE_SHARE * self.timeout_s

    def _on_look(self, incident: int, now: float) -> None:
        it = self._survey
        if it is None or it.incident is not None:
            self._begin(now, incident)
            return
        it.incident = incident  # the leader was late, and this node has looked alone
        if it.is_answered:
            self._answer(it)

    def _on_stopping(self, now: float) -> None:
        """Evidence of ranks that are ended anyway is not waited for, but of those that hang."""
        self._is_stopping = True
        it = self._survey
        if it is not None and it.judged_at is None:
            self._leave_out_stopped(it)
        elif self._alone_at is not None:
            self._begin(now)

    # ------------------------------------------------------------ a look
    def _begin(self, now: float, incident: int | None = None) -> None:
        self._suspect_at = self._alone_at = None
        label = self._number + 1 if incident is None else incident
        self._number = max(self._number, label)
        since = min(self._waiting.values(), default=now)
        answer_by, judge_by = (
            at + share * self.timeout_s for at, share in ((now, ANSWER_SHARE), (since, JUDGE_SHARE))
        )
        self._survey = it = _Survey(label, incident, min(answer_by, judge_by), judge_by)
        for local_rank in self._ended:
            gone_s = round(now - self._ended[local_rank][1], 3)
            it.digests[local_rank] = self._of_ended(local_rank, since, gone_s)
        it.awaited |= self._alive
        if self._is_stopping:
            self._leave_out_stopped(it)
        self._look(it, set(it.awaited))

    def _look(self, it: _Survey, local_ranks: set[int]) -> None:
        it.awaited |= local_ranks
        self._lacks(local_ranks & self._without_monitor, "it has no monitor")
        if asked := tuple(sorted(local_ranks - self._without_monitor)):
            within_s = LOOK_SHARE * self.timeout_s
            self._effects.append(LookAt(it.label, self.cycle, asked, within_s))

    def _look_again(self, local_rank: int) -> None:
        """Its evidence is missing so far, and its monitor is there (again)."""
        it = self._survey
        if it is None or it.judged_at is not None or local_rank not in self._alive - it.awaited:
            return
        is_wanted = local_rank in self._waiting or not self._is_stopping
        so_far = it.digests[local_rank]
        if is_wanted and (so_far.end or so_far.lacks):
            self._look(it, {local_rank})

    def _nothing_of(self, local_rank: int, **why: Any) -> RankDigest:
        rank = self._ranks[local_rank]
        return RankDigest(rank=rank, node=self._host, local_rank=local_rank, **why)

    def _of_ended(self, local_rank: int, since: float, gone_s: float = 0.0) -> RankDigest:
        """What ended well, or long before the incident, is not blamed for it: see hang_kind.py."""
        if local_rank in self._stopped:
            return self._nothing_of(local_rank, end=BEING_STOPPED, stopped_s=gone_s)
        exit_code, at = self._ended[local_rank]
        end = ENDED_BEFORE if at < since - self.timeout_s else ENDED
        before_s = round(max(0.0, since - at), 3)
        return self._nothing_of(
            local_rank,
            end=end if exit_code else ENDED_WELL,
            exit_code=exit_code,
            ended_before_s=before_s,
            stopped_s=gone_s,
        )

    def _lacks(self, local_ranks: set[int], why: str) -> None:
        for local_rank in filter(self._is_awaited, [*local_ranks]):
            self._show(local_rank, self._nothing_of(local_rank, lacks=why))

    def _leave_out_stopped(self, it: _Survey) -> None:
        """Those that are ended anyway; the ones that hang are looked at all the same."""
        for local_rank in it.awaited - self._waiting.keys():
            self._show(local_rank, self._nothing_of(local_rank, end=BEING_STOPPED))

    def _show(self, local_rank: int, digest: RankDigest) -> None:
        """In the place of what its monitor would have seen."""
        assert self._survey is not None
        self._survey.awaited.discard(local_rank)
        self._survey.digests[local_rank] = digest

    def _is_awaited(self, local_rank: int) -> bool:
        return self._survey is not None and local_rank in self._survey.awaited

    # ------------------------------------------------------------ what follows
    def _answer(self, it: _Survey) -> None:
        it.is_answered = True
        if it.incident is not None:
            digests = tuple(it.digests.values())
            self._effects.append(RanksLooked(self.cycle, it.incident, digests))

    def _let_go_on(self, it: _Survey, local_ranks: set[int]) -> None:
        for local_rank in local_ranks & self._waiting.keys():
            del self._waiting[local_rank]
            it.overdue.add(local_rank)
        asked = tuple(sorted(local_ranks))
        self._effects.append(LetGoOn(it.label, self.cycle, asked, it.verdict))

    def _conclude(self, it: _Survey, verdict: Verdict, without: str, now: float) -> None:
        self._lacks(set(it.awaited), "its monitor had not answered when the verdict came")
        it.verdict, it.without, it.is_answered = verdict, without, True
        if it.judged_at is None:
            it.judged_at = now
            self._let_go_on(it, self._alive)
        self._write_down(it)

    def _write_down(self, it: _Survey) -> None:
        whose = it.label if it.incident is None else it.incident, self.cycle
        overdue, digests = tuple(sorted(it.overdue)), {one.rank: one for one in it.digests.values()}
        over = IncidentOver(*whose, overdue, it.verdict, digests, it.without, it.notifies)
        if it.incident is not None:
            over = IncidentOver(**{**vars(over), "is_elsewhere": True})
        self._effects.append(over)

    def _conclude_alone(self, it: _Survey, now: float) -> None:
        if not self._waiting:  # nobody is ended for it here
            it.judged_at = now
            self._let_go_on(it, self._alive)
            return
        missing = {}
        if others := {*range(self._world_size)} - {*self._ranks}:
            why = f"the leader sent no verdict within {JUDGE_SHARE * self.timeout_s:g} s"
            why = "the ranks of this node are being stopped" if self._is_stopping else why
            others_miss = Missing(text_of(others), f"not asked: {why}", is_asked=False)
            missing["the other nodes"] = others_miss
        digests = {digest.rank: digest for digest in it.digests.values()}
        why_not = "the leader of the job has not judged it"
        verdict = verdict_on(digests, missing, self._clock, why_not=why_not)
        # No other node may know of it. When a cycle is stopped, ranks of many nodes may be overdue
        # that only wait: then the node of a culprit.
        names_one_here = not {*verdict.culprits}.isdisjoint(self._ranks)
        it.notifies = names_one_here or not (self._is_stopping and missing)
        it.notifies = it.notifies and not verdict.is_pause
        self._conclude(it, verdict, what_is_missing(missing), now)

    def _on_time(self, now: float) -> None:
        if self._suspect_at is not None and now >= self._suspect_at:
            self._suspect_at = None
            rank = self._ranks[min(self._waiting)]
            overdue = RankOverdue(self.cycle, rank, self._number, self._clock)
            self._effects.append(overdue)
        if self._alone_at is not None and now >= self._alone_at:
            self._begin(now)
        it = self._survey
        if it is None or it.judged_at is not None:
            return
        if now >= it.answer_by and it.awaited:
            waited_s = ANSWER_SHARE * self.timeout_s
            self._lacks(it.awaited, f"its monitor did not answer within {waited_s:g} s")
        if not it.awaited and not it.is_answered:
            self._answer(it)
        if it.is_answered and (self._is_stopping or now >= it.judge_by):
            self._conclude_alone(it, now)
