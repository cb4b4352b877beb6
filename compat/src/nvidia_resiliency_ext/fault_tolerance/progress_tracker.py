"""Whether a job that restarts again and again still makes progress."""

from __future__ import annotations

from holdfast.job.pure.restarts import RestartProgress
from holdfast.node.records.iteration_file import IterationFile
from nvidia_resiliency_ext._former import ignore

__all__ = ["ProgressTracker", "TrainingProgressTracker"]


class ProgressTracker:
    """Counts cycles without progress, by the iteration in a file that the training writes.

    The launcher has its own (``--ft-max-no-progress-cycles``); this one is for programs.

    Args:
        min_progress_iterations: A cycle with fewer new iterations has made no progress.
        max_no_progress_cycles: Restarting does not help after so many in a row; 0 or
            less: never given up.
        checkpoint_iteration_file: Holds one whole number. ``None``: the iteration is what
            :meth:`update_iteration` was given last.
    """

    def __init__(
        self,
        min_progress_iterations: int = 1,
        max_no_progress_cycles: int = 2,
        checkpoint_iteration_file: str | None = None,
        **others: object,
    ) -> None:
        ignore(others, "ProgressTracker")
        self.min_progress_iterations = min_progress_iterations
        self.max_no_progress_cycles = max_no_progress_cycles
        self.checkpoint_iteration_file = checkpoint_iteration_file
        self._file = IterationFile(checkpoint_iteration_file) if checkpoint_iteration_file else None
        self._progress = RestartProgress(min_progress_iterations, max_no_progress_cycles)
        self._given: int | None = None
        self._futile: str | None = None
        self.cycle_start()

    @property
    def is_enabled(self) -> bool:
        """``max_no_progress_cycles`` is above 0."""
        return self.max_no_progress_cycles > 0

    @property
    def current_iteration(self) -> int | None:
        """As the file or :meth:`update_iteration` says; ``None``: unknown."""
        return self._given if self._file is None else self._file.read(quiet=True)

    @property
    def no_progress_count(self) -> int:
        """Failed cycles in a row that made no progress."""
        return self._progress.idle_cycles

    def update_iteration(self, iteration: int) -> None:
        """The training has reached ``iteration``; used where there is no file."""
        self._given = iteration

    def cycle_start(self) -> None:
        """A cycle begins at the present iteration."""
        iteration = self.current_iteration
        self._progress.at_start = iteration

    def analyze_previous_cycle(self) -> bool:
        """A cycle failed: count it, and begin the next. True: it made progress, or may have."""
        iteration = self.current_iteration if self._file is None else self._file.read()
        if self.is_enabled and iteration is not None:
            self._progress.reached = iteration
            self._futile = self._progress.why_futile()
            self._progress.cycle_started()
        return self.no_progress_count == 0

    def should_terminate_early(self) -> bool:
        """Too many cycles in a row made no progress: another restart would not help."""
        return self._futile is not None


TrainingProgressTracker = ProgressTracker
