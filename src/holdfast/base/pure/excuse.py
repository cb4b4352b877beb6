"""Time that is given back by a process that was itself held up: suspended, stopped, starved.

The cause may have held up the watched processes, too. So a verdict that was due while this one
slept waits until they have had as much time, or one limit if that is less: a process that works
needs no more to show a sign of life.

Pure. Times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

from holdfast.base.pure.value import Value

LATE_S = 0.5
"""A wake-up later than this means that the waker itself was held up, not just scheduled."""


class Excuse(Value):
    """Its giver woke at ``woke_at``, ``late_s`` after the instant at which it wanted to."""

    woke_at: float
    late_s: float

    def extend(self, deadline: float, limit_s: float) -> float:
        """When to act that was to act at ``deadline``, which is the end of ``limit_s``."""
        return max(deadline, self.woke_at + min(self.late_s, limit_s))


def overslept(due_at: float | None, now: float, from_s: float) -> Excuse | None:
    """The excuse of a watcher due at ``due_at``; None: it was not later than ``from_s``."""
    if due_at is None or now - due_at <= from_s:
        return None
    return Excuse(now, now - due_at)
