"""How long a guard and its ranks may go on without the coordinator: all of it, in one place.

The others go on without a node that the coordinator has not heard of for ``heartbeat_timeout``, S.
By then none of its ranks may run. Shares of S, from the instant at which the guard sent the last
beat that was answered; the coordinator's clock starts later, with the arrival of that beat:

    0.60   the guard tells its ranks to leave: the coordinator does not answer
    0.70   a rank leaves by itself: its guard has not renewed its lease, so it is stopped
    0.80   at the latest, the guard kills those of its ranks that are still here
    0.85   a rank that still runs the function ends itself
    1.00   the others go on

What is left at the end is for clocks that differ and for a machine that is busy. The lease of the
ranks is a word in their page (``page/pure/progress.py``): an instant of the node's monotonic clock,
which the guard moves ahead with each answer. A guard that is stopped moves nothing, and one that
wakes up moves nothing either: what counts is when the beat was sent, not when the answer was read.
A rank that was itself stopped finds on waking what is in its page, and if that is over for long it
ends itself at once.

Pure. Times are seconds on the node's monotonic clock.
"""

from __future__ import annotations

import enum

LEASE_SHARE = 0.6
FENCE_SHARE = 0.2
RANK_LEASE_SHARE = 0.7
RANK_FENCE_SHARE = 0.15


def guard_lease_until(answered_at: float, silence_s: float) -> float:
    """When a guard must give up, whose last answered beat was sent at ``answered_at``."""
    return answered_at + LEASE_SHARE * silence_s


def guard_fence_s(silence_s: float, grace_s: float) -> float:
    """How long its ranks then have to leave by themselves; no time is left for stacks."""
    return min(grace_s, FENCE_SHARE * silence_s)


def rank_lease_until(answered_at: float, silence_s: float) -> float:
    """When a rank must leave whose guard says nothing."""
    return answered_at + RANK_LEASE_SHARE * silence_s


def rank_fence_s(silence_s: float) -> float:
    """How long it then has, before it ends its own process."""
    return RANK_FENCE_SHARE * silence_s


class Step(enum.Enum):
    """What a rank is to do about its lease."""

    NOTHING = "nothing"
    LEAVE = "leave"
    END = "end"
    """Its own process, unless it has left."""


class RankLease:
    """The lease as its rank sees it.

    Args:
        fence_s: See :func:`rank_fence_s`.
    """

    def __init__(self, fence_s: float) -> None:
        self._fence_s = fence_s
        self._end_at: float | None = None

    def look(self, until: float | None, now: float) -> Step:
        """What follows from the word in the page.

        Once the lease was over it stays over: the rank has begun to leave.

        Args:
            until: When it runs out; ``None``: there is no need of one any more.
            now: The time.
        """
        if self._end_at is None:
            if until is None or now < until:
                return Step.NOTHING
            self._end_at = until + self._fence_s
            if now < self._end_at:
                return Step.LEAVE
        return Step.END if now >= self._end_at else Step.NOTHING

    def next_look(self, until: float | None) -> float | None:
        """When to look next, with this word in the page; ``None``: when it has changed."""
        return until if self._end_at is None else self._end_at
