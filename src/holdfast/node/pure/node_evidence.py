"""Evidence of a node's ranks at an incident: asked for, collected, answered.

                 a rank is overdue              Look                    all answered, or timeout
    AT REST ──────────────────────► SUSPECTS ─────────► LOOKING ────────────────┐
       ▲  └── Look: a rank is, on another node ─────────► ▲  ▲                    ▼
       │                               └─── no Look came ─┘  └─ to stop      ANSWERED
       └── the monitors go on ◄── Judged, or no verdict came ─────────────────────┘

The monitor of an overdue rank takes its evidence at once, and ends it after the verdict, or when
the timeout of evidence is over. Meanwhile all ranks of the job give evidence: in a collective job
the first overdue rank is often a victim. The leader opens the incident and judges it
(:mod:`holdfast.job.pure.incidents`). Without an answer of the leader, or while its ranks are being
stopped, a launcher judges from its own ranks alone. A helper of ``node.py``.

K-2: each missing piece of evidence is named with the reason: a rank's in its digest, other nodes'
beside the verdict. All waits end with the timeout, from the first overdue rank, or from the Look.

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
    Absence,
    Missing,
    RankDigest,
    Verdict,
)
from holdfast.evidence.pure.stall_rules import belongs_to
from holdfast.job.pure.incidents import verdict_on
from holdfast.job.pure.job_words import missing_nodes
from holdfast.job.pure.membership import CyclePlace, Digests, Judged, OpenIncident, Round, Suspect
from holdfast.job.pure.timing import ALONE_SHARE, ANSWER_SHARE, JUDGE_SHARE, LOOK_SHARE
from holdfast.node.pure.rank_life import (
    CycleRanks,
    Exited,
    MonitorGone,
    MonitorSaid,
    Sent,
    ToMonitors,
)
from holdfast.page.pure.clocks import OF_STEPS, PAUSE
from holdfast.watch.pure import monitor_messages

TURN_S = 50e-6
"""For each group rank: on thousands of nodes, ranks that wait for each other are overdue at once,
and one report is enough for the leader."""
_LEAST_TURN_S = 0.002

Event = MonitorSaid | MonitorGone | Exited | Sent | OpenIncident | Judged | TimePassed


# ---------------------------------------------------------------- effects
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
            incidents its node does (``launcher.py``).
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


Effect = Suspect | Digests | ToMonitors | IncidentOver


@dataclass
class _Survey:
    """One incident here.

    Attributes:
        label: Its number in messages to monitors.
        incident: Its number in the job; None: the leader has not opened it.
        answer_by, judge_by: Until when evidence, and a verdict, are waited for.
        awaited: Local ranks whose monitors have not answered.
        digests: By local rank.
        overdue: Local ranks that its verdict was given to.
        is_gentle: It is for a line of the log: see :class:`.monitor_messages.CollectEvidence`.
        is_answered: The evidence of this node is complete.
        judged_at: When the monitors went on.
    """

    label: int
    incident: int | None
    answer_by: float
    judge_by: float
    awaited: set[int] = field(default_factory=set)
    digests: dict[int, RankDigest] = field(default_factory=dict)
    overdue: set[int] = field(default_factory=set)
    is_gentle: bool = False
    is_answered: bool = False
    judged_at: float | None = None
    verdict: Verdict = Verdict()  # noqa: RUF009 - a value
    without: str = ""
    notifies: bool = False


class NodeEvidence:
    """Of one launcher.

    Args:
        timeout_s: From a rank's being found overdue to its end, at most; 0: no evidence of other
            ranks is taken, and each monitor ends its rank by itself.
        host: Name of this host.
    """

    def __init__(self, timeout_s: float = 0.0, host: str = "") -> None:
        self.timeout_s = timeout_s
        self._host = host
        self._cycle = -1
        self._here = CycleRanks({})
        self._node = ""
        """The name of this launcher in the cycle."""
        self._world_size = 0
        self._turn_s = 0.0
        self._without_monitor: set[int] = set()
        self._number = 0
        """Of the last known incident."""
        self._waiting: dict[int, tuple[float, str]] = {}
        """Local ranks whose monitors wait to go on, since when they do, and the clock that ran out.
        """
        self._suspect_at: float | None = None
        self._alone_at: float | None = None
        self._survey: _Survey | None = None
        self._effects: list[Effect] = []

    def start_cycle(self, formed: Round, place: CyclePlace, ranks: CycleRanks) -> None:
        """New ``ranks`` start; evidence of earlier ones is not waited for.

        They are as they are after each event when :meth:`handle` gets it.
        """
        self._cycle, self._node, self._world_size = formed.cycle, place.node, formed.world_size
        self._here, self._waiting = ranks, {}
        turn_s = place.group_rank * TURN_S
        self._turn_s = turn_s if turn_s >= _LEAST_TURN_S else 0.0
        self._suspect_at = self._alone_at = self._survey = None

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        it = self._survey
        survey_at = None
        if it is not None and it.judged_at is None:
            survey_at = it.judge_by if it.is_answered else it.answer_by
        return earliest(self._suspect_at, self._alone_at, survey_at)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The effects of ``event``, in order."""
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
            case Exited(local_rank):
                self._waits_no_more(local_rank)
                if self._is_awaited(local_rank):
                    self._show(local_rank, self._of_ended(local_rank, now))
            case Sent():
                self._on_stopping(now)
            case OpenIncident(incident=incident, cycle=cycle, is_gentle=is_gentle):
                self._number = max(self._number, incident)
                if cycle == self._cycle:
                    self._on_look(incident, now, is_gentle=is_gentle)
            case Judged(incident=incident, cycle=cycle):
                it = self._survey
                if cycle == self._cycle and it is not None and it.incident == incident:
                    self._conclude(it, event.verdict, event.without, now)
            case TimePassed():
                pass
            case _:
                assert_never(event)
        self._on_time(now)
        return self._effects

    # ------------------------------------------------------------ messages of monitors
    def _on_message(
        self, local_rank: int, message: monitor_messages.ToLauncher, now: float
    ) -> None:
        match message:
            case monitor_messages.MonitorReady():
                self._without_monitor.discard(local_rank)
                self._look_again(local_rank)
            case monitor_messages.Overdue(cycle=cycle, clock=clock):
                if cycle == self._cycle and local_rank in self._here.alive:
                    self._waiting[local_rank] = now, clock
                    self._on_overdue(local_rank, clock, now)
            case monitor_messages.EvidenceCollected(incident, cycle, digest):
                it = self._survey
                if it is not None and (cycle, incident) == (self._cycle, it.label):
                    it.awaited.discard(local_rank)
                    it.digests[local_rank] = digest
                    if it.judged_at is not None:
                        self._write_down(it)
            case (
                monitor_messages.Signalled(cycle=cycle)
                | monitor_messages.Recovered(cycle)
                | monitor_messages.Closed(cycle)
            ):
                if cycle == self._cycle:
                    self._waits_no_more(local_rank)

    @property
    def _clock(self) -> str:
        """The first that ran out of ranks that wait; "": one whose timeout the user chose."""
        of_steps = [clock for _, clock in self._waiting.values() if clock in OF_STEPS]
        return of_steps[0] if len(of_steps) == len(self._waiting) > 0 else ""

    def _waits_no_more(self, local_rank: int) -> None:
        self._waiting.pop(local_rank, None)
        if not self._waiting:
            self._suspect_at = self._alone_at = None

    def _on_overdue(self, local_rank: int, clock: str, now: float) -> None:
        it = self._survey
        is_fresh = (
            it is not None
            and it.judged_at is not None
            and now < it.judged_at + monitor_messages.JOINS_S
        )
        if it is not None and is_fresh and belongs_to(clock, it.verdict):
            self._go_on(it, {local_rank})
            self._write_down(it)
        elif it is not None and it.judged_at is None:
            self._look_again(local_rank)
        elif self._here.is_stopping:
            self._begin(now)
        elif self._alone_at is None:
            self._suspect_at = now + self._turn_s
            self._alone_at = now + ALONE_SHARE * self.timeout_s

    def _on_look(self, incident: int, now: float, *, is_gentle: bool) -> None:
        it = self._survey
        if it is None or it.incident is not None:
            self._begin(now, incident, is_gentle=is_gentle)
            return
        it.incident = incident  # the leader was late, and this node has looked alone
        if it.is_answered:
            self._answer(it)

    def _on_stopping(self, now: float) -> None:
        """Evidence of ranks that are ended anyway is not waited for, but of those that hang."""
        it = self._survey
        if it is not None and it.judged_at is None:
            self._leave_out_stopped(it)
        elif self._alone_at is not None:
            self._begin(now)

    # ------------------------------------------------------------ a look
    def _begin(self, now: float, incident: int | None = None, *, is_gentle: bool = False) -> None:
        self._suspect_at = self._alone_at = None
        label = self._number + 1 if incident is None else incident
        is_gentle = self._clock == PAUSE if incident is None else is_gentle
        self._number = max(self._number, label)
        since = min((at for at, _ in self._waiting.values()), default=now)
        answer_by, judge_by = (
            at + share * self.timeout_s for at, share in ((now, ANSWER_SHARE), (since, JUDGE_SHARE))
        )
        by = min(answer_by, judge_by), judge_by
        self._survey = it = _Survey(label, incident, *by, is_gentle=is_gentle)
        for local_rank, life in self._here.ranks.items():
            if life.is_gone:
                gone_s = round(now - life.ended_at, 3)
                it.digests[local_rank] = self._of_ended(local_rank, since, gone_s)
        it.awaited |= self._here.alive
        if self._here.is_stopping:
            self._leave_out_stopped(it)
        self._look(it, set(it.awaited))

    def _look(self, it: _Survey, local_ranks: set[int]) -> None:
        it.awaited |= local_ranks
        self._lacks(local_ranks & self._without_monitor, "it has no monitor")
        if asked := tuple(sorted(local_ranks - self._without_monitor)):
            ranks, pids = self._here.global_ranks, self._here.pids
            about, within_s = (it.label, self._cycle), LOOK_SHARE * self.timeout_s
            looks = {
                k: monitor_messages.CollectEvidence(
                    *about, ranks[k], pids.get(k, 0), within_s, it.is_gentle
                )
                for k in asked
            }
            self._effects.append(ToMonitors(looks))

    def _look_again(self, local_rank: int) -> None:
        """Its evidence is missing so far, and its monitor is there (again)."""
        it, alive = self._survey, self._here.alive
        if it is None or it.judged_at is not None or local_rank not in alive - it.awaited:
            return
        is_wanted = local_rank in self._waiting or not self._here.is_stopping
        so_far = it.digests[local_rank]
        if is_wanted and (so_far.end or so_far.lacks):
            self._look(it, {local_rank})

    def _nothing_of(self, local_rank: int, **why: Any) -> RankDigest:
        rank = self._here.global_ranks[local_rank]
        return RankDigest(rank=rank, node=self._host, local_rank=local_rank, **why)

    def _of_ended(self, local_rank: int, since: float, gone_s: float = 0.0) -> RankDigest:
        """An end that went well, or was long before the incident, did not cause it."""
        life = self._here.ranks[local_rank]
        if life.ended_stopping:
            return self._nothing_of(local_rank, end=BEING_STOPPED, stopped_s=gone_s)
        end = ENDED_BEFORE if life.ended_at < since - self.timeout_s else ENDED
        return self._nothing_of(
            local_rank,
            end=end if life.exit_code else ENDED_WELL,
            exit_code=life.exit_code,
            ended_before_s=round(max(0.0, since - life.ended_at), 3),
            stopped_s=gone_s,
        )

    def _lacks(self, local_ranks: set[int], why: str) -> None:
        for local_rank in filter(self._is_awaited, [*local_ranks]):
            self._show(local_rank, self._nothing_of(local_rank, lacks=why))

    def _leave_out_stopped(self, it: _Survey) -> None:
        """Take no evidence of ranks that are ended anyway, but still of those that hang."""
        for local_rank in it.awaited - self._waiting.keys():
            self._show(local_rank, self._nothing_of(local_rank, end=BEING_STOPPED))

    def _show(self, local_rank: int, digest: RankDigest) -> None:
        """Use this digest instead of one of its monitor."""
        assert self._survey is not None
        self._survey.awaited.discard(local_rank)
        self._survey.digests[local_rank] = digest

    def _is_awaited(self, local_rank: int) -> bool:
        return self._survey is not None and local_rank in self._survey.awaited

    # ------------------------------------------------------------ answer and verdict
    def _answer(self, it: _Survey) -> None:
        it.is_answered = True
        if it.incident is not None:
            digests = tuple(it.digests.values())
            self._effects.append(Digests(self._node, self._cycle, it.incident, digests))

    def _go_on(self, it: _Survey, local_ranks: set[int]) -> None:
        waiting = local_ranks & self._waiting.keys()
        apart = {k for k in waiting if not belongs_to(self._waiting[k][1], it.verdict)}
        for local_rank in waiting - apart:
            del self._waiting[local_rank]
            it.overdue.add(local_rank)
        verdict = monitor_messages.Proceed(it.label, self._cycle, it.verdict)
        self._effects.append(ToMonitors(dict.fromkeys(sorted(local_ranks - apart), verdict)))

    def _conclude(self, it: _Survey, verdict: Verdict, without: str, now: float) -> None:
        self._lacks(set(it.awaited), "its monitor had not answered when the verdict came")
        it.verdict, it.without, it.is_answered = verdict, without, True
        if it.judged_at is None:
            it.judged_at = now
            self._go_on(it, self._here.alive)
            if self._waiting:  # for a verdict of their own
                self._suspect_at, self._alone_at = now, now + ALONE_SHARE * self.timeout_s
        self._write_down(it)

    def _write_down(self, it: _Survey) -> None:
        number = it.label if it.incident is None else it.incident
        overdue, digests = tuple(sorted(it.overdue)), {one.rank: one for one in it.digests.values()}
        over = overdue, it.verdict, digests, it.without, it.notifies
        is_elsewhere = it.incident is not None
        self._effects.append(IncidentOver(number, self._cycle, *over, is_elsewhere=is_elsewhere))

    def _conclude_alone(self, it: _Survey, now: float) -> None:
        if not self._waiting:  # it ends no rank of this node
            it.judged_at = now
            self._go_on(it, self._here.alive)
            return
        missing = {}
        if others := {*range(self._world_size)} - {*self._here.global_ranks}:
            why = f"the leader sent no verdict within {JUDGE_SHARE * self.timeout_s:g} s"
            why = "the ranks of this node are being stopped" if self._here.is_stopping else why
            others_miss = Missing(text_of(others), Absence.NOT_ASKED, f"not asked: {why}")
            missing["the other nodes"] = others_miss
        digests = {digest.rank: digest for digest in it.digests.values()}
        why_not = "the leader of the job has not judged it"
        clock = PAUSE if it.is_gentle else self._clock
        verdict = verdict_on(digests, missing, clock, why_not=why_not)
        # No other node may know of it. When a cycle is stopped, ranks of many nodes may be overdue
        # that only wait: then the node of a culprit.
        names_one_here = not {*verdict.culprits}.isdisjoint(self._here.global_ranks)
        it.notifies = names_one_here or not (self._here.is_stopping and missing)
        it.notifies = it.notifies and not verdict.is_pause
        self._conclude(it, verdict, missing_nodes(missing), now)

    def _on_time(self, now: float) -> None:
        if self._suspect_at is not None and now >= self._suspect_at:
            self._suspect_at = None
            rank = self._here.global_ranks[min(self._waiting)]
            suspect = Suspect(self._node, self._cycle, rank, self._number, self._clock)
            self._effects.append(suspect)
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
        if it.is_answered and (self._here.is_stopping or now >= it.judge_by):
            self._conclude_alone(it, now)
