"""Decide when a trainer's state is whole, so that a snapshot of it may be taken.

    step ends ──► log, evaluate, save ──► last of its epoch, or a stop?
                                            no: take      yes: wait for the end of the epoch
    epoch ends ─► log, evaluate, save ──► take, at the begin of the next epoch

A snapshot in the middle of that work would have the step and lack what belongs to it: a training
that goes on from it would log, evaluate or save once less. Pure.
"""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    """Where a training goes on.

    Attributes:
        epoch: Counted from 0.
        batches: Of this epoch, which are done.
        is_over: No step is left to do.
    """

    epoch: int = 0
    batches: int = 0
    is_over: bool = False


class SnapshotMoments:
    """One training.

    Args:
        at: Where it begins.
    """

    def __init__(self, at: Position) -> None:
        self.at = at
        self._has_stepped = False

    def batch_ended(self, *, has_stepped: bool) -> None:
        """``has_stepped``: with a step of the optimizer. The trainer's work after it is not done.

        Without one, gradients are half of the state, and no snapshot has them.
        """
        self.at = Position(self.at.epoch, self.at.batches + 1)
        self._has_stepped = has_stepped

    def step_done(self, *, is_last: bool) -> bool:
        """All work after a batch is done; whether to take a snapshot now.

        Args:
            is_last: Of its epoch, or the trainer stops after it.
        """
        if not self._has_stepped or is_last:
            return False
        self._has_stepped = False
        return True

    def epoch_done(self, *, is_over: bool) -> bool:
        """All work after an epoch is done; whether to take a snapshot now."""
        has_stepped, self._has_stepped = self._has_stepped, False
        self.at = Position(self.at.epoch + 1, 0, is_over)
        return has_stepped


def is_snapshot_newer(snapshot_step: int, checkpoint_step: int | None) -> bool:
    """Whether a training begins from its snapshot. At the same step it does: that is faster."""
    return checkpoint_step is None or snapshot_step >= checkpoint_step
