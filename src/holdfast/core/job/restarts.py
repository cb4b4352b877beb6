"""Whether a job that failed is started again, and when: budget, back-off, progress, requests.

Pure. B-1: restarts never exceed the budget. Its leader asks, once for each cycle that failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.core.budget import Budget
from holdfast.core.job.membership import SHUTDOWN
from holdfast.core.job.rules import RestartPolicy, Rules
from holdfast.core.launch.exit_codes import Ending, why_over
from holdfast.core.wording import count

READ_LIMIT_S = 5.0
"""How long reading the iteration of a checkpoint may hold up a restart."""


@dataclass
class Restarts:
    """What a job may still do about failures. Times in seconds.

    Args:
        most: How often the job may be started again after a failure, all nodes together.
        period_s: ``most`` is per any such period; None: for the whole life of the job.
        backoff_s: Wait before the second of two failures in a row is restarted; doubles up to
            ``backoff_max_s``. A cycle that lived for ``backoff_max_s`` ends the row. 0: never wait.
        max_no_progress_cycles: Give up after so many failed cycles in a row that did not advance
            the checkpoint by ``min_progress_iterations``; 0: never.
    """

    most: int = 0
    period_s: float | None = None
    backoff_s: float = 0.0
    backoff_max_s: float = 300.0
    max_no_progress_cycles: int = 0
    min_progress_iterations: int = 1

    used: int = field(default=0, init=False)
    _started_at: float = field(default=0.0, init=False)
    _failures_in_row: int = field(default=0, init=False)
    _idle_cycles: int = field(default=0, init=False)
    _at_start: int | None = field(default=None, init=False)
    _reached: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._budget = Budget(self.most, self.period_s)

    @property
    def spent(self) -> int:
        """Restarts that count against the budget now."""
        return self._budget.spent

    @property
    def left(self) -> int:
        """Restarts that the budget still has."""
        return self._budget.left

    def cycle_started(self, now: float) -> None:
        """All ranks start; what the last failed cycle had reached is where this one begins."""
        self._started_at = now
        if self._reached is not None:
            self._at_start, self._reached = self._reached, None

    def begins_at(self, iteration: int) -> None:
        """The checkpoint that the running cycle started from is of this iteration."""
        self._at_start = iteration

    def reached(self, iteration: int) -> None:
        """The job's last checkpoint is of this iteration; told between a failure and its cost."""
        self._reached = iteration

    def why_futile(self) -> str | None:
        """Count the cycle that failed; why another would be no use, None if it may be of some.

        A cycle of which nobody told what it reached is not counted.
        """
        if self._reached is not None:
            done = self._reached - (self._at_start or 0)
            self._idle_cycles = self._idle_cycles + 1 if done < self.min_progress_iterations else 0
        if 0 < self.max_no_progress_cycles <= self._idle_cycles:
            return f"no progress in {count(self._idle_cycles, 'cycle')} in a row"
        return None

    def take(self, now: float) -> float | None:
        """Spend a restart: how long to wait before it, None if there is none left."""
        if not self._budget.take(now):
            return None
        self.used += 1
        if now - self._started_at >= self.backoff_max_s:
            self._failures_in_row = 0
        self._failures_in_row += 1
        if not self.backoff_s or self._failures_in_row == 1:
            return 0.0
        doublings = min(self._failures_in_row - 2, 32)
        return min(self.backoff_s * 2.0**doublings, self.backoff_max_s)


@dataclass
class Failure:
    """A cycle that failed: is there another one?

    A restart is spent at once. The decision follows when all survivors are back: by then it is
    known which ranks asked for none, and how far the job's checkpoints are.

    Attributes:
        cause: Of the failure that is still to be decided about; None: there is none.
        may_restart: No rank of the cycle said that a restart would be no use.
        shut_down: A rank asked for that: why; survivors of the cycle may still say more.
    """

    rules: Rules

    cause: str | None = field(default=None, init=False)
    may_restart: bool = field(default=True, init=False)
    shut_down: str | None = field(default=None, init=False)
    _is_spent: bool = field(default=False, init=False)
    """No restart was left for it."""
    _read_by: float | None = field(default=None, init=False)
    _futile: str | None = field(default=None, init=False)
    """Why another cycle would be no use, as far as is known of the last one."""

    def __post_init__(self) -> None:
        rules = self.rules
        self.restarts = Restarts(
            most=rules.max_restarts,
            period_s=rules.restarts_period_s,
            backoff_s=rules.backoff_s,
            backoff_max_s=rules.backoff_max_s,
            max_no_progress_cycles=rules.max_no_progress_cycles,
            min_progress_iterations=rules.min_progress_iterations,
        )

    def cycle_started(self, now: float) -> None:
        """What was said of the last cycle does not hold for this one."""
        self.may_restart = True
        self.restarts.cycle_started(now)

    def happened(self, cause: str, now: float) -> tuple[float, str]:
        """Spend a restart, if one is left and may be wanted.

        Returns:
            How long to wait before the next cycle, and why there will be none; empty: it seems
            that there will.
        """
        self.cause = cause
        wants_one = self.may_restart and self.shut_down is None
        wait_s = self.restarts.take(now) if wants_one else None
        self._is_spent = wait_s is None
        over = why_over(
            no_use=not self.may_restart,
            shut_down=self.shut_down is not None,
            spent=self._is_spent,
        )
        return wait_s or 0.0, "" if over is None else self.why_no_restart(over)

    def reads_iteration(self, now: float) -> None:
        """How far the job's checkpoints are is being read."""
        self._read_by = now + READ_LIMIT_S

    def iteration_read(self, iteration: int | None, cycle: int) -> None:
        """It was; None: it cannot be known. ``cycle``: the last one that was formed."""
        if self.cause is None:
            if iteration is not None and cycle == 0:
                self.restarts.begins_at(iteration)
            return
        self._read_by = None
        if iteration is not None:
            self.restarts.reached(iteration)

    def waits_until(self, now: float) -> float | None:
        """Until when the decision waits for that; None: it need not, or not any more."""
        if self.cause is None or not self.may_restart or self._read_by is None:
            return None
        return self._read_by if now < self._read_by else None

    def decided(self) -> Ending | None:
        """How the job ends; None: there is another cycle. Once for each failure."""
        over = self.why_over()
        self.cause = self._read_by = None
        return over

    def why_over(self, *, excluded: bool = False) -> Ending | None:
        """What becomes of the job after the cycle that failed; counts it, so once for each.

        ``excluded``: a rank wants its node to leave, and there is no other.
        """
        self._futile = self.restarts.why_futile()
        return why_over(
            no_use=not self.may_restart,
            no_progress=self._futile is not None,
            shut_down=self.shut_down is not None,
            spent=self._is_spent,
            excluded=excluded,
        )

    def why_no_restart(self, over: Ending) -> str:
        """For people: why the cycle is not followed by another."""
        rules = self.rules
        if over is Ending.NO_USE:
            code = rules.no_restart_exit_code
            return f"exit code {code} asks for no restart (--ft-no-restart-exit-code)"
        if over is Ending.NO_PROGRESS and self._futile is not None:
            return self._futile
        if over is Ending.SHUT_DOWN:
            return f"a rank has asked for {SHUTDOWN}"
        return f"no restart is left (--max-restarts {rules.max_restarts})"

    def exit_code(self, over: Ending) -> int | None:
        """Of a job that ends so; None: each launcher says how its own ranks fared."""
        if over is Ending.FAILED and self.rules.restart is RestartPolicy.MIN_HEALTHY:
            return None
        return over.code(self.rules.no_restart_exit_code)
