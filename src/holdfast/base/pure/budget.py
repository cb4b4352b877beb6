"""How often something may be started again: a count, optionally within a sliding period.

Pure. B-1: the number of starts never exceeds the count; with a period, in no window of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Budget:
    """At most ``count`` times, ever (``period_s`` None) or within any ``period_s`` seconds."""

    count: int
    period_s: float | None = None
    _spent_at: list[float] = field(default_factory=list)

    @property
    def spent(self) -> int:
        """How often :meth:`take` said yes and the period still remembers it."""
        return len(self._spent_at)

    @property
    def left(self) -> int:
        """How often :meth:`take` would still say yes at the time of the last question."""
        return max(0, self.count - self.spent)

    def take(self, now: float) -> bool:
        """Spend one if there is one left; ``now`` in seconds, never decreasing."""
        if self.period_s is not None:
            self._spent_at = [at for at in self._spent_at if now - at < self.period_s]
        if self.spent >= self.count:
            return False
        self._spent_at.append(now)
        return True
