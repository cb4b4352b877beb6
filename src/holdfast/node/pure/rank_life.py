"""The lives of a node's ranks, as their launcher sees them, and what follows from each turn.

A rank's monitor finds it hung, takes evidence and ends it; the launcher asks ranks to end, and ends
them (both climb ``base/pure/kill_ladder.py``). The launcher hears of the one from the monitor and
of the end from the kernel, in either order. ::

                    found hung                    evidence taken
    RUNNING ───────────────────────► SUSPECTED ───────────────────► CONDEMNED
       │ ▲ └──► SIGNALLED                │  its monitor signals it,     │
       │ │      the launcher asks it     │  the launcher kills it       │ SIGKILL
       │ └── recovered, let go ──────────┴──────────────────────────────┤
       ▼                                                                ▼
      GONE ◄── reaped, from wherever it was     STUCK ◄─UNKILLABLE_S─ KILLED

What is decided here, for :mod:`holdfast.node.pure.node` to act upon:

- A rank that was killed has failed, before it has ended: the kernel takes 75 to 170 ms for each GiB
  of its memory, and the others need not wait for that.
- K-2: a failure is held back while a monitor takes evidence of another rank. The others are stopped
  because of it, and a rank that was stopped shows no stacks any more. Evidence that has not come
  :data:`WRITING_S` after its timeout is not waited for.
- A rank that was condemned has failed, whatever exit code it ends with. One that was found hung and
  let go has not.
- A rank that an exception ends (decision 44) has failed when its exit handlers have run, before
  its process has ended. Handlers that take longer than they may are ended with it.
- The evidence of a cycle is delivered as it comes, and its folder is freed when the cycle is over
  and no monitor writes to it any more: a monitor learns of its rank's end when the launcher does,
  and may be about to note it in the incident.

- Once a rank of the job has reported to its monitor, all ranks of the node are expected to, where
  there is a timeout for that: one may hang before its first call (decision 29).
- Ranks that were asked to end have their grace: they may be saving their work.

A monitor may be late: what it says is held against the cycle that it speaks of.

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
from holdfast.evidence.pure.failure import Hang, was_asked
from holdfast.node.pure.node import OnlyStuckLeft, RankKilled, RankStuck, WorkerExited
from holdfast.watch.pure import monitor_messages as said

WRITING_S = 2.0
"""How long evidence may hold a failure back beyond its timeout: it is to be written down."""
MONITOR_DEATHS = 5
MONITOR_DEATHS_PERIOD_S = 60.0
"""A monitor that dies more often than this is not started again: something is wrong with it."""


# ---------------------------------------------------------------- events
class MonitorSaid(Value):
    """The monitor of a local rank has said this."""

    local_rank: int
    message: said.ToLauncher


class MonitorGone(Value):
    """The process of a rank's monitor has ended; another may find what it has found."""

    local_rank: int


class HostFailed(Value):
    """The launcher kills a rank of this cycle: ``problem`` is wrong with its host."""

    local_rank: int
    problem: str


class Raised(Value):
    """An exception that nothing caught ends the program of a rank; its exit handlers run."""

    local_rank: int


class ExitsNow(Value):
    """The exit handlers of a rank that has raised have run: it ends with 1 as its next step."""

    local_rank: int


class GoesOn(Value):
    """A rank that has raised became another program, or ends otherwise than with 1."""

    local_rank: int


class Sent(Value):
    """The launcher has sent a signal to ranks of this cycle, since ``at``; None: now."""

    local_ranks: tuple[int, ...]
    signum: int
    at: float | None = None


class Exited(Value):
    """A rank of this cycle was reaped, and all that its monitor had said by then was heard."""

    local_rank: int
    exit_code: int


class Swept(Value):
    """Nothing that the ranks of this cycle started is alive, or waited for any more."""


class JobReported(Value):
    """A rank of another node has reported to its monitor in this cycle."""

    cycle: int


Event = (
    MonitorSaid
    | MonitorGone
    | HostFailed
    | Raised
    | ExitsNow
    | GoesOn
    | Sent
    | Exited
    | Swept
    | JobReported
    | TimePassed
)


# ---------------------------------------------------------------- effects
class StartMonitor(Value):
    """Put a new monitor in the place of one that died."""

    local_rank: int


class EndHandlers(Value):
    """SIGKILL for a rank that has raised: its exit handlers have not ended within ``after_s``."""

    local_rank: int
    after_s: float


class AwaitReport(Value):
    """Have a rank watched that has not reported: another one did, known since ``since``."""

    local_rank: int
    since: float


class HoldClocks(Value):
    """These ranks were asked to end ``at`` this instant: they have their grace.

    Of their clocks those of sections count that they open from now on.
    """

    local_ranks: tuple[int, ...]
    at: float


class NodeReported(Value):
    """The first rank of this node has reported in this cycle; ranks of other nodes may not have."""

    cycle: int


class Deliver(Value):
    """Bring the evidence of a cycle to where people look for it; ``is_over``: its folder may go."""

    cycle: int
    is_over: bool = False


Effect = (
    RankKilled
    | RankStuck
    | OnlyStuckLeft
    | WorkerExited
    | StartMonitor
    | EndHandlers
    | AwaitReport
    | HoldClocks
    | NodeReported
    | Deliver
    | Note
)


class State(enum.Enum):
    """Where a rank is in its life; see the picture in the module's docstring."""

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
        hang: What its monitor has found.
        host_problem: Why the launcher killed it, if not to stop it.
        suspected_at: When it was found hung, where its evidence is awaited.
        is_condemned: Its monitor has seen enough: however it ends, it has failed.
        is_written_about: Its monitor may still write to the incident.
        signals: What the launcher has sent it.
        asked_at: When it sent the first of these.
        killed_at: When it was sent SIGKILL.
        has_outlived: Its monitor says that it has outlived that.
        is_told: The node knows that it was killed.
        is_gone: It was reaped.
        has_reported: Its monitor watches it, or did.
        makes_steps: Its monitor watches it by its optimizer's steps alone.
        launcher_slept_s: The monitors have ended it, for its launcher did nothing for so long.
        raised_at: When it told of the exception that ends it; None: it has not.
        exits_now: Its exit handlers have run after that.
        exit_handlers_s: They were ended after so long.
    """

    hang: Hang | None = None
    host_problem: str | None = None
    suspected_at: float | None = None
    is_condemned: bool = False
    is_written_about: bool = False
    signals: set[int] = field(default_factory=set)
    asked_at: float | None = None
    killed_at: float | None = None
    has_outlived: bool = False
    is_told: bool = False
    is_gone: bool = False
    has_reported: bool = False
    makes_steps: bool = False
    launcher_slept_s: float | None = None
    raised_at: float | None = None
    exits_now: bool = False
    exit_handlers_s: float | None = None

    def state(self, now: float) -> State:
        """Where it is."""
        if self.is_gone:
            return State.GONE
        if self.killed_at is not None:
            is_stuck = self.has_outlived or now >= self.killed_at + UNKILLABLE_S
            return State.STUCK if is_stuck else State.KILLED
        if self.suspected_at is not None:
            return State.SUSPECTED
        if self.is_condemned:
            return State.CONDEMNED
        return State.SIGNALLED if self.signals else State.RUNNING

    @property
    def has_raised(self) -> bool:
        """It ends because of its exception, whatever is sent to it."""
        return self.exits_now or self.exit_handlers_s is not None

    def was_asked(self, exit_code: int) -> bool:
        """An end like this is what the launcher's signals lead to, and no failure."""
        is_failure = self.hang is not None or self.host_problem is not None or self.has_raised
        return not is_failure and was_asked(exit_code, self.signals)


@dataclass
class _Cycle:
    ranks: dict[int, RankLife]
    is_stopping: bool = False
    """Its ranks were signalled: there is nothing left to hold back."""
    is_given_up: bool = False
    """Only ranks that have outlived SIGKILL are left, and the node knows."""
    is_undelivered: bool = False
    """It is over, and its folder of evidence is still there."""
    are_awaited: bool = False
    """All of its ranks are expected to report."""


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
        self.held_s = evidence_s + WRITING_S
        self._quiet_s = quiet_s
        self._exception_grace_s = exception_grace_s
        self._awaits_reports = awaits_reports
        self._call_by: float | None = None
        self._report_by: float | None = None
        self._has_warned_of_quiet = False
        self._here = _Cycle({})
        self._cycles: dict[int, _Cycle] = {}
        self._held: list[RankKilled | WorkerExited] = []
        self._monitor_budgets: dict[int, Budget] = {}
        self._unwatched: set[int] = set()

    def start_cycle(self, cycle: int, nproc: int, now: float) -> Mapping[int, RankLife]:
        """Have new ranks, by local rank. None of those before is alive, or waited for any more."""
        if self.cycle < 0 and self._quiet_s is not None:
            self._call_by = now + self._quiet_s
        self._report_by = None
        kept = {n: it for n, it in self._cycles.items() if n == self.cycle or it.is_undelivered}
        self._here = _Cycle({local_rank: RankLife() for local_rank in range(nproc)})
        self._cycles = {**kept, cycle: self._here}
        self.cycle = cycle
        return self._here.ranks

    def undelivered(self) -> list[int]:
        """Cycles that are over, and whose monitors may still write to their evidence."""
        return [cycle for cycle, it in self._cycles.items() if it.is_undelivered]

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        until = self._held_until() if self._held or self._untold() else None
        by = self._call_by, self._report_by
        return earliest(until, *by, *(due for _, due in self._running_handlers()))

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about ``event``, in order."""
        effects: list[Effect] = []
        match event:
            case HostFailed(local_rank, problem):
                life = self._here.ranks[local_rank]
                life.host_problem, life.killed_at, life.is_told = problem, now, True
            case Raised(local_rank):
                life = self._here.ranks[local_rank]
                if not (life.signals or life.is_gone or life.is_condemned):
                    life.raised_at = now
            case ExitsNow(local_rank):
                life = self._here.ranks[local_rank]
                if life.raised_at is not None and life.killed_at is None and not life.is_gone:
                    life.exits_now = True
                    self._held.append(RankKilled(local_rank))
            case GoesOn(local_rank):
                life = self._here.ranks[local_rank]
                if not life.has_raised:
                    life.raised_at = None
            case Sent(local_ranks, signum, at):
                self._here.is_stopping = True
                self._report_by = None
                for local_rank in local_ranks:
                    self._sent(self._here.ranks[local_rank], signum, now)
                if local_ranks and signum != SIGKILL:
                    effects.append(HoldClocks(local_ranks, now if at is None else at))
            case Exited(local_rank, exit_code):
                self._exited(local_rank, exit_code, effects)
            case MonitorGone(local_rank):
                for cycle in self._cycles:
                    self._close(cycle, local_rank, effects)
                self._replace_monitor(local_rank, now, effects)
            case Swept():
                self._here.is_undelivered = True
                self._deliver(self.cycle, effects)
            case MonitorSaid(_, said.Hello()):
                self._call_by = None
            case MonitorSaid(local_rank, said.Armed(cycle, by_steps)):
                if cycle == self.cycle and by_steps:  # others may make none
                    self._here.ranks[local_rank].makes_steps = True
                elif cycle == self.cycle:
                    self._reported(local_rank, now, effects)
            case MonitorSaid(_, said.LeaseOver(cycle, slept_s)):
                lives = self._cycles[cycle].ranks if cycle in self._cycles else {}
                for life in (life for life in lives.values() if not life.is_gone):
                    life.launcher_slept_s = slept_s
            case JobReported(cycle):
                if cycle == self.cycle:
                    self._await_reports(now, effects)
            case MonitorSaid(local_rank, message):
                if isinstance(message, said.Verdict) and message.cycle in self._cycles:
                    self._hear(local_rank, message, now, effects)
            case TimePassed():
                pass
            case _:
                assert_never(event)
        for local_rank, due in self._running_handlers():
            if now >= due:
                self._end_handlers(local_rank, now, effects)
        until = self._held_until()
        if until is None or now >= until:
            for local_rank in self._untold():
                self._here.ranks[local_rank].is_told = True
                effects.append(RankKilled(local_rank))
            effects += self._held
            self._held.clear()
            self._tell_if_only_stuck(effects)
        self._warn_of_quiet_ranks(now, effects)
        return effects

    def _warn_of_quiet_ranks(self, now: float, effects: list[Effect]) -> None:
        """Once each: none has called, or some have not."""
        if self._call_by is not None and now >= self._call_by:
            self._call_by = None
            text = (
                f"no rank has called RankMonitorClient.init_workload_monitoring() within "
                f"{self._quiet_s:.0f} s: hangs of this job are not being watched"
            )
            effects.append(Note("warning", text))
        if self._report_by is not None and now >= self._report_by:
            self._report_by = None
            quiet = [k for k, life in self._here.ranks.items() if _is_quiet(life)]
            if not quiet:
                return
            self._has_warned_of_quiet = True
            which = f"{'s' if len(quiet) > 1 else ''} {', '.join(map(str, quiet))}"
            text = (
                f"local rank{which} did not call RankMonitorClient.init_workload_monitoring() "
                f"within {self._quiet_s:.0f} s after the first rank that did: hangs of such ranks "
                "are not being watched. --ft-first-call-timeout ends a rank that does not call"
            )
            effects.append(Note("warning", text))

    # ------------------------------------------------------------ turns
    def _sent(self, life: RankLife, signum: int, now: float) -> None:
        life.signals.add(signum)
        life.asked_at = now if life.asked_at is None else life.asked_at
        if signum == SIGKILL and life.killed_at is None:
            life.killed_at, life.is_told = now, True

    def _running_handlers(self) -> list[tuple[int, float]]:
        """Ranks whose exit handlers run after an exception, and until when they may."""
        if self._exception_grace_s == math.inf:
            return []
        return [
            (local_rank, life.raised_at + self._exception_grace_s)
            for local_rank, life in self._here.ranks.items()
            if life.raised_at is not None
            and not (life.has_raised or life.is_gone or life.killed_at is not None)
        ]

    def _end_handlers(self, local_rank: int, now: float, effects: list[Effect]) -> None:
        life = self._here.ranks[local_rank]
        life.exit_handlers_s = self._exception_grace_s
        life.killed_at, life.is_told = now, True
        effects.append(EndHandlers(local_rank, self._exception_grace_s))
        self._held.append(RankKilled(local_rank))

    def _reported(self, local_rank: int, now: float, effects: list[Effect]) -> None:
        ranks = self._here.ranks
        is_first = not any(life.has_reported for life in ranks.values())
        ranks[local_rank].has_reported = True
        if is_first:
            effects.append(NodeReported(self.cycle))
        self._await_reports(now, effects)

    def _await_reports(self, now: float, effects: list[Effect]) -> None:
        if self._here.are_awaited or self._here.is_stopping:
            return
        self._here.are_awaited = True
        if not self._awaits_reports:
            may_warn = self._quiet_s is not None and not self._has_warned_of_quiet
            self._report_by = now + (self._quiet_s or 0.0) if may_warn else None
            return
        for local_rank, life in self._here.ranks.items():
            if not (life.has_reported or life.is_gone):
                effects.append(AwaitReport(local_rank, now))

    def _hear(
        self, local_rank: int, message: said.Verdict, now: float, effects: list[Effect]
    ) -> None:
        life = self._cycles[message.cycle].ranks[local_rank]
        match message:
            case said.Overdue(clock=clock, name=name, age_s=age_s, limit_s=limit_s):
                life.hang = Hang(clock, name, age_s, limit_s, message.detected_at)
                life.suspected_at, life.is_written_about = now, True
            case said.Evidence():
                life.suspected_at, life.is_condemned = None, True
                effects.append(Deliver(message.cycle))
            case said.Recovered():
                life.hang, life.suspected_at, life.is_condemned = None, None, False
            case said.Signalled():
                life.suspected_at, life.is_condemned = None, True
                if message.signal == SIGKILL and life.killed_at is None:
                    life.killed_at = now
            case said.Stuck(since_s=since_s):
                life.killed_at = now - since_s if life.killed_at is None else life.killed_at
                # Once: a second monitor may find and kill it again.
                is_news = message.cycle == self.cycle and not (life.has_outlived or life.is_gone)
                if is_news:
                    effects.append(RankStuck(local_rank, since_s))
                life.has_outlived = life.is_told = True
            case said.Closed():
                life.suspected_at = None
                self._close(message.cycle, local_rank, effects)
            case _:
                assert_never(message)

    def _exited(self, local_rank: int, exit_code: int, effects: list[Effect]) -> None:
        life = self._here.ranks[local_rank]
        life.is_gone = True
        if exit_code == 0 and not life.is_condemned:
            effects.append(WorkerExited(local_rank, 0))
            return
        if exit_code == 0 and not life.is_told:  # it has a handler that ends it well
            self._held.append(RankKilled(local_rank))
        self._held.append(WorkerExited(local_rank, exit_code))

    def _tell_if_only_stuck(self, effects: list[Effect]) -> None:
        """Who outlived SIGKILL makes no use of a grace."""
        here = self._here
        alive = [life for life in here.ranks.values() if not life.is_gone]
        killed_at = [life.killed_at for life in alive if life.has_outlived and life.killed_at]
        if alive and len(killed_at) == len(alive) and not here.is_given_up:
            here.is_given_up = True
            effects.append(OnlyStuckLeft(max(killed_at)))

    # ------------------------------------------------------------ what is held back
    def _untold(self) -> list[int]:
        """Ranks that were killed, without the node knowing of it."""
        return [
            local_rank
            for local_rank, life in self._here.ranks.items()
            if life.killed_at is not None and not (life.is_told or life.is_gone)
        ]

    def _held_until(self) -> float | None:
        """Until when failures are held back, at most; None: they are not."""
        if self._here.is_stopping:
            return None
        alive = (life for life in self._here.ranks.values() if not life.is_gone)
        suspected_at = [life.suspected_at for life in alive if life.suspected_at is not None]
        return max(suspected_at) + self.held_s if suspected_at else None

    # ------------------------------------------------------------ evidence
    def _close(self, cycle: int, local_rank: int, effects: list[Effect]) -> None:
        it = self._cycles[cycle]
        if local_rank in it.ranks:
            it.ranks[local_rank].is_written_about = False
        if it.is_undelivered:
            self._deliver(cycle, effects)

    def _deliver(self, cycle: int, effects: list[Effect]) -> None:
        it = self._cycles[cycle]
        it.is_undelivered = any(life.is_written_about for life in it.ranks.values())
        effects.append(Deliver(cycle, is_over=not it.is_undelivered))

    # ------------------------------------------------------------ monitors
    def _replace_monitor(self, local_rank: int, now: float, effects: list[Effect]) -> None:
        budget = self._monitor_budgets.setdefault(
            local_rank, Budget(MONITOR_DEATHS, MONITOR_DEATHS_PERIOD_S)
        )
        if budget.take(now):
            text = f"the monitor of local rank {local_rank} died; starting another"
            effects += [Note("warning", text), StartMonitor(local_rank)]
        elif local_rank not in self._unwatched:
            self._unwatched.add(local_rank)
            text = (
                f"the monitor of local rank {local_rank} died more than {MONITOR_DEATHS} times "
                f"in {MONITOR_DEATHS_PERIOD_S:.0f} s; training goes on, but hangs of this rank "
                "will not be detected any more"
            )
            effects.append(Note("error", text))


def _is_quiet(life: RankLife) -> bool:
    """Nobody watches it, and it lives."""
    return not (life.has_reported or life.makes_steps or life.is_gone or life.signals)
