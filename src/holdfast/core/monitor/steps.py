"""How long a rank may go without an optimizer step, where nobody chose a timeout. Pure; seconds.

A rank that sends no heartbeats is watched by its steps (``rank/auto/sitecustomize.py``). Nobody has
said how long its pauses are, and an evaluation or a checkpoint is no hang. So

    the limit    is ``FACTOR`` times the longest pause between two steps so far, at least the
                 floor, at most the configured timeout between heartbeats; none before ``WARM_UP``
    when it is   all ranks of the job are looked at, and one is ended only if the verdict names a
    over         culprit that holds up others and does nothing; else the limit is doubled

The default floor is the time after which NCCL's own watchdog of torch ends such a job (10 minutes).
"""

from __future__ import annotations

from holdfast.core.evidence import COMPUTING, KERNEL, SLOW, UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.evidence import Verdict

FACTOR = 10.0
WARM_UP = 20
"""Steps: the first ones compile, allocate and fill caches."""
_NOT_HUNG = (COMPUTING, KERNEL, SLOW, UNKNOWN)
"""A culprit that computes goes on by itself; one inside the kernel does not end of a signal."""


def step_limit(
    steps: float, longest_s: float, floor_s: float, configured_s: float | None
) -> float | None:
    """How long the present pause may become; ``None``: that is not known yet.

    Args:
        steps: How many were done.
        longest_s: The longest time between two of them; negative: there were none.
        floor_s: The least limit.
        configured_s: The timeout between heartbeats, the most; None: there is no most.
    """
    if steps < WARM_UP or longest_s < 0:
        return None
    limit_s = max(floor_s, FACTOR * longest_s)
    return limit_s if configured_s is None else min(limit_s, configured_s)


def is_hang(verdict: Verdict | None) -> bool:
    """Whether a rank is to be ended that has only made no step for a while."""
    return verdict is not None and bool(verdict.culprits) and verdict.kind not in _NOT_HUNG
