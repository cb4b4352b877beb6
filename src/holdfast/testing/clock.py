"""Time as a number: hours of waiting in milliseconds, and the same order every time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class VirtualClock:
    """A clock that jumps to the next thing to do.

    Calls that are due at the same instant happen in the order in which they were asked for.
    """

    now: float = 0.0
    """Seconds since the clock was made."""
    _queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _asked: int = 0

    def call_at(self, at: float, action: Callable[[], None]) -> None:
        """Do ``action`` when it is ``at``; at once if that is past."""
        self._asked += 1
        heapq.heappush(self._queue, (max(at, self.now), self._asked, action))

    def call_in(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do ``action`` after a while."""
        self.call_at(self.now + delay_s, action)

    def next_at(self) -> float | None:
        """When the next thing happens; None: nothing is left to do."""
        return self._queue[0][0] if self._queue else None

    def step(self) -> bool:
        """Do the next thing; False: there was none."""
        if not self._queue:
            return False
        self.now, _order, action = heapq.heappop(self._queue)
        action()
        return True

    def run_until(self, at: float) -> None:
        """Do everything that is due up to ``at``, and let it be ``at``."""
        while self._queue and self._queue[0][0] <= at:
            self.step()
        self.now = max(self.now, at)
