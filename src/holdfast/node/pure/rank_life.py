"""The state of each rank of a node, as its launcher sees it: a helper of ``node.py``.

A rank's monitor finds it hung, takes evidence and ends it; the launcher asks ranks to end, and ends
them (both climb ``base/pure/kill_ladder.py``). The launcher learns of the first from the monitor
and of the end from the kernel, in either order. ::

                    found hung                    evidence taken
    RUNNING ───────────────────────► SUSPECTED ───────────────────► CONDEMNED
       │ ▲ └──► SIGNALLED                │  its monitor signals it,     │
       │ │      the launcher asks it     │  the launcher kills it       │ SIGKILL
       │ └── recovered ──────────────────┴──────────────────────────────┤
       ▼                                                                ▼
      GONE ◄── reaped, in whatever state     STUCK ◄─UNKILLABLE_S─ KILLED

K-2: a failure is held back while a monitor takes evidence of another rank, because the node stops
the others for it, and a stopped rank shows no stacks. Evidence delays it by at most
:data:`WRITING_S` beyond its timeout.

Pure. Times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.base.pure.budget import Budget
from holdfast.base.pure.common_events import Note, TimePassed
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.kill_ladder import EVIDENCE_S, SIGKILL, UNKILLABLE_S
from holdfast.base.pure.never import assert_never
from holdfast.base.pure.value import Value
from holdfast.evidence.pure.failure import was_asked
from holdfast.job.pure.member_messages import JobReported, NodeReported
from holdfast.watch.pure import monitor_messages
from holdfast.watch.pure.rank_messages import ExitsNow, Uncaught

WRITING_S = 2.0
"""How long evidence may hold a failure back beyond its timeout: its monitor writes it to a file."""
MONITOR_DEATHS = 5
MONITOR_DEATHS_PERIOD_S = 60.0
"""A monitor that dies more often than this is not started again: something is wrong with it."""


# ---------------------------------------------------------------- events
class MonitorSaid(Value):
    """A message from the monitor of a local rank; perhaps a late one, of an earlier cycle."""

    local_rank: int
    message: monitor_messages.ToLauncher


class MonitorGone(Value):
    """The process of a rank's monitor has ended; a new one may find the same hang again."""

    local_rank: int


class RankSaid(Value):
    """A message from a rank that an exception ends (decision 44).

    None: its connection closed before :class:`.ExitsNow`, so it became another program, or ends
    otherwise than with exit code 1.
    """

    local_rank: int
    message: Uncaught | ExitsNow | None


class Sent(Value):
    """The launcher has sent a signal to ranks of this cycle, since ``at``; None: now."""

    local_ranks: tuple[int, ...]
    signum: int
    at: float | None = None


class Exited(Value):
    """A rank of this cycle was reaped; the messages of its monitor until then came before.

    ``exit_code`` is -N for death by signal N.
    """

    local_rank: int
    exit_code: int


Event = MonitorSaid | MonitorGone | RankSaid | Sent | Exited | JobReported | TimePassed


# ---------------------------------------------------------------- effects
class StartMonitor(Value):
    """Start a new monitor in the place of one that died."""

    local_rank: int


class EndHandlers(Value):
    """SIGKILL for a rank that has raised: its exit handlers have not ended within ``after_s``."""

    local_rank: int
    after_s: float


class ToMonitors(Value):
    """Send these messages to monitors, by local rank."""

    messages: Mapping[
        int,
        monitor_messages.Await
        | monitor_messages.Stopping
        | monitor_messages.CollectEvidence
        | monitor_messages.Proceed,
    ]


class Deliver(Value):
    """Copy the evidence of a cycle to the run folder; ``is_over``: its staging folder may go."""

    cycle: int
    is_over: bool = False


# ---------------------------------------------------------------- effects, for the node itself
class FailedBeforeExit(Value):
    """This rank has failed, and is not reaped yet: it was killed, or its exit handlers have run.

    The kernel takes 75 to 170 ms for each GiB of a process's memory before it reports its end; the
    other ranks are stopped without waiting for that.
    """

    local_rank: int


class OnlyStuckLeft(Value):
    """All ranks that are alive have outlived SIGKILL; the last was killed at ``killed_at``."""

    killed_at: float


Effect = (
    Exited
    | FailedBeforeExit
    | OnlyStuckLeft
    | StartMonitor
    | EndHandlers
    | ToMonitors
    | NodeReported
    | Deliver
    | Note
)
"""``Exited``: the event, when it is not held back any more."""


class LifeState(enum.Enum):
    """The state of a rank; see the picture in the module's docstring."""

    RUNNING = "running"
    SIGNALLED = "signalled"
    SUSPECTED = "suspected"
    CONDEMNED = "condemned"
    KILLED = "killed"
    STUCK = "stuck"
    GONE = "gone"


@dataclass
class RankLife:
    """One rank of one cycle.

    Attributes:
        hang: The verdict of its monitor.
        host_problem: Why the launcher killed it, if not to stop it.
        suspected_at: When it was found hung, while its evidence is awaited.
        is_condemned: Its monitor has taken evidence: whatever its exit code, it has failed.
        is_written_about: Its monitor may still write to the incident.
        signals: Signals that the launcher has sent it.
        asked_at: When it sent the first of these.
        killed_at: When it was sent SIGKILL.
        has_outlived: Its monitor reports that it has outlived that.
        kill_is_known: The node knows that it was killed, or has done it.
        exit_code: Of its process, which was reaped; None: it was not.
        ended_at: When it was.
        ended_stopping: When its node's ranks were being stopped.
        has_reported: Its monitor watches it, or did.
        makes_steps: Its monitor watches it by its optimizer's steps alone.
        launcher_slept_s: The monitors have ended it, for its launcher did nothing for so long.
        raised_at: When it reported the exception that ends it; None: it has not.
        exits_now: Its exit handlers have run after that.
        exit_handlers_s: They were ended after so long.
    """

    hang: monitor_messages.Overdue | None = None
    host_problem: str | None = None
    suspected_at: float | None = None
    is_condemned: bool = False
    is_written_about: bool = False
    signals: set[int] = field(default_factory=set)
    asked_at: float | None = None
    killed_at: float | None = None
    has_outlived: bool = False
    kill_is_known: bool = False
    exit_code: int | None = None
    ended_at: float = 0.0
    ended_stopping: bool = False
    has_reported: bool = False
    makes_steps: bool = False
    launcher_slept_s: float | None = None
    raised_at: float | None = None
    exits_now: bool = False
    exit_handlers_s: float | None = None

    @property
    def is_gone(self) -> bool:
        """It was reaped."""
        return self.exit_code is not None

    def state(self, now: float) -> LifeState:
        """Where it is."""
        if self.is_gone:
            return LifeState.GONE
        if self.killed_at is not None:
            is_stuck = self.has_outlived or now >= self.killed_at + UNKILLABLE_S
            return LifeState.STUCK if is_stuck else LifeState.KILLED
        if self.suspected_at is not None:
            return LifeState.SUSPECTED
        if self.is_condemned:
            return LifeState.CONDEMNED
        return LifeState.SIGNALLED if self.signals else LifeState.RUNNING

    @property
    def has_raised(self) -> bool:
        """It ends because of its exception, whatever is sent to it."""
        return self.exits_now or self.exit_handlers_s is not None

    def was_asked(self, exit_code: int) -> bool:
        """Whether the launcher's signals explain such an end, so that it is no failure."""
        is_failure = self.hang is not None or self.host_problem is not None or self.has_raised
        return not is_failure and was_asked(exit_code, self.signals)


@dataclass
class CycleRanks:
    """The ranks of this node in one cycle, by local rank."""

    ranks: dict[int, RankLife]
    global_ranks: range = range(0)
    pids: Mapping[int, int] = field(default_factory=dict)
    is_stopping: bool = False
    """Its ranks were signalled: no failure is held back any more."""
    is_given_up: bool = False
    """Only ranks that have outlived SIGKILL are left, and the node knows."""
    is_undelivered: bool = False
    """It is over, and its folder of evidence is still there."""
    are_awaited: bool = False
    """All of its ranks are expected to report."""

    @property
    def alive(self) -> set[int]:
        """Local ranks that were not reaped."""
        return {local_rank for local_rank, life in self.ranks.items() if not life.is_gone}


class RankLives:
    """The ranks of one node: those of this cycle, and of earlier ones while they matter.

    Args:
        quiet_s: Warn once if no rank has connected to its monitor for so long, or if a rank has not
            reported so long after another one; None: never.
        evidence_s: How long a monitor may wait for evidence.
        exception_grace_s: How long exit handlers may take after an exception.
        awaits_reports: A rank that does not report after another one has is ended.

    Attributes:
        held_s: How long a failure is held back for evidence of another rank, at most.
        cycle: This one; -1: there was none.
        here: Its ranks.
    """

    def __init__(
        self,
        quiet_s: float | None = None,
        evidence_s: float = EVIDENCE_S,
        exception_grace_s: float = math.inf,
        *,
        awaits_reports: bool = False,
    ) -> None:
        self.cycle = -1
        self.here = CycleRanks({})
        self.held_s = evidence_s + WRITING_S
        self._quiet_s = quiet_s
        self._exception_grace_s = exception_grace_s
        self._awaits_reports = awaits_reports
        self._call_by: float | None = None
        self._report_by: float | None = None
        self._has_warned_of_quiet = False
        self._cycles: dict[int, CycleRanks] = {}
        self._held: list[FailedBeforeExit | Exited] = []
        self._monitor_budgets: dict[int, Budget] = {}
        self._unwatched: set[int] = set()
        self._effects: list[Effect] = []

    @property
    def ranks(self) -> Mapping[int, RankLife]:
        """Of this cycle, by local rank."""
        return self.here.ranks

    def start_cycle(self, cycle: int, ranks: range, now: float) -> None:
        """New ``ranks``, by their global numbers. No earlier one is alive, or waited for."""
        if self.cycle < 0 and self._quiet_s is not None:
            self._call_by = now + self._quiet_s
        self._report_by = None
        kept = {n: it for n, it in self._cycles.items() if n == self.cycle or it.is_undelivered}
        self.here = CycleRanks({k: RankLife() for k in range(len(ranks))}, ranks)
        self._cycles = {**kept, cycle: self.here}
        self.cycle = cycle

    def undelivered(self) -> list[int]:
        """Cycles that are over, while monitors may still write to their evidence."""
        return [cycle for cycle, it in self._cycles.items() if it.is_undelivered]

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        until = self._held_until() if self._held or self._killed_silently() else None
        by = self._call_by, self._report_by
        return earliest(until, *by, *(due for _, due in self._running_handlers()))

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The effects of ``event``, in order."""
        self._effects = []
        match event:
            case RankSaid(local_rank, message):
                self._on_rank_said(local_rank, message, now)
            case Sent(local_ranks, signum, at):
                self.here.is_stopping = True
                self._report_by = None
                for local_rank in local_ranks:
                    self._sent(self.here.ranks[local_rank], signum, now)
                if local_ranks and signum != SIGKILL:
                    # They may be saving their work: their monitors leave them their grace.
                    stopping = monitor_messages.Stopping(self.cycle, now if at is None else at)
                    self._effects.append(ToMonitors(dict.fromkeys(local_ranks, stopping)))
            case Exited(local_rank, exit_code):
                self._exited(local_rank, exit_code, now)
            case MonitorGone(local_rank):
                for cycle in self._cycles:
                    self._close(cycle, local_rank)
                self._replace_monitor(local_rank, now)
            case MonitorSaid(_, monitor_messages.RankConnected()):
                self._call_by = None
            case MonitorSaid(local_rank, monitor_messages.WatchBegan(cycle, by_steps)):
                if cycle == self.cycle and by_steps:  # others may make none
                    self.here.ranks[local_rank].makes_steps = True
                elif cycle == self.cycle:
                    self._reported(local_rank, now)
            case MonitorSaid(_, monitor_messages.LeaseOver(cycle, slept_s)):
                lives = self._cycles[cycle].ranks if cycle in self._cycles else {}
                for life in (life for life in lives.values() if not life.is_gone):
                    life.launcher_slept_s = slept_s
            case JobReported(cycle):
                if cycle == self.cycle:
                    self._await_reports(now)
            case MonitorSaid(local_rank, message):
                if isinstance(message, monitor_messages.Verdict) and message.cycle in self._cycles:
                    self._on_verdict(local_rank, message, now)
            case TimePassed():
                pass
            case _:
                assert_never(event)
        for local_rank, due in self._running_handlers():
            if now >= due:
                self._end_handlers(local_rank, now)
        until = self._held_until()
        if until is None or now >= until:
            for local_rank in self._killed_silently():
                self.here.ranks[local_rank].kill_is_known = True
                self._effects.append(FailedBeforeExit(local_rank))
            self._effects += self._held
            self._held.clear()
            self._give_up_if_only_stuck()
        self._warn_of_quiet_ranks(now)
        return self._effects

    def host_failed(self, local_rank: int, problem: str, now: float) -> None:
        """The launcher kills this rank: ``problem`` is wrong with its host."""
        life = self.here.ranks[local_rank]
        life.host_problem, life.killed_at, life.kill_is_known = problem, now, True

    def swept(self) -> list[Effect]:
        """No process of this cycle is alive, or waited for any more: deliver its evidence.

        Its folder is freed when no monitor writes to it any more: a monitor learns of its rank's
        end when the launcher does, and may be about to note it in the incident.
        """
        self._effects = []
        self.here.is_undelivered = True
        self._deliver(self.cycle)
        return self._effects

    def _warn_of_quiet_ranks(self, now: float) -> None:
        """Once each: none has called, or some have not."""
        if self._call_by is not None and now >= self._call_by:
            self._call_by = None
            text = (
                f"no rank has called RankMonitorClient.init_workload_monitoring() within "
                f"{self._quiet_s:.0f} s: hangs of this job are not being watched"
            )
            self._effects.append(Note("warning", text))
        if self._report_by is not None and now >= self._report_by:
            self._report_by = None
            quiet = [k for k, life in self.here.ranks.items() if _is_quiet(life)]
            if not quiet:
                return
            self._has_warned_of_quiet = True
            which = f"{'s' if len(quiet) > 1 else ''} {', '.join(map(str, quiet))}"
            text = (
                f"local rank{which} did not call RankMonitorClient.init_workload_monitoring() "
                f"within {self._quiet_s:.0f} s after the first rank that did: hangs of such ranks "
                "are not being watched. --ft-first-call-timeout kills a rank that does not call"
            )
            self._effects.append(Note("warning", text))

    # ------------------------------------------------------------ turns
    def _on_rank_said(
        self, local_rank: int, message: Uncaught | ExitsNow | None, now: float
    ) -> None:
        life = self.here.ranks[local_rank]
        match message:
            case Uncaught():
                if not (life.signals or life.is_gone or life.is_condemned):
                    life.raised_at = now
            case ExitsNow():
                if life.raised_at is not None and life.killed_at is None and not life.is_gone:
                    life.exits_now = True
                    self._held.append(FailedBeforeExit(local_rank))
            case None:
                if not life.has_raised:
                    life.raised_at = None
            case _:
                assert_never(message)

    def _sent(self, life: RankLife, signum: int, now: float) -> None:
        life.signals.add(signum)
        life.asked_at = now if life.asked_at is None else life.asked_at
        if signum == SIGKILL and life.killed_at is None:
            life.killed_at, life.kill_is_known = now, True

    def _running_handlers(self) -> list[tuple[int, float]]:
        """Ranks whose exit handlers run after an exception, and until when they may."""
        if self._exception_grace_s == math.inf:
            return []
        return [
            (local_rank, life.raised_at + self._exception_grace_s)
            for local_rank, life in self.here.ranks.items()
            if life.raised_at is not None
            and not (life.has_raised or life.is_gone or life.killed_at is not None)
        ]

    def _end_handlers(self, local_rank: int, now: float) -> None:
        life = self.here.ranks[local_rank]
        life.exit_handlers_s = self._exception_grace_s
        life.killed_at, life.kill_is_known = now, True
        self._effects.append(EndHandlers(local_rank, self._exception_grace_s))
        self._held.append(FailedBeforeExit(local_rank))

    def _reported(self, local_rank: int, now: float) -> None:
        ranks = self.here.ranks
        is_first = not any(life.has_reported for life in ranks.values())
        ranks[local_rank].has_reported = True
        if is_first:
            self._effects.append(NodeReported(self.cycle))
        self._await_reports(now)

    def _await_reports(self, now: float) -> None:
        if self.here.are_awaited or self.here.is_stopping:
            return
        self.here.are_awaited = True
        if not self._awaits_reports:
            may_warn = self._quiet_s is not None and not self._has_warned_of_quiet
            self._report_by = now + (self._quiet_s or 0.0) if may_warn else None
            return
        quiet = [k for k, it in self.here.ranks.items() if not (it.has_reported or it.is_gone)]
        if quiet:
            ranks, pids = self.here.global_ranks, self.here.pids
            messages = {
                k: monitor_messages.Await(self.cycle, ranks[k], pids.get(k, 0), now) for k in quiet
            }
            self._effects.append(ToMonitors(messages))

    def _on_verdict(self, local_rank: int, message: monitor_messages.Verdict, now: float) -> None:
        life = self._cycles[message.cycle].ranks[local_rank]
        match message:
            case monitor_messages.Overdue():
                life.hang = message
                life.suspected_at, life.is_written_about = now, True
            case monitor_messages.Evidence():
                life.suspected_at, life.is_condemned = None, True
                self._effects.append(Deliver(message.cycle))
            case monitor_messages.Recovered():
                life.hang, life.suspected_at, life.is_condemned = None, None, False
            case monitor_messages.Signalled():
                life.suspected_at, life.is_condemned = None, True
                if message.signal == SIGKILL and life.killed_at is None:
                    life.killed_at = now
            case monitor_messages.Unkillable(since_s=since_s):
                life.killed_at = now - since_s if life.killed_at is None else life.killed_at
                # Once: a second monitor may find and kill it again.
                is_news = message.cycle == self.cycle and not (life.has_outlived or life.is_gone)
                if is_news:
                    text = (
                        f"local rank {local_rank} is still alive {since_s:.0f} s after its monitor "
                        "sent SIGKILL. If it stays, this node can't continue, and leaves the job "
                        "when its other ranks have ended"
                    )
                    self._effects.append(Note("error", text))
                    if not life.kill_is_known:  # at once: K-2 has waited for it long enough
                        self._effects.append(FailedBeforeExit(local_rank))
                life.has_outlived = life.kill_is_known = True
            case monitor_messages.Closed():
                life.suspected_at = None
                self._close(message.cycle, local_rank)
            case _:
                assert_never(message)

    def _exited(self, local_rank: int, exit_code: int, now: float) -> None:
        life = self.here.ranks[local_rank]
        life.exit_code, life.ended_at, life.ended_stopping = exit_code, now, self.here.is_stopping
        if exit_code == 0 and not life.is_condemned:
            self._effects.append(Exited(local_rank, 0))
            return
        if exit_code == 0 and not life.kill_is_known:  # it has a handler that ends it well
            self._held.append(FailedBeforeExit(local_rank))
        self._held.append(Exited(local_rank, exit_code))

    def _give_up_if_only_stuck(self) -> None:
        """A rank that outlived SIGKILL needs no grace."""
        here = self.here
        alive = [life for life in here.ranks.values() if not life.is_gone]
        killed_at = [life.killed_at for life in alive if life.has_outlived and life.killed_at]
        if alive and len(killed_at) == len(alive) and not here.is_given_up:
            here.is_given_up = True
            self._effects.append(OnlyStuckLeft(max(killed_at)))

    # ------------------------------------------------------------ failures held back
    def _killed_silently(self) -> list[int]:
        """Ranks that their monitors have killed, while the node has not failed them."""
        return [
            local_rank
            for local_rank, life in self.here.ranks.items()
            if life.killed_at is not None and not (life.kill_is_known or life.is_gone)
        ]

    def _held_until(self) -> float | None:
        """Until when failures are held back, at most; None: they are not."""
        if self.here.is_stopping:
            return None
        alive = (life for life in self.here.ranks.values() if not life.is_gone)
        suspected_at = [life.suspected_at for life in alive if life.suspected_at is not None]
        return max(suspected_at) + self.held_s if suspected_at else None

    # ------------------------------------------------------------ evidence
    def _close(self, cycle: int, local_rank: int) -> None:
        it = self._cycles[cycle]
        if local_rank in it.ranks:
            it.ranks[local_rank].is_written_about = False
        if it.is_undelivered:
            self._deliver(cycle)

    def _deliver(self, cycle: int) -> None:
        it = self._cycles[cycle]
        it.is_undelivered = any(life.is_written_about for life in it.ranks.values())
        self._effects.append(Deliver(cycle, is_over=not it.is_undelivered))

    # ------------------------------------------------------------ monitors
    def _replace_monitor(self, local_rank: int, now: float) -> None:
        budget = self._monitor_budgets.setdefault(
            local_rank, Budget(MONITOR_DEATHS, MONITOR_DEATHS_PERIOD_S)
        )
        if budget.take(now):
            text = f"the monitor of local rank {local_rank} died; starting another"
            self._effects += [Note("warning", text), StartMonitor(local_rank)]
        elif local_rank not in self._unwatched:
            self._unwatched.add(local_rank)
            text = (
                f"the monitor of local rank {local_rank} died more than {MONITOR_DEATHS} times "
                f"in {MONITOR_DEATHS_PERIOD_S:.0f} s; training continues, but hangs of this rank "
                "will not be detected any more"
            )
            self._effects.append(Note("error", text))


def _is_quiet(life: RankLife) -> bool:
    """No monitor watches it, and it lives."""
    return not (life.has_reported or life.makes_steps or life.is_gone or life.signals)
