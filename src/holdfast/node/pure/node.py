"""The machine of one node: start its ranks, stop them, sweep, check the host.

                 StartRanks                  all ranks have ended
        IDLE -----------------> RUNNING ---------------------------> SWEEPING ---+
         ^ |                       | StopRanks, or a signal              ^       |
         | | LeaveJob              v             all ranks have ended    |       |
         | +---------> DONE     STOPPING --------------------------------+       |
         |                                                                       |
         +------------- nothing of the cycle is left (and the host is checked) --+

The member (:mod:`holdfast.job.pure.member`) decides whether and when a cycle starts and stops; this
machine reports to it what becomes of the ranks. Helpers know each rank (``rank_life.py``) and
collect evidence (``node_evidence.py``).

STOPPING is a signal, then SIGKILL when the grace is over. SWEEPING waits until all processes that
the ranks started have ended. A rank that SIGKILL does not end (uninterruptible sleep) ends the
node, ``UNKILLABLE_AFTER_S`` after its SIGKILL: its place can't be used again. In IDLE, before the
first cycle and after each failed one, the host may be checked (:class:`CheckHost`).

Invariants: R-1 a cycle starts only when no rank of the one before is alive. K-1 DONE is reached
only when nothing of a cycle is alive, or cannot be killed.

Pure. Times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.base.pure.common_events import Begin, Note, SignalArrived
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.excuse import overslept
from holdfast.base.pure.kill_ladder import KILLED, SIGKILL, SIGTERM, STUCK, KillLadder
from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import count
from holdfast.evidence.pure.failure import signal_name
from holdfast.inplace.pure.job_calls import CallBegan, CallEnded
from holdfast.job.pure.exit_codes import NO_RESTART
from holdfast.job.pure.member_messages import (
    How,
    LeaveJob,
    NodeReported,
    RanksFailed,
    RanksStopped,
    RanksStuck,
    RanksSucceeded,
    StartRanks,
    StopRanks,
    Unhealthy,
)
from holdfast.job.pure.membership import CyclePlace, Digests, Suspect
from holdfast.node.pure import node_evidence, rank_life
from holdfast.node.pure.node_evidence import IncidentOver, NodeEvidence
from holdfast.node.pure.rank_life import (
    Deliver,
    EndHandlers,
    Exited,
    FailedBeforeExit,
    OnlyStuckLeft,
    RankLives,
    StartMonitor,
    ToMonitors,
)

SIGINT = 2

UNKILLABLE_AFTER_S = 30.0
"""How long a rank may take to die of SIGKILL (100 GiB take ~10 s) before it is given up."""
SWEEP_LIMIT_S = 5.0
"""How long leftovers of a cycle may take to die before the node goes on without them."""
SAME_REQUEST_S = 5.0
"""A signal that comes again so soon is the same request: scancel and srun each send SIGTERM to all
processes of a step, within about a second; so do a shell's trap and a signal to its process group.
Not SIGINT: a person types it.
"""
_EXCEPTION = 1
"""Python's exit code after an uncaught exception: it asks for nothing."""


def _ladder(signum: int = SIGTERM, grace_s: float = 0.0) -> KillLadder:
    return KillLadder("its cycle is over", signum, grace_s, UNKILLABLE_AFTER_S, looks=2)


# ---------------------------------------------------------------- events
class HostChecked(Value):
    """The answer to :class:`CheckHost`; ``problem``: why this node must not have ranks."""

    problem: str | None = None


class HostBroke(Value):
    """Something broke since the host was checked: ``problem``.

    A running rank is ended at once: the one whose device it is (``device`` is its local rank), or
    the first where ``device`` is None. A node without ranks checks its host again.
    """

    problem: str
    device: int | None = None


class RanksWaited(Value):
    """The answer to :class:`MeasureWaits`, at once; see :meth:`.KillLadder.climb`."""

    waited_s: float


class Swept(Value):
    """Nothing that the cycle's ranks started is alive any more."""


Event = (
    Begin
    | SignalArrived
    | HostChecked
    | HostBroke
    | RanksWaited
    | Swept
    | CallBegan
    | CallEnded
    | StartRanks
    | StopRanks
    | LeaveJob
    | rank_life.Event
    | node_evidence.Event
)
"""``CallBegan``: these ranks are in a call of a function, which goes on without those that fail
(restarts in place). ``LeaveJob``: this node leaves; only while nothing is alive that can be killed.
"""


# ---------------------------------------------------------------- effects
class SignalRanks(Value):
    """Send a signal to these ranks; SIGKILL also to everything in their sessions."""

    local_ranks: tuple[int, ...]
    signum: int


class MeasureWaits(Value):
    """The grace of these ranks is over: see how long one of them had no processor meanwhile."""

    local_ranks: tuple[int, ...]


class Sweep(Value):
    """End everything the ranks of this cycle left behind, then report :class:`Swept`."""

    cycle: int


class CheckHost(Value):
    """See whether this node is fit for ranks, then report :class:`HostChecked`, in bounded time."""

    after_ranks: bool
    """Ranks have just ended here: their GPU memory is to be free before others start."""


class EndRank(Value):
    """SIGKILL for a rank that can't be trusted to go on, because of ``problem``."""

    local_rank: int
    problem: str


class Explain(Value):
    """A cycle failed and all its ends are known: log the first cause."""

    cycle: int
    will_restart: bool


Report = (
    Begin
    | Unhealthy
    | RanksSucceeded
    | RanksStopped
    | RanksStuck
    | NodeReported
    | Suspect
    | Digests
)
LocalEffect = (
    StartRanks
    | SignalRanks
    | EndRank
    | EndHandlers
    | MeasureWaits
    | Sweep
    | CheckHost
    | RanksFailed
    | Explain
    | StartMonitor
    | ToMonitors
    | Deliver
    | IncidentOver
    | Note
)
Effect = LocalEffect | Report
"""``Report``: for the member, as ``RanksFailed`` is when it has its failure report. The first is
``Begin`` or ``Unhealthy``: the host was checked, and may have ranks or not.
"""


class NodePhase(enum.Enum):
    """The state of a node; see the picture in the module's docstring."""

    IDLE = "idle"
    RUNNING = "running"
    STOPPING = "stopping"
    SWEEPING = "sweeping"
    DONE = "done"


@dataclass
class Node:
    """The ranks of one node.

    Args:
        nproc: Ranks on this node.
        no_restart_exit_code: A rank that exits with it asks for no restart; 1 asks for nothing, as
            every exception ends with it.
        stop_grace_s: Seconds between SIGTERM and SIGKILL when ranks are stopped.
        signal_grace_s: The same after a signal to the launcher, forwarded to the ranks.
        checks_host: :class:`CheckHost` will be answered.
        measures_waits: :class:`MeasureWaits` will be.
        survives_ranks: While ranks are in a call (:class:`CallBegan`), the cycle goes on without
            those that fail, and has succeeded when the call has completed and all others ended
            well (min-healthy on one node, decision 31).
        lives: The state of each rank.
        evidence: This node's part in the job's incidents.

    Attributes:
        cycle: The one that this node has, or had, ranks in; -1: there was none.
        place: The place of this node in it.
    """

    nproc: int
    no_restart_exit_code: int = NO_RESTART
    stop_grace_s: float = 15.0
    signal_grace_s: float = 1800.0
    checks_host: bool = False
    measures_waits: bool = False
    survives_ranks: bool = False
    lives: RankLives = field(default_factory=RankLives)
    evidence: NodeEvidence = field(default_factory=NodeEvidence)

    place: CyclePlace | None = field(default=None, init=False)
    phase: NodePhase = field(default=NodePhase.IDLE, init=False)
    cycle: int = field(default=-1, init=False)
    alive: set[int] = field(default_factory=set, init=False)
    _exit_codes: dict[int, int] = field(default_factory=dict, init=False)
    _failed: set[int] = field(default_factory=set, init=False)
    """Ranks of this cycle whose failure was reported to the job."""
    _in_call: set[int] = field(default_factory=set, init=False)
    """Ranks without which the call goes on, or was completed."""
    _lost: set[int] = field(default_factory=set, init=False)
    """Ranks that failed in a call that went on."""
    _has_completed: bool = field(default=False, init=False)
    """The last call of this cycle has."""
    _ran_to_the_end: bool = field(default=False, init=False)
    """No rank of this cycle was asked to stop."""
    _may_restart: bool = field(default=True, init=False)
    _unexplained: int | None = field(default=None, init=False)
    """A cycle that failed here; explained when it is known whether there is another."""
    _asked_at: dict[int, float] = field(default_factory=dict, init=False)
    """When each signal came first."""
    _end: KillLadder = field(default_factory=_ladder, init=False)
    _is_measuring: bool = field(default=False, init=False)
    _sweep_until: float | None = field(default=None, init=False)
    _is_checking: bool = field(default=False, init=False)
    _is_rechecking: bool = field(default=False, init=False)
    """The job does not wait for that check."""
    _is_last: bool = field(default=False, init=False)
    """This node will not have ranks again."""
    _effects: list[Effect] = field(default_factory=list, init=False)

    @property
    def has_failed(self) -> bool:
        """A rank of this cycle did not end well, whether it was asked to end or not."""
        return bool(self._failed) or any(self._exit_codes.values())

    def next_deadline(self) -> float | None:
        """Earliest time at which :class:`TimePassed` would do something; None: never."""
        helpers = self.lives.next_deadline(), self.evidence.next_deadline()
        return earliest(self._end.due_at, self._sweep_until, *helpers)

    def ranks_started(self, pids: Mapping[int, int]) -> None:
        """The processes of this cycle, by local rank; :class:`StartRanks` was carried out."""
        self.lives.here.pids = pids

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The effects of ``event``, in order."""
        self._effects = []
        # A node that is done still replaces monitors and delivers evidence.
        if isinstance(event, rank_life.Event):
            self._follow(self.lives.handle(event, now), now)
        if isinstance(event, node_evidence.Event):
            self._do(*self.evidence.handle(event, now))
        if self.phase is not NodePhase.DONE:
            self._on_event(event, now)
            self._on_time(now)
        return self._effects

    def _follow(self, found: list[rank_life.Effect], now: float) -> None:
        for one in found:
            match one:
                case Exited() | FailedBeforeExit() | OnlyStuckLeft() if (
                    self.phase is NodePhase.DONE
                ):
                    pass  # a stuck rank, which this node has given up
                case Exited(local_rank, exit_code):
                    self._on_exit(local_rank, exit_code, now)
                case FailedBeforeExit(local_rank):
                    if local_rank in self.alive:
                        self._fail(local_rank)
                case OnlyStuckLeft(killed_at):
                    self.phase = NodePhase.STOPPING
                    self._kill(killed_at)
                case _:
                    self._do(one)

    def _on_event(self, event: Event, now: float) -> None:
        match event:
            case Begin():
                if self.checks_host:
                    self._check_host()
                else:
                    self._do(event)
            case StartRanks():
                if self.phase is NodePhase.IDLE:
                    self._start_cycle(event, now)
            case StopRanks(how=how, for_good=for_good):
                self._is_last = self._is_last or for_good
                self._on_stop_asked(now, at_once=how is How.AT_ONCE)
            case LeaveJob(exit_code, outcome=outcome):
                if self.phase is NodePhase.IDLE:
                    self._leave(failed=exit_code != 0 or outcome is None)
            case CallBegan(cycle, ranks):
                if cycle == self.cycle:  # else its guard was stopped until now
                    self._in_call = self._local(ranks) if self.survives_ranks else set()
                    self._has_completed = False
            case CallEnded(cycle, ranks, finished):
                if cycle == self.cycle:
                    self._in_call = self._in_call - self._local(ranks) if finished else set()
                    self._has_completed = finished
            case SignalArrived(signum):
                self._on_signal(signum, now)
            case HostChecked(problem):
                self._on_host_checked(problem)
            case HostBroke(problem, device):
                self._on_host_broke(problem, device, now)
            case RanksWaited(waited_s):
                self._climb(now, waited_s)
            case Swept():
                if self.phase is NodePhase.SWEEPING:  # else too late: see SWEEP_LIMIT_S
                    self._cycle_over(now)

    def _local(self, ranks: tuple[int, ...]) -> set[int]:
        here = self.lives.here.global_ranks
        return {here.index(rank) for rank in ranks if rank in here}

    def _do(self, *effects: Effect) -> None:
        self._effects += effects

    def _note(self, level: str, text: str) -> None:
        self._do(Note(level, text))

    # ------------------------------------------------------------ a cycle begins and ends
    def _start_cycle(self, start: StartRanks, now: float) -> None:
        formed, place = start.round, start.place
        self.place = place
        self.lives.start_cycle(
            formed.cycle, range(place.rank_offset, place.rank_offset + self.nproc), now
        )
        self.evidence.start_cycle(formed, place, self.lives.here)
        self.phase = NodePhase.RUNNING
        self._is_checking = self._is_rechecking = False
        self.cycle = formed.cycle
        self.alive = set(range(self.nproc))
        self._exit_codes.clear()
        for ranks in self._failed, self._in_call, self._lost:
            ranks.clear()
        self._has_completed = False
        self._may_restart = True
        self._do(start)  # first: no rank waits for a log line
        self._explain(will_restart=True)

    def _explain(self, *, will_restart: bool) -> None:
        if self._unexplained is not None:
            self._do(Explain(self._unexplained, will_restart))
            self._unexplained = None

    def _sweep(self, now: float) -> None:
        self._ran_to_the_end = self.phase is NodePhase.RUNNING
        self.phase = NodePhase.SWEEPING
        self._end = _ladder()
        self._sweep_until = now + SWEEP_LIMIT_S
        self._do(Sweep(self.cycle))

    def _cycle_over(self, now: float) -> None:
        """Nothing of the cycle is alive here, or waited for."""
        self._follow(self.lives.swept(), now)
        self._sweep_until = None
        self.phase = NodePhase.IDLE
        survived = self._has_completed and self._ran_to_the_end
        if self._well >= set(range(self.nproc)) - (self._lost if survived else set()):
            self._do(RanksSucceeded(self.cycle))
            return
        self._unexplained = self.cycle if self._failed else None
        if self.checks_host and not (self._is_last or self._asked_at):
            self._check_host()
        else:
            self._do(RanksStopped(self.cycle))

    def _leave(self, *, failed: bool) -> None:
        if failed:
            self._explain(will_restart=False)
        self.phase = NodePhase.DONE
        self._is_checking = False

    # ------------------------------------------------------------ the host
    def _check_host(self) -> None:
        self._is_checking = True
        self._do(CheckHost(after_ranks=self.cycle >= 0))

    def _on_host_broke(self, problem: str, device: int | None, now: float) -> None:
        if self.phase is NodePhase.RUNNING:
            doomed = sorted(self.alive) if self.survives_ranks else [min(self.alive)]
            for local_rank in doomed if device is None else {device} & self.alive:
                self._do(EndRank(local_rank, problem))
                self.lives.host_failed(local_rank, problem, now)
                # A rank in the driver of a broken device may never end: its failure counts now.
                self._fail(local_rank)
        elif self.phase is NodePhase.IDLE and not self._is_checking:
            self._is_rechecking = True
            self._check_host()

    def _on_host_checked(self, problem: str | None) -> None:
        if not self._is_checking:
            return
        self._is_checking = False
        is_first = self.cycle < 0 and not self._is_rechecking
        if problem is not None:
            self._do(Unhealthy(problem))
        elif is_first:
            self._do(Begin())
        if not (is_first or self._is_rechecking):
            self._do(RanksStopped(self.cycle))
        self._is_rechecking = False

    def _give_up_checking(self) -> None:
        """The result has no effect any more."""
        if self._is_checking and self.cycle >= 0:
            self._on_host_checked(None)

    # ------------------------------------------------------------ ranks end
    def _on_exit(self, local_rank: int, exit_code: int, now: float) -> None:
        if local_rank not in self.alive:
            return
        self.alive.discard(local_rank)
        self._exit_codes[local_rank] = exit_code
        if exit_code != 0:
            asks = exit_code == self.no_restart_exit_code and exit_code != _EXCEPTION
            self._fail(local_rank, may_restart=not asks)
        if not self.alive:
            self._sweep(now)
        elif (
            self.phase is NodePhase.RUNNING
            and self._well
            and self.alive <= self._failed
            and self._end.due_at is None
        ):  # they were ended, and no rank is left that the cycle goes on for
            self._signal(SIGTERM, self.stop_grace_s, now)

    def _fail(self, local_rank: int, *, may_restart: bool = True) -> None:
        """Report the first failure, and the first that asks for no restart.

        Of ranks that are being stopped for a failure elsewhere, only the latter. Where a call goes
        on, the first of each rank counts, and then the first without which it cannot go on.
        """
        runs = self.phase is NodePhase.RUNNING
        goes_on = runs and local_rank in self._in_call
        others = set() if goes_on else self._failed - self._lost
        is_known = local_rank in self._failed or bool(others)
        asks_first = self._may_restart and not may_restart
        self._may_restart = self._may_restart and may_restart
        if not (runs and not is_known) and not asks_first:
            return
        self._failed.add(local_rank)
        left = self.alive - self._failed if goes_on else self.alive
        if goes_on:
            self._lost.add(local_rank)
            every = not (left or self._has_completed)
        else:
            every = not left or (runs and self.survives_ranks)
        self._do(RanksFailed(self.cycle, local_rank, every, may_restart))
        if goes_on and left:
            how = f"with {count(len(left), 'other rank')} (--ft-restart-policy min-healthy)"
            self._note("info", f"cycle {self.cycle} continues {how}")

    @property
    def _well(self) -> set[int]:
        """Ranks that ended with 0, without those that were ended for a hang."""
        return {k for k, code in self._exit_codes.items() if code == 0} - self._failed

    # ------------------------------------------------------------ ranks are stopped
    def _on_stop_asked(self, now: float, *, at_once: bool) -> None:
        if self.phase is NodePhase.IDLE and self._is_last:
            self._give_up_checking()
        if self.phase is NodePhase.RUNNING:
            self._stop(SIGTERM, self.stop_grace_s, now)
        elif self.phase is NodePhase.STOPPING:  # they have a signal; its grace may be half an hour
            self._end.shorten(now, self.stop_grace_s)
        if at_once and self.phase is NodePhase.STOPPING:
            self._kill(now)

    def _stop(self, signum: int, grace_s: float, now: float) -> None:
        self.phase = NodePhase.STOPPING
        self._signal(signum, grace_s, now)

    def _signal(self, signum: int, grace_s: float, now: float) -> None:
        self._end = _ladder(signum, grace_s)
        self._end.send(now)
        self._send(signum)

    def _send(self, signum: int) -> None:
        self._do(SignalRanks(tuple(sorted(self.alive)), signum))

    def _kill(self, now: float) -> None:
        """End the ranks and all that they started; a second SIGKILL would have no effect."""
        if not self._end.is_killed:
            self._end.kill(now)
            self._send(SIGKILL)

    def _on_signal(self, signum: int, now: float) -> None:
        is_first = not self._asked_at
        is_again = signum in self._asked_at
        first_at = self._asked_at.setdefault(signum, now)
        if is_again and signum != SIGINT and now < first_at + SAME_REQUEST_S:
            return
        self._give_up_checking()
        if not self.alive or self.phase is NodePhase.IDLE:
            return  # sweeping: ends in a moment anyway
        if is_again:
            if not self._end.is_killed:
                came = "interrupted twice" if signum == SIGINT else f"{signal_name(signum)} again"
                self._note("warning", f"{came}: killing the ranks without grace")
            self._kill(now)
            return
        grace = "--workers-stop-timeout"
        if self.phase is NodePhase.RUNNING:
            self._stop(signum, self.signal_grace_s, now)
            grace = "--term-timeout"
        else:
            self._send(signum)
        if is_first:
            self._note("warning", self._effect_of_signal(signum, grace, now))
        elif signum == SIGINT:
            some = count(len(self.alive), "rank")
            text = f"SIGINT: passed on to {some}, too. Press Ctrl-C again to kill them now"
            self._note("warning", text)

    def _effect_of_signal(self, signum: int, grace: str, now: float) -> str:
        name, some = signal_name(signum), len(self.alive)
        text = f"{name}: passed on to {some} rank{'s' if some > 1 else ''}, no restart any more"
        left_s = None
        if self._end.due_at is not None and not self._end.is_killed:
            left_s = max(0.0, self._end.due_at - now)
            text += f"; SIGKILL after {left_s:.0f} s ({grace})"
        if signum == SIGINT:
            return f"{text}. Press Ctrl-C again to kill them now"
        if left_s is not None and left_s <= SAME_REQUEST_S:
            return text
        after = f"later than {SAME_REQUEST_S:g} s after this one"
        return f"{text}. A second {name}, {after}, kills them at once"

    # ------------------------------------------------------------ time
    def _on_time(self, now: float) -> None:
        if not (self.measures_waits and self._end.is_grace_over(now)):
            self._climb(now)
        elif not self._is_measuring:
            self._is_measuring = True
            self._do(MeasureWaits(tuple(sorted(self.alive))))
        if overslept(self._sweep_until, now, 0.2 * SWEEP_LIMIT_S):
            self._sweep_until = now + SWEEP_LIMIT_S  # the launcher stood still, and the sweep too
        elif self._sweep_until is not None and now >= self._sweep_until:
            self._note(
                "warning",
                f"leftovers of cycle {self.cycle} are still alive {SWEEP_LIMIT_S:.0f} s after "
                "SIGKILL; continuing without waiting for them",
            )
            self._cycle_over(now)

    def _climb(self, now: float, waited_s: float = 0.0) -> None:
        self._is_measuring = False
        step = self._end.climb(now, waited_s)
        if step == KILLED:
            self._send(SIGKILL)
        elif step == STUCK:
            self._give_up()

    def _give_up(self) -> None:
        """SIGKILL does not end a rank: nothing more can be done on this node."""
        stuck = ", ".join(str(rank) for rank in sorted(self.alive))
        self._note(
            "error",
            f"local rank {stuck} is still alive {UNKILLABLE_AFTER_S:.0f} s after SIGKILL: "
            "stuck in the kernel (uninterruptible). This node cannot continue: "
            "check its storage, network and GPU drivers; it probably needs a reboot",
        )
        self.phase = NodePhase.IDLE
        self._unexplained = self.cycle
        self._do(RanksStuck(self.cycle, "a rank cannot be killed"))
