"""The time in which a leader has no lease: since when, and when it steps down.

Pure. Times are seconds on the leader's clock. A leader without a lease (:mod:`.leader_lease`)
decides nothing; events wait until the lease is back, or for ``step_down_s`` at most: others may
lead then. A leader that slept asks first, and has ``ask_s`` more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from holdfast.job.pure.leader_lease import LeaderLease


@dataclass
class Lapse:
    """Of the lease of one leader.

    Attributes:
        since: When the lease ended, as far as it is known; None: it is held, or not needed.
    """

    lease: LeaderLease

    since: float | None = field(default=None, init=False)
    _awaits_others: bool = field(default=False, init=False)
    """It would be held, but for one of a leader before."""

    def begin(self, now: float) -> None:
        """A leader that was elected may have none yet."""
        if not self.lease.is_held(now):
            self.since = max(now, self.lease.not_before)

    def note(self, now: float, awake_since: float, *, is_needed: bool) -> bool:
        """Whether the lease is held now; returns whether it is back.

        ``awake_since``: when the leader woke up last. ``is_needed``: it has something to decide.
        """
        lease, lapsed = self.lease, self.since is not None
        is_held = lease.is_held(now)
        if is_held or not is_needed:
            self.since = None
        elif self.since is None:
            self.since = max(lease.until(), awake_since + lease.pace.ask_s)
        self._awaits_others = now < lease.not_before and now < lease.until()
        return is_needed and is_held and lapsed

    def woke(self, now: float) -> None:
        """The leader slept."""
        self._extend(now + self.lease.pace.ask_s)

    def others_until(self) -> None:
        """A leader before may have a lease for longer than was known."""
        self._extend(self.lease.not_before)

    def over(self) -> None:
        """Nothing is left to decide."""
        self.since = None

    def _extend(self, until: float) -> None:
        if self.since is not None:
            self.since = max(self.since, until)

    def next_at(self) -> float:
        """When the lease may be back, or the leader steps down; infinity: it is held."""
        if self.since is None:
            return math.inf
        back_at = self.lease.not_before if self._awaits_others else math.inf
        return min(self.since + self.lease.pace.step_down_s, back_at)

    def ranks_s(self, now: float, *, is_superseded: bool) -> float:
        """For how long ranks of nodes that the leader does not reach may be alive; 0: none is.

        ``is_superseded``: another one leads, so no node is given the time that this leader slept.
        """
        ended_at = self.lease.until() if self.since is None else self.since
        if is_superseded:
            ended_at = max(self.lease.until(), self.lease.not_before)
        return max(0.0, ended_at + self.lease.pace.step_down_s - now)
