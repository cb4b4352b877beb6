"""Of how many steps one is taken, so that snapshots cost no more than a share of the time. Pure."""

from __future__ import annotations

import math

SHARE = 0.01
"""Of the training's time."""
SAMPLES = 8
"""Snapshots that are taken before a rank reports their cost."""


def cadence(cost_s: float, step_s: float, share: float = SHARE) -> int:
    """One step of so many, 1 or more.

    Args:
        cost_s: The time that one snapshot adds to the time of the training.
        step_s: One step without a snapshot.
        share: Of the time, at most.
    """
    if cost_s <= 0.0:
        return 1
    return max(1, math.ceil(cost_s / (share * max(step_s, 1e-9)) - 1e-9))


def is_due(step: int, every: int, every_from: int) -> bool:
    """Whether a snapshot of ``step`` is taken; ``every``: 0 until it is agreed."""
    return every <= 1 or step < every_from or step % every == 0
