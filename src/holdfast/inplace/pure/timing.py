"""How long each part of a restart in place waits: all shares of its timeouts, in one place. Pure.

The others go on without a node from which the coordinator gets nothing for ``heartbeat_timeout``,
S. By then none of its ranks may run. Shares of S, from the instant at which the guard sent the last
beat that was answered; the coordinator's clock starts later, with the arrival of that beat:

    0.33   at the latest, the guard sends the next beat
    0.60   the guard tells its ranks to leave: the coordinator does not answer
    0.70   a rank leaves by itself: its guard has not renewed its lease, so it is stopped
    0.80   at the latest, the guard kills those of its ranks that are still here
    0.85   a rank that still runs the function ends itself
    1.00   the others go on

The rest of S is for clocks that differ and for a machine that is busy. The lease of the ranks is a
word in their page (``page/pure/page.py``): an instant of the node's monotonic clock, which the
guard moves ahead with each answer. Neither a guard that is stopped nor one that wakes up moves it:
the instant counts at which the beat was sent, not the one at which the answer was read. A rank that
was itself stopped finds the word when it wakes, and if it is long over ends itself at once.

Times are seconds on the node's monotonic clock.
"""

from __future__ import annotations

import enum

# ---------------------------------------------------------------- heartbeat_timeout
BEATS_IN_SILENCE = 3
"""Beats of a guard within ``heartbeat_timeout``, where that is too short for the usual interval."""
LEASE_SHARE = 0.6
FENCE_SHARE = 0.2
RANK_LEASE_SHARE = 0.7
RANK_FENCE_SHARE = 0.15
GUARD_GONE_FENCE_S = 5.0
"""How long the function may go on when the guard is gone: no process is left to end the rank."""


def guard_lease_until(answered_at: float, silence_s: float) -> float:
    """When a guard must give up: its last answered beat was sent at ``answered_at``."""
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
    """A rank's next step about its lease."""

    NOTHING = "nothing"
    LEAVE = "leave"
    END = "end"
    """Its own process, unless it has left."""


class RankLease:
    """The lease as its rank sees it."""

    def __init__(self, fence_s: float) -> None:
        self._fence_s = fence_s
        self._end_at: float | None = None

    def look(self, until: float | None, now: float) -> Step:
        """The step at ``now``, with ``until`` in the page; ``None``: no lease is needed any more.

        Once the lease was over it stays over: the rank has begun to leave.
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


# ---------------------------------------------------------------- soft_timeout
_MOMENT_S = 0.25
_MOMENT_SHARE = 0.25
STILL_SHARE = 0.5
"""A rank that stood still for this share of ``soft_timeout`` is looked at in a restart."""


def moment_s(soft_s: float) -> float:
    """A moment, next to the soft timeout.

    So much later than others a rank that waits for others is called hung: the rank that keeps it
    waiting is as late, and should be the one that is named. And so long a rank has to run again
    when its collectives are aborted.
    """
    return min(_MOMENT_S, soft_s * _MOMENT_SHARE)


# ---------------------------------------------------------------- barrier_timeout, and the end
JOIN_S = 1800.0
"""For all ranks to come, where no ``barrier_timeout`` was given: as torch's groups wait."""
FREED_S = 1.0
"""After so long, a main thread in a collective was not freed by the user's abort plug-ins."""
LEAVE_S = 10.0
"""How long a rank that leaves waits for its collectives to be aborted, at most."""


# ---------------------------------------------------------------- faults again and again
MAX_START_FAULTS = 12
"""Restarts in a row, by default: with their waits they take nearly two minutes."""
AT_ONCE_S = 0.1
"""A function that fails within this time has hardly run: not to be called again as fast."""
_FIRST_WAIT_S = 0.1
_WAIT_S_MAX = 30.0


class FaultsInARow:
    """Iterations in a row that led nowhere, of one call: their waits, and the end.

    A fault before the function is entered, or in its ``init_process_group``, is one of the host,
    the network or a plug-in: the next iteration, milliseconds later, has it too. So has one of a
    function that fails at once: that one is called as often as it fails, but not thousands of times
    in a second. ``most``: restarts in a row after faults at the start; None: without end, and
    without any wait.

    Attributes:
        at_start: Iterations in a row that failed at their start.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self.at_start = 0
        self._at_once = 0

    @property
    def at_once(self) -> int:
        """Those that failed within ``AT_ONCE_S``, for whichever reason; one alone is no row."""
        return self._at_once if self._at_once > 1 else 0

    def wait_s(self, ran_s: float, *, at_start: bool) -> float | None:
        """An iteration has failed: how long the next one waits, in seconds; None: there is none."""
        self.at_start = self.at_start + 1 if at_start else 0
        self._at_once = self._at_once + 1 if ran_s < AT_ONCE_S else 0
        if self._most is None:
            return 0.0
        if self.at_start > self._most:
            return None
        return wait_s(max(self.at_start, self._at_once))


def wait_s(in_a_row: int) -> float:
    """Seconds before the restart after that many. One alone may be chance: no wait.

    >>> [wait_s(n) for n in (1, 2, 3, 4, 12)]
    [0.0, 0.1, 0.2, 0.4, 30.0]
    """
    if in_a_row < 2:
        return 0.0
    return float(min(_FIRST_WAIT_S * 2 ** min(in_a_row - 2, 32), _WAIT_S_MAX))
