"""How a run of a trainer ended, and whether its training is complete. Pure."""

from __future__ import annotations


def is_clean_stop(error: BaseException | None, *, is_sigterm: bool = False) -> bool:
    """The program ended the run on purpose, and all ranks did: ``sys.exit()``, ``sys.exit(0)``.

    Args:
        error: The exception that ended the run; ``None``: not known, so a failure.
        is_sigterm: This rank received SIGTERM. A trainer may turn that into a ``SystemExit``, but
            other ranks may be gone, or stop after another step: nothing collective can follow.
    """
    return isinstance(error, SystemExit) and not error.code and not is_sigterm


def has_reached_end(
    *, max_steps: int | None, global_step: int, max_epochs: int | None, current_epoch: int
) -> bool:
    """The training is as long as it was asked to be; a maximum of ``None``, 0 or -1 is not one."""
    return 0 < (max_steps or 0) <= global_step or 0 < (max_epochs or 0) <= current_epoch


def is_training_completed(*, iterations: int, has_failed: bool, has_reached_end: bool) -> bool:
    """No further job is needed to go on with this training.

    Args:
        iterations: Training iterations of this run. One that found nothing left to do made none, or
            one where the time for the training (``max_time``) was over before.
        has_failed: The run raised.
        has_reached_end: See :func:`has_reached_end`.
    """
    return has_reached_end or (iterations <= 1 and not has_failed)
