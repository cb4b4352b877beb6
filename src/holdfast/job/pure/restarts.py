"""Decide whether a job that failed is started again, and when, or how it ends.

Pure. B-1: restarts never exceed the budget. The leader asks once for each cycle that failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.base.pure.budget import Budget
from holdfast.base.pure.wording import count
from holdfast.job.pure.exit_codes import Ending
from holdfast.job.pure.membership import (
    SHUTDOWN,
    ControlAsked,
    End,
    FailureReport,
    JobOutcome,
    Leave,
    LeaveWhy,
)
from holdfast.job.pure.rules import RestartPolicy, Rules
from holdfast.job.pure.timing import READ_LIMIT_S

_ENDS_WITH = {
    LeaveWhy.EXCLUDED: Ending.EXCLUDED,
    LeaveWhy.UNHEALTHY: Ending.NO_NODE_LEFT,
    LeaveWhy.SIGNALLED: Ending.SIGNALLED,
    LeaveWhy.STUCK: Ending.STUCK,
    LeaveWhy.FENCED: Ending.LEADER_LOST,
}
"""How a job of one node ends when that leaves; after FINISHED it is over already."""
_OUTCOMES = {
    Ending.SUCCEEDED: JobOutcome.SUCCEEDED,
    Ending.SHUT_DOWN: JobOutcome.SHUT_DOWN,
}


@dataclass
class RestartProgress:
    """Whether failed cycles advance the job's checkpoint; a cycle that is not known may have.

    Attributes:
        least_iterations: A cycle that adds fewer is idle.
        most_cycles: Give up after so many idle ones in a row; 0: never.
        at_start: Iteration of the checkpoint that the cycle started from; None: not known.
        reached: Of the last one, when the cycle has failed; None: not known.
    """

    least_iterations: int = 1
    most_cycles: int = 0
    at_start: int | None = None
    reached: int | None = None
    idle_cycles: int = 0

    def cycle_started(self) -> None:
        """It begins at the iteration that the last failed cycle had reached."""
        if self.reached is not None:
            self.at_start, self.reached = self.reached, None

    def why_futile(self) -> str | None:
        """Count the cycle that failed; why another would be futile, None: it may not be."""
        if self.reached is not None:
            is_idle = self.reached - (self.at_start or 0) < self.least_iterations
            self.idle_cycles = self.idle_cycles + 1 if is_idle else 0
        if 0 < self.most_cycles <= self.idle_cycles:
            return f"no progress in {count(self.idle_cycles, 'cycle')} in a row"
        return None


@dataclass
class SameFailures:
    """Whether cycles end of the same failure, again and again.

    Attributes:
        most: Give up after so many in a row; 0: never.
    """

    most: int = 0
    _signature: str = ""
    _in_row: int = 0

    def why_futile(self, signature: str, *, has_progressed: bool) -> str | None:
        """The same by its first cause; empty: it is like no other."""
        is_same = bool(signature) and signature == self._signature and not has_progressed
        self._in_row = self._in_row + 1 if is_same else int(bool(signature))
        self._signature = signature
        if 0 < self.most <= self._in_row:
            cycles = count(self._in_row, "cycle")
            return f"the same failure in {cycles} in a row (--ft-max-same-failures): {signature}"
        return None


@dataclass
class Restarts:
    """The restarts of a job.

    A restart is spent at once. The decision follows when all survivors are back: by then it is
    known which ranks asked for none, and how far the job's checkpoints are.

    Attributes:
        used: Restarts after a failure, since the job began.
        cause: Of the failure that is still to be decided about; None: there is none.
        may_restart: No rank of the cycle asked for no restart.
        shut_down: Why a rank asked for that, for people; None: none did.
        ended_by: The first cause of a cycle that is followed by another; None: it did not fail.
        was_said: That one is the ``cause``, which the nodes know by the Stop of their cycle.
        started_at: When the last cycle began.
    """

    rules: Rules

    used: int = field(default=0, init=False)
    cause: str | None = field(default=None, init=False)
    may_restart: bool = field(default=True, init=False)
    shut_down: str | None = field(default=None, init=False)
    ended_by: FailureReport | None = field(default=None, init=False)
    was_said: bool = field(default=False, init=False)
    started_at: float = field(default=0.0, init=False)
    _reports: dict[str, FailureReport] = field(default_factory=dict, init=False)
    """By node."""
    _decisive: FailureReport | None = field(default=None, init=False)
    """The one for which the cycle was stopped."""
    _is_spent: bool = field(default=False, init=False)
    """No restart was left for it."""
    _read_by: float | None = field(default=None, init=False)
    _futile: str | None = field(default=None, init=False)
    """Why another cycle would be futile, by the progress of the last one."""
    _same: str | None = field(default=None, init=False)
    """The same, by its failure."""
    _failures_in_row: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        rules = self.rules
        self._budget = Budget(rules.max_restarts, rules.restarts_period_s)
        self._progress = RestartProgress(
            rules.min_progress_iterations, rules.max_no_progress_cycles
        )
        self._failures = SameFailures(rules.max_same_failures)

    @property
    def left(self) -> int:
        """Restarts that the budget still has."""
        return self._budget.left

    @property
    def is_none_left(self) -> bool:
        """Whether a cycle that fails now, or at any time later, is followed by no other.

        Where a cycle goes on without nodes that are lost, none needs to be.
        """
        rules = self.rules
        ends_all = rules.restart is RestartPolicy.ANY_FAILED and not rules.is_of_one
        is_spent = self.left == 0 and (rules.restarts_period_s is None or not rules.max_restarts)
        return ends_all and is_spent

    def inherit(self, used: int, left: int, now: float) -> None:
        """Of the leader before; of the restarts of a period, when they were is not known."""
        self.used = used
        for _ in range(max(0, self.left - left)):
            self._budget.take(now)

    def at_least(self, used: int, now: float) -> None:
        """A launcher knows of more restarts than the leader did."""
        while self.used < used:
            self._budget.take(now)
            self.used += 1

    def cycle_started(self, now: float) -> None:
        """All ranks start."""
        self.may_restart = True
        self.ended_by = None
        self._reports.clear()
        self.started_at = now
        self._progress.cycle_started()

    def reported(self, node: str, failure: FailureReport) -> None:
        """The failure of a node; its last report counts, in the order of the first ones."""
        self._reports[node] = failure

    def lost(self, node: str, cause: str) -> None:
        """A node of the cycle is gone; it may have reported a failure before."""
        known = self._reports.get(node)
        if known is None or known.names_a_peer:
            self._reports[node] = FailureReport(cause)

    def of_node(self, node: str) -> FailureReport:
        """Its report, as far as there is one."""
        return self._reports.get(node, FailureReport())

    def _first_report(self) -> FailureReport | None:
        """The first that does not name a peer: a rank that lost one may report before it."""
        return min(self._reports.values(), key=lambda it: it.names_a_peer, default=None)

    def failed(self, cause: str, node: str, now: float) -> tuple[float, Ending | None]:
        """The cycle failed, as this node reports. Spend a restart, if one may be wanted.

        Returns how long to wait before the next cycle, and how the job ends instead (None: it seems
        that it does not).
        """
        self.cause, self._decisive = cause, self._reports.get(node)
        wants_one = self.may_restart and self.shut_down is None
        wait_s = self._take(now) if wants_one else None
        self._is_spent = wait_s is None
        return wait_s or 0.0, self._over()

    def _take(self, now: float) -> float | None:
        """How long to wait before the restart; None: none is left."""
        if not self._budget.take(now):
            return None
        rules = self.rules
        self.used += 1
        if now - self.started_at >= rules.backoff_max_s:
            self._failures_in_row = 0
        self._failures_in_row += 1
        if not rules.backoff_s or self._failures_in_row == 1:
            return 0.0
        doublings = min(self._failures_in_row - 2, 32)
        return min(rules.backoff_s * 2.0**doublings, rules.backoff_max_s)

    def asked_to_shut_down(self, asked: ControlAsked, name: str) -> None:
        """By a rank of the node with this name, or by its launcher."""
        by = f"rank {asked.rank} on {name}" if asked.rank >= 0 else name
        self.shut_down = f"{by} asked to shut the workload down: {asked.text}"

    def reads_iteration(self, now: float) -> None:
        """How far the job's checkpoints are is being read."""
        self._read_by = now + READ_LIMIT_S

    def iteration_read(self, iteration: int | None, cycle: int) -> None:
        """It was; None: it cannot be known. ``cycle``: the last one that was formed."""
        if self.cause is not None:
            self._read_by = None
            self._progress.reached = iteration
        elif cycle == 0 and iteration is not None:
            self._progress.at_start = iteration

    def waits_until(self, now: float) -> float | None:
        """Until when the decision waits for that; None: it need not, or not any more."""
        if self.cause is None or not self.may_restart or self._read_by is None:
            return None
        return self._read_by if now < self._read_by else None

    def decided(self) -> Ending | None:
        """How the job ends; None: there is another cycle. Once for each failure."""
        over, first, decisive = self.why_over(), self._first_report(), self._decisive
        self.was_said = first is None or (decisive is not None and first.facts == decisive.facts)
        failure = first or FailureReport()
        if self.was_said and self.cause is not None:
            failure = FailureReport(**{**vars(failure), "cause": self.cause})
        self.ended_by = failure
        self.cause = self._read_by = self._decisive = None
        return over

    def why_over(self) -> Ending | None:
        """The end of the job after the cycle that failed; counts it, so once for each."""
        progress, first = self._progress, self._first_report()
        self._futile = progress.why_futile()
        self._same = self._failures.why_futile(
            first.signature if first is not None else "",
            has_progressed=progress.reached is not None and progress.idle_cycles == 0,
        )
        return self._over()

    def _over(self) -> Ending | None:
        return next((ending for ending, why in self._reasons().items() if why), None)

    def why_no_restart(self, over: Ending) -> str:
        """For people: why the cycle is not followed by another."""
        return self._reasons()[over] or ""

    def _reasons(self) -> dict[Ending, str | None]:
        """Why no other cycle follows; None: not because of that.

        What says most about another attempt comes first: after 93 a scheduler tries none.
        """
        rules, code = self.rules, self.rules.no_restart_exit_code
        no_use = f"exit code {code} asks for no restart (--ft-no-restart-exit-code)"
        spent = f"no restart is left (--max-restarts {rules.max_restarts})"
        return {
            Ending.NO_USE: None if self.may_restart else no_use,
            Ending.NO_PROGRESS: self._futile,
            Ending.SAME_FAILURE: self._same,
            Ending.SHUT_DOWN: self.shut_down and f"a rank has asked for {SHUTDOWN}",
            Ending.FAILED: spent if self._is_spent else None,
        }

    @property
    def no_other_follows(self) -> bool:
        """Whether no other cycle follows this one, however it ends, as far as is known by now.

        Of :meth:`_reasons`, those that do not wait for the end of this cycle.
        """
        return not self.may_restart or self.shut_down is not None or not self.left

    # ------------------------------------------------------------ the end of the job
    def ending_without(self, leave: Leave) -> Ending | None:
        """How a job of one node ends when that leaves; None: it is over already."""
        ending = _ENDS_WITH.get(leave.why)
        if ending is Ending.EXCLUDED and self.cause is not None:
            return self.why_over() or ending
        return ending

    def end(self, over: Ending, cause: str, why: str, stopped: int) -> End:
        """For ``why`` and ``stopped`` see :class:`.End`."""
        return End(
            _OUTCOMES.get(over, JobOutcome.FAILED),
            self._exit_code(over),
            cause,
            why,
            workload=self.rules.workload,
            over=over.name,
            stopped=stopped,
        )

    def _exit_code(self, over: Ending) -> int | None:
        """None: each launcher says how its own ranks fared."""
        rules = self.rules
        min_healthy = rules.restart is RestartPolicy.MIN_HEALTHY and not rules.is_of_one
        if over is Ending.FAILED and min_healthy:
            return None
        return over.code(rules.no_restart_exit_code)
