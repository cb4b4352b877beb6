"""Decide what the launcher of one node does: start, stop, restart, give up, finish.

Pure: reads no clock, starts no process. Times are seconds on the caller's monotonic clock.

            Begin
              |
              v    all ranks ended well                      swept
           RUNNING -------------------------> SWEEPING -------------> DONE
              |  a rank failed, or a signal      ^  |
              v                                  |  | swept, and a restart is due
           STOPPING -----------------------------+  +---> RUNNING (cycle + 1)
                     all ranks have ended

A *cycle* is one life of all ranks of the job; cycles are counted 0, 1, 2 ... and never twice.
STOPPING is polite, then forced: a signal to the ranks, SIGKILL when their grace is over. SWEEPING
waits until nothing the ranks started is left. A rank that SIGKILL does not end (uninterruptible
sleep) ends the node: its place can't be used again. Whoever sent the SIGKILL: a rank that outlives
its monitor's has failed, and the others are stopped; when only such ranks are left, nobody needs a
grace any more, and they are given up ``UNKILLABLE_AFTER_S`` after their SIGKILL.

A node that is *alone* decides all of that itself. In a job of several nodes the decisions are made
for all of them together (:mod:`holdfast.core.member`): this machine reports failures and the end of
a cycle, waits in IDLE, and is told to start, to stop and to leave.

A node alone rests in IDLE, too, between a failure and a restart that is to wait.

Before ranks are started for the first time, and after a cycle that failed, the host may be checked
(:class:`CheckHost`): in IDLE, with nothing alive. Who is not fit leaves as if excluded.

                    swept                 StartAsked
           SWEEPING -------> IDLE(nothing alive) ------> RUNNING (the cycle that was decided)
                              |  Dismissed
                              +----------> DONE

Invariants: B-1 restarts never exceed the budget. R-1 a cycle starts only when no rank of the one
before is alive. K-1 DONE is reached only when nothing of a cycle is alive, or cannot be killed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from holdfast.core.actions import EXCLUDE, SHUTDOWN
from holdfast.core.budget import Budget
from holdfast.core.exit_codes import NO_RESTART, Ending, why_over
from holdfast.core.failure import signal_name
from holdfast.core.never import assert_never
from holdfast.core.restarts import Restarts

SIGINT = 2
SIGTERM = 15

UNKILLABLE_AFTER_S = 30.0
"""How long a rank may take to die of SIGKILL (100 GiB of memory take ~10 s) before we give up."""
SWEEP_LIMIT_S = 5.0
"""How long leftovers of a cycle may take to die before the node goes on without them."""
READ_LIMIT_S = 5.0
"""How long reading the iteration of a checkpoint may hold up a restart."""
_EXCEPTION = 1
"""What Python exits with after an uncaught exception: says nothing about what is wanted."""
MONITOR_DEATHS = 5
MONITOR_DEATHS_PERIOD_S = 60.0
"""A monitor that dies more often than this is not started again: something is wrong with it."""


# ---------------------------------------------------------------- events
@dataclass(frozen=True)
class Begin:
    """The launcher is ready to start the first cycle."""


@dataclass(frozen=True)
class WorkerExited:
    """A rank's process is gone and reaped; ``exit_code`` is -N for death by signal N."""

    local_rank: int
    exit_code: int


@dataclass(frozen=True)
class RankKilled:
    """A rank that hung, or whose device broke, was signalled: it failed, and ends when it can.

    The kernel takes 75 to 170 ms for each GiB of a process's memory before anybody is told of its
    end; nobody needs to wait for that before the others are stopped.
    """

    local_rank: int


@dataclass(frozen=True)
class RankStuck:
    """Its monitor sent SIGKILL to a rank that hung, ``since_s`` seconds ago; it is still there."""

    local_rank: int
    since_s: float


@dataclass(frozen=True)
class RankReportedIn:
    """A rank has connected to its monitor."""

    local_rank: int


@dataclass(frozen=True)
class MonitorExited:
    """A rank monitor's process is gone although nobody asked it to leave."""

    local_rank: int


@dataclass(frozen=True)
class ControlRequested:
    """A rank asks something of its launcher; takes effect when this cycle is over."""

    rank: int
    action: str
    description: str


@dataclass(frozen=True)
class SignalArrived:
    """The launcher itself was sent a signal that it handles."""

    signum: int


@dataclass(frozen=True)
class StartAsked:
    """It was decided that this node has ranks in this cycle. Only while nothing is alive."""

    cycle: int


@dataclass(frozen=True)
class StopAsked:
    """It was decided that the ranks of this node are to stop.

    ``at_once``: without grace; ``for_good``: this node will not have ranks again.
    """

    at_once: bool = False
    for_good: bool = False


@dataclass(frozen=True)
class Dismissed:
    """It was decided that this node leaves. Only while nothing is alive."""

    end: End
    exit_code: int


@dataclass(frozen=True)
class IterationRead:
    """The job's last checkpoint is of this iteration; None: nobody knows."""

    iteration: int | None


@dataclass(frozen=True)
class HostChecked:
    """The answer to :class:`CheckHost`; ``problem``: why this node must not have ranks."""

    problem: str | None = None


@dataclass(frozen=True)
class HostBroke:
    """Something broke since the host was checked: ``problem``.

    Ranks that run end now, and not when they find out: the one whose device it is (``device`` is
    its local rank), any if it is nobody's. Who rests checks the host again. ``device`` None:
    nobody's in particular.
    """

    problem: str
    device: int | None = None


@dataclass(frozen=True)
class Swept:
    """Nothing that the cycle's ranks started is alive any more."""


@dataclass(frozen=True)
class TimePassed:
    """Nothing happened but time."""


Event = (
    Begin
    | WorkerExited
    | RankKilled
    | RankStuck
    | RankReportedIn
    | MonitorExited
    | ControlRequested
    | SignalArrived
    | StartAsked
    | StopAsked
    | Dismissed
    | IterationRead
    | HostChecked
    | HostBroke
    | Swept
    | TimePassed
)


# ---------------------------------------------------------------- effects
@dataclass(frozen=True)
class StartCycle:
    """Start every rank of this node, isolated from all earlier cycles."""

    cycle: int


@dataclass(frozen=True)
class SignalRanks:
    """Send a signal to these ranks."""

    local_ranks: tuple[int, ...]
    signum: int


@dataclass(frozen=True)
class KillRanks:
    """End these ranks and everything in their sessions with SIGKILL."""

    local_ranks: tuple[int, ...]


@dataclass(frozen=True)
class Sweep:
    """End everything the ranks of this cycle left behind, then report :class:`Swept`."""

    cycle: int


@dataclass(frozen=True)
class StartMonitor:
    """Put a new monitor in the place of one that died."""

    local_rank: int


@dataclass(frozen=True)
class ReadIteration:
    """Find out how far the job's checkpoints are, then report :class:`IterationRead`."""

    first: bool
    """Nothing has been trained yet: there may be none."""


@dataclass(frozen=True)
class CheckHost:
    """See whether this node is fit for ranks, then report :class:`HostChecked`, in bounded time."""

    after_ranks: bool
    """Ranks have just ended here: their GPU memory is to be free before others start."""


@dataclass(frozen=True)
class EndRank:
    """SIGKILL for a rank that can't be trusted to go on, because of ``problem``."""

    local_rank: int
    problem: str


@dataclass(frozen=True)
class Unfit:
    """This node waits, and its host is not fit any more; what follows is decided elsewhere."""

    problem: str


@dataclass(frozen=True)
class MayJoin:
    """The host was checked for the first time; what follows is decided elsewhere."""

    problem: str | None = None


@dataclass(frozen=True)
class FailureSeen:
    """The first rank of a cycle failed; the others are being stopped.

    ``may_restart`` False: it asks for no restart. Of one node of many that is said of a later
    failure, too, once: it may be first by the clock of the job.
    """

    local_rank: int
    will_restart: bool
    may_restart: bool = True
    instead: str = ""
    """What ranks have asked for, which comes in the place of a restart."""


@dataclass(frozen=True)
class Explain:
    """A cycle failed and all its ends are known: say what the first cause was."""

    cycle: int
    will_restart: bool


@dataclass(frozen=True)
class CycleOver:
    """Nothing of the cycle is alive on this node; what follows is decided elsewhere.

    ``problem``: why this node must not have ranks again.
    """

    cycle: int
    succeeded: bool
    problem: str | None = None


@dataclass(frozen=True)
class Note:
    """Something a person should read."""

    level: str
    text: str


class End(enum.Enum):
    """How a node's part of the job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SIGNALLED = "signalled"
    SHUT_DOWN = "shut down by a rank"
    EXCLUDED = "excluded by a rank"
    STUCK = "a rank cannot be killed"
    UNHEALTHY = "not healthy"


@dataclass(frozen=True)
class Finish:
    """Leave, with this exit code."""

    end: End
    exit_code: int


Effect = (
    StartCycle
    | SignalRanks
    | KillRanks
    | Sweep
    | StartMonitor
    | ReadIteration
    | CheckHost
    | EndRank
    | Unfit
    | MayJoin
    | FailureSeen
    | Explain
    | CycleOver
    | Note
    | Finish
)


class Phase(enum.Enum):
    """Where a node is in its life; see the picture in the module's docstring."""

    IDLE = "idle"
    RUNNING = "running"
    STOPPING = "stopping"
    SWEEPING = "sweeping"
    DONE = "done"


@dataclass
class Node:
    """The life of one node's part of a job.

    Args:
        nproc: Ranks on this node.
        restarts: Whether the job may be started again; of no use if not ``alone``.
        reads_iterations: :class:`ReadIteration` will be answered.
        no_restart_exit_code: Tells whatever restarts the launcher that it should not. A rank that
            exits with it asks for no restart; 1 asks for nothing, as every exception ends with it.
        stop_grace_s: Seconds between SIGTERM and SIGKILL when ranks are stopped for a restart.
        signal_grace_s: The same after a signal to the launcher, forwarded to the ranks.
        report_in_s: Warn once if no rank reports to its monitor within this time; None: never.
        alone: No other launcher takes part in the job.
        checks_host: :class:`CheckHost` will be answered.
    """

    nproc: int
    restarts: Restarts = field(default_factory=Restarts)
    reads_iterations: bool = False
    no_restart_exit_code: int = NO_RESTART
    stop_grace_s: float = 15.0
    signal_grace_s: float = 1800.0
    report_in_s: float | None = None
    alone: bool = True
    checks_host: bool = False

    phase: Phase = field(default=Phase.IDLE, init=False)
    cycle: int = field(default=-1, init=False)
    alive: set[int] = field(default_factory=set, init=False)
    _killed_at: dict[int, float] = field(default_factory=dict, init=False)
    """Ranks that have outlived their monitor's SIGKILL, and when that was sent."""
    _exit_codes: dict[int, int] = field(default_factory=dict, init=False)
    _failed: bool = field(default=False, init=False)
    _will_restart: bool = field(default=False, init=False)
    _may_restart: bool = field(default=True, init=False)
    _asked_at_once: bool = field(default=False, init=False)
    """The failure that ended the cycle asked for no restart, and was reported as one that does."""
    _signalled: bool = field(default=False, init=False)
    _interrupts: int = field(default=0, init=False)
    _kill_at: float | None = field(default=None, init=False)
    _give_up_at: float | None = field(default=None, init=False)
    _sweep_until: float | None = field(default=None, init=False)
    _report_in_by: float | None = field(default=None, init=False)
    _read_by: float | None = field(default=None, init=False)
    _start_at: float | None = field(default=None, init=False)
    _is_undecided: bool = field(default=False, init=False)
    _is_checking: bool = field(default=False, init=False)
    _is_rechecking: bool = field(default=False, init=False)
    """Nobody else waits for what that check finds."""
    _is_last: bool = field(default=False, init=False)
    """This node will not have ranks again."""
    _unexplained: int | None = field(default=None, init=False)
    """The cycle whose failure is explained once it is known whether there is another."""
    _requests: list[ControlRequested] = field(default_factory=list, init=False)
    _monitor_budgets: dict[int, Budget] = field(default_factory=dict, init=False)
    _unwatched: set[int] = field(default_factory=set, init=False)

    @property
    def _has_succeeded(self) -> bool:
        ended_well = len(self._exit_codes) == self.nproc and not any(self._exit_codes.values())
        return ended_well and not self._failed

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        instants = [self._kill_at, self._give_up_at, self._sweep_until, self._report_in_by]
        if self.phase is Phase.IDLE and not self._is_checking:
            instants.append(self._read_by if self._is_undecided else self._start_at)
        return min((at for at in instants if at is not None), default=None)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about ``event``, in order."""
        effects: list[Effect] = []
        if self.phase is Phase.DONE:
            return effects
        match event:
            case Begin():
                if self.checks_host:
                    self._check_host(effects)
                else:
                    self._go_on(now, effects)
            case StartAsked(cycle):
                if self.phase is Phase.IDLE:
                    self._start_cycle(cycle, now, effects)
            case StopAsked(at_once, for_good):
                self._is_last = self._is_last or for_good
                self._on_stop_asked(now, effects, at_once=at_once)
            case Dismissed(end, exit_code):
                if self.phase is Phase.IDLE:
                    if self._failed and exit_code:
                        effects.append(Explain(self.cycle, will_restart=False))
                    self._finish(end, exit_code, effects)
            case WorkerExited(local_rank, exit_code):
                self._on_exit(local_rank, exit_code, now, effects)
            case RankKilled(local_rank):
                if local_rank in self.alive:
                    self._fail(local_rank, now, effects)
            case RankStuck(local_rank, since_s):
                self._on_stuck(local_rank, since_s, now, effects)
            case RankReportedIn():
                self._report_in_by = None
            case MonitorExited(local_rank):
                self._on_monitor_exit(local_rank, now, effects)
            case ControlRequested():
                self._requests.append(event)
                instead = ", in the place of the restart" if self._comes_instead() else ""
                effects.append(
                    Note(
                        "info",
                        f"rank {event.rank} asks for {event.action} ({event.description}); "
                        f"takes effect when cycle {self.cycle} is over{instead}",
                    )
                )
            case SignalArrived(signum):
                self._on_signal(signum, now, effects)
            case IterationRead(iteration):
                self._on_iteration(iteration, now, effects)
            case HostChecked(problem):
                self._on_host_checked(problem, now, effects)
            case HostBroke(problem, device):
                self._on_host_broke(problem, device, now, effects)
            case Swept():
                if self.phase is Phase.SWEEPING:
                    self._cycle_over(now, effects)
            case TimePassed():
                pass
            case _:
                assert_never(event)
        self._on_time(now, effects)
        return effects

    # ------------------------------------------------------------ inside
    def _check_host(self, effects: list[Effect]) -> None:
        self._is_checking = True
        effects.append(CheckHost(after_ranks=self.cycle >= 0))

    def _on_host_broke(
        self, problem: str, device: int | None, now: float, effects: list[Effect]
    ) -> None:
        if self.phase is Phase.RUNNING:
            local_rank = min(self.alive) if device is None else device
            if local_rank in self.alive:  # else nobody uses that device any more
                effects.append(EndRank(local_rank, problem))
                # Who sits in the driver of a broken device may never end: nobody waits for that.
                self._fail(local_rank, now, effects)
        elif self.phase is Phase.IDLE and not self._is_undecided and not self._is_checking:
            self._is_rechecking = not self.alone
            self._check_host(effects)

    def _on_host_checked(self, problem: str | None, now: float, effects: list[Effect]) -> None:
        if not self._is_checking:
            return
        self._is_checking = False
        if self._is_rechecking:
            self._is_rechecking = False
            if problem is not None:
                effects.append(Unfit(problem))
            return
        if self.alone and problem is not None:
            self._explain(effects, will_restart=False)
            self._finish(End.UNHEALTHY, Ending.NO_NODE_LEFT.code(), effects)
        elif not self.alone and self.cycle >= 0:
            effects.append(CycleOver(self.cycle, succeeded=False, problem=problem))
        else:
            if not self._waits(now):
                self._go_on(now, effects, problem)
            self._explain(effects, will_restart=True)

    def _go_on(self, now: float, effects: list[Effect], problem: str | None = None) -> None:
        """Nothing keeps this node from having ranks, unless there is a problem."""
        if not self.alone:
            effects.append(MayJoin(problem))
            return
        first = self.cycle < 0
        self._start_cycle(self.cycle + 1, now, effects)
        if first and self.reads_iterations:
            effects.append(ReadIteration(first=True))

    def _waits(self, now: float) -> bool:
        return self._start_at is not None and now < self._start_at

    def _explain(self, effects: list[Effect], *, will_restart: bool) -> None:
        if self._unexplained is not None:
            effects.append(Explain(self._unexplained, will_restart))
            self._unexplained = None

    def _start_cycle(self, cycle: int, now: float, effects: list[Effect]) -> None:
        first = self.cycle < 0
        self.phase = Phase.RUNNING
        self._is_checking = self._is_rechecking = False
        self.cycle = cycle
        self.alive = set(range(self.nproc))
        self._exit_codes.clear()
        self._killed_at.clear()
        self._failed = False
        self._will_restart = False
        self._may_restart = True
        self._asked_at_once = False
        self._start_at = None
        self.restarts.cycle_started(now)
        if first and self.report_in_s is not None:
            self._report_in_by = now + self.report_in_s
        effects.append(StartCycle(self.cycle))

    def _on_exit(self, local_rank: int, exit_code: int, now: float, effects: list[Effect]) -> None:
        if local_rank not in self.alive:
            return
        self.alive.discard(local_rank)
        self._exit_codes[local_rank] = exit_code
        if exit_code != 0:
            asks = exit_code == self.no_restart_exit_code and exit_code != _EXCEPTION
            self._fail(local_rank, now, effects, may_restart=not asks)
        if not self.alive:
            self._sweep(now, effects)
        else:
            self._give_up_if_only_stuck(now, effects)

    def _on_stuck(self, local_rank: int, since_s: float, now: float, effects: list[Effect]) -> None:
        if local_rank not in self.alive or local_rank in self._killed_at:
            return
        self._killed_at[local_rank] = now - since_s
        text = (
            f"local rank {local_rank} is still alive {since_s:.0f} s after its monitor sent "
            f"SIGKILL. If it stays, this node can't go on, and leaves when its other ranks have "
            "ended"
        )
        effects.append(Note("error", text))
        self._fail(local_rank, now, effects)
        self._give_up_if_only_stuck(now, effects)

    def _fail(
        self, local_rank: int, now: float, effects: list[Effect], *, may_restart: bool = True
    ) -> None:
        """The first failure of a cycle ends it; of many nodes', others decide whether."""
        is_first = self.phase is Phase.RUNNING and not self._failed
        asks_first = self._may_restart and not may_restart
        if asks_first:
            self._may_restart = self._will_restart = False
        if is_first:
            self._failed = True
            self._asked_at_once = not may_restart
            if self.alone:
                self._judge(now, effects)
                self._stop(now, effects)
        if is_first or (asks_first and not self.alone):
            instead = self._comes_instead()
            will_restart = self._will_restart and not instead
            effects.append(FailureSeen(local_rank, will_restart, may_restart, instead))

    def _give_up_if_only_stuck(self, now: float, effects: list[Effect]) -> None:
        """Who outlived SIGKILL makes no use of a grace."""
        if self._give_up_at is not None or not self.alive <= self._killed_at.keys():
            return
        self.phase = Phase.STOPPING
        self._kill_at = None
        last = max(self._killed_at[local_rank] for local_rank in self.alive)
        self._give_up_at = max(now, last + UNKILLABLE_AFTER_S)
        effects.append(KillRanks(tuple(sorted(self.alive))))  # and what they started

    def _judge(self, now: float, effects: list[Effect]) -> None:
        """The cycle failed: a restart if there is one left, unless it turns out to be futile."""
        if not self._may_restart:
            return
        if SHUTDOWN not in self._asked():
            wait_s = self.restarts.take(now)
            self._will_restart = wait_s is not None
            self._start_at = None if wait_s is None else now + wait_s
        if self.reads_iterations:  # whatever else ends the job: it may be of no use to try again
            self._read_by = now + READ_LIMIT_S
            effects.append(ReadIteration(first=False))

    def _asked(self) -> set[str]:
        return {request.action for request in self._requests}

    def _comes_instead(self) -> str:
        """What a cycle that has failed, on a node alone, leads to because ranks asked for it."""
        if not self._failed or not self.alone or self._signalled or not self._may_restart:
            return ""
        if SHUTDOWN in self._asked():
            return SHUTDOWN
        return EXCLUDE if EXCLUDE in self._asked() and self._will_restart else ""

    def _on_iteration(self, iteration: int | None, now: float, effects: list[Effect]) -> None:
        if self._read_by is None:
            if iteration is not None and self.cycle == 0:
                self.restarts.begins_at(iteration)
            return
        self._read_by = None
        if iteration is not None:
            self.restarts.reached(iteration)
        if self._is_undecided:
            self._decide(now, effects)

    def _stop(self, now: float, effects: list[Effect]) -> None:
        self.phase = Phase.STOPPING
        if self.alive:
            effects.append(SignalRanks(tuple(sorted(self.alive)), SIGTERM))
            self._kill_at = now + self.stop_grace_s

    def _on_stop_asked(self, now: float, effects: list[Effect], *, at_once: bool) -> None:
        if self.phase is Phase.IDLE and self._is_last:
            self._on_host_checked(None, now, effects)  # nobody wants to know any more
        if self.phase is Phase.RUNNING:
            self._stop(now, effects)
        if at_once and self.phase is Phase.STOPPING and self._give_up_at is None:
            self._kill_at = now

    def _on_signal(self, signum: int, now: float, effects: list[Effect]) -> None:
        is_first, self._signalled = not self._signalled, True
        self._will_restart = False
        if signum == SIGINT:
            self._interrupts += 1
        if self.phase is Phase.IDLE:
            if self._is_undecided:
                self._decide(now, effects)
            elif self.alone:
                self._explain(effects, will_restart=False)
                self._finish(End.SIGNALLED, Ending.SIGNALLED.code(), effects)
            elif self.cycle >= 0:
                self._on_host_checked(None, now, effects)
            return
        if not self.alive:
            return  # sweeping: ends in a moment anyway
        alive = tuple(sorted(self.alive))
        if self._interrupts > 1:
            if self._give_up_at is None:  # not killed yet; once is all that can be done
                text = "interrupted twice: killing the ranks without grace"
                effects.append(Note("warning", text))
                self._kill_at = now
            return
        effects.append(SignalRanks(alive, signum))
        grace = "--workers-stop-timeout"
        if self.phase is Phase.RUNNING:
            self.phase = Phase.STOPPING
            self._kill_at = now + self.signal_grace_s
            grace = "--term-timeout"
        if is_first:
            effects.append(Note("warning", self._what_a_signal_does(signum, grace, now)))

    def _what_a_signal_does(self, signum: int, grace: str, now: float) -> str:
        name, some = signal_name(signum), len(self.alive)
        text = f"{name}: passed on to {some} rank{'s' if some > 1 else ''}, no restart any more"
        if self._kill_at is not None:
            text += f"; SIGKILL after {max(0.0, self._kill_at - now):.0f} s ({grace})"
        return f"{text}. Press Ctrl-C again to kill them now" if signum == SIGINT else text

    def _on_monitor_exit(self, local_rank: int, now: float, effects: list[Effect]) -> None:
        budget = self._monitor_budgets.setdefault(
            local_rank, Budget(MONITOR_DEATHS, MONITOR_DEATHS_PERIOD_S)
        )
        if budget.take(now):
            effects.append(
                Note("warning", f"the monitor of local rank {local_rank} died; starting another")
            )
            effects.append(StartMonitor(local_rank))
        elif local_rank not in self._unwatched:
            self._unwatched.add(local_rank)
            effects.append(
                Note(
                    "error",
                    f"the monitor of local rank {local_rank} died more than {MONITOR_DEATHS} times "
                    f"in {MONITOR_DEATHS_PERIOD_S:.0f} s; training goes on, but hangs of this rank "
                    "will not be detected any more",
                )
            )

    def _sweep(self, now: float, effects: list[Effect]) -> None:
        self.phase = Phase.SWEEPING
        self._kill_at = self._give_up_at = None
        self._sweep_until = now + SWEEP_LIMIT_S
        effects.append(Sweep(self.cycle))

    def _on_time(self, now: float, effects: list[Effect]) -> None:
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._give_up_at = now + UNKILLABLE_AFTER_S
            effects.append(KillRanks(tuple(sorted(self.alive))))
        if self._give_up_at is not None and now >= self._give_up_at:
            self._give_up_at = None
            stuck = ", ".join(str(rank) for rank in sorted(self.alive))
            effects.append(
                Note(
                    "error",
                    f"local rank {stuck} is still alive {UNKILLABLE_AFTER_S:.0f} s after SIGKILL: "
                    "stuck in the kernel (uninterruptible). This node cannot go on; it needs a "
                    "look at its storage, network and GPU drivers, and probably a reboot",
                )
            )
            effects.append(Explain(self.cycle, will_restart=False))
            self._finish(End.STUCK, Ending.STUCK.code(), effects)
        if self._sweep_until is not None and now >= self._sweep_until:
            effects.append(
                Note(
                    "warning",
                    f"leftovers of cycle {self.cycle} are still alive {SWEEP_LIMIT_S:.0f} s after "
                    "SIGKILL; going on without waiting for them",
                )
            )
            self._cycle_over(now, effects)
        if self._read_by is not None and now >= self._read_by:
            self._read_by = None  # the cycle is not counted
            if self._is_undecided:
                self._decide(now, effects)
        is_waiting = self.phase is Phase.IDLE and not (self._is_undecided or self._is_checking)
        if is_waiting and self._start_at is not None and now >= self._start_at:
            self._start_cycle(self.cycle + 1, now, effects)
        if self._report_in_by is not None and now >= self._report_in_by:
            self._report_in_by = None
            effects.append(
                Note(
                    "warning",
                    f"no rank has called RankMonitorClient.init_workload_monitoring() within "
                    f"{self.report_in_s:.0f} s: hangs of this job are not being watched",
                )
            )

    def _cycle_over(self, now: float, effects: list[Effect]) -> None:
        """Nothing of the cycle is alive: requests take effect, then the next cycle or the end."""
        self._sweep_until = None
        self.phase = Phase.IDLE
        if not self.alone:
            succeeded = self._has_succeeded
            if succeeded or self._is_last or self._signalled or not self.checks_host:
                effects.append(CycleOver(self.cycle, succeeded))
            else:
                self._check_host(effects)
            return
        may_matter = self._failed and self._may_restart and not self._signalled
        if may_matter and self._read_by is not None:
            self._is_undecided = True
        else:
            self._decide(now, effects)

    def _decide(self, now: float, effects: list[Effect]) -> None:
        """A cycle of a node alone is over, and all is known of it."""
        self._is_undecided = False
        actions = self._asked()
        self._requests.clear()
        succeeded = self._has_succeeded
        self._unexplained = self.cycle if self._failed else None
        ending: Ending | None
        if succeeded:
            ending = Ending.SUCCEEDED
        elif self._signalled:
            ending = Ending.SIGNALLED
        else:
            futile = self.restarts.why_futile()
            ending = why_over(
                no_use=not self._may_restart,
                no_progress=futile is not None,
                shut_down=SHUTDOWN in actions,
                spent=not self._will_restart,
                excluded=EXCLUDE in actions,
            )
            self._say_why_not(ending, futile, effects)
        if ending is None:
            if self.checks_host:
                self._check_host(effects)
            if self._start_at is not None and now < self._start_at:
                wait_s = self._start_at - now
                effects.append(Note("info", f"waiting {wait_s:.1f} s before the restart"))
            elif not self._is_checking:
                # The ranks first: nothing on the way to their start waits for words.
                self._start_cycle(self.cycle + 1, now, effects)
        if not self._is_checking:
            self._explain(effects, will_restart=ending is None)
        if ending is not None:
            end = _END_OF.get(ending, End.FAILED)
            self._finish(end, ending.code(self.no_restart_exit_code), effects)

    def _say_why_not(
        self, ending: Ending | None, futile: str | None, effects: list[Effect]
    ) -> None:
        """Why restarts that are left are not used."""
        if ending is Ending.NO_USE and not self._asked_at_once:
            code = self.no_restart_exit_code
            text = f"not started again: a rank exited with {code}, which asks for no restart"
            effects.append(Note("error", text))
        elif ending is Ending.NO_PROGRESS:
            effects.append(Note("error", f"not started again: {futile}"))

    def _finish(self, end: End, exit_code: int, effects: list[Effect]) -> None:
        self.phase = Phase.DONE
        self._kill_at = self._give_up_at = self._sweep_until = self._report_in_by = None
        self._read_by = self._start_at = None
        self._is_checking = False
        effects.append(Finish(end, exit_code))


_END_OF = {
    Ending.SUCCEEDED: End.SUCCEEDED,
    Ending.SIGNALLED: End.SIGNALLED,
    Ending.SHUT_DOWN: End.SHUT_DOWN,
    Ending.EXCLUDED: End.EXCLUDED,
}
"""How the part of a node alone ended; else it failed."""
