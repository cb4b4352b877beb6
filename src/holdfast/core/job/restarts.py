"""Whether a job that failed is started again, and when: budget, back-off, progress.

Pure. B-1: restarts never exceed the budget. One for each job, asked by whoever decides for it: the
node that is alone, or the leader of several.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.core.budget import Budget
from holdfast.core.wording import count


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
