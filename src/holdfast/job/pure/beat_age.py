"""The age of a beat of the leader when a launcher reads it, and the time that it grants ranks.

Pure. A beat may be read late: the launcher was stopped, or a connection stood still. The ranks have
``fence_s`` from the moment at which it *should* have come. The leader stamps each beat with its own
clock, which is compared with itself only: the beat of the last ``silence_s`` that came fastest says
how the two clocks differ. Were a clock stopped for a while, all later beats would look late for so
long, and the ranks would have that much less time.

The leader gives a launcher up ``silence_s`` after the last message of it. Of a launcher that was
stopped that is older than the beat: so its ranks have no more than ``beat_s + fence_s`` from the
last message that the leader can have had when it sent the beat.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from holdfast.job.pure.timing import Pace

_MOST = 64
"""Beats and messages that are kept."""


@dataclass
class BeatAge:
    """Of one launcher and its leader.

    Attributes:
        came_at: When the last beat should have come, on this launcher's clock; None: none has.
    """

    pace: Pace

    came_at: float | None = field(default=None, init=False)
    _lags: deque[tuple[float, float]] = field(init=False)
    """When the last beats came, and how far the leader's clock was behind this one."""
    _sent: deque[float] = field(init=False)
    """When this launcher sent the leader a message."""

    def __post_init__(self) -> None:
        self._lags, self._sent = deque(maxlen=_MOST), deque(maxlen=_MOST)

    def leader_changes(self) -> None:
        """Another one has another clock, and has received nothing."""
        self.came_at = None
        self._lags.clear()
        self._sent.clear()

    def sent(self, now: float) -> None:
        """A message of this launcher is on its way to the leader."""
        self._sent.append(now)
        while self._sent[0] < now - self.pace.silence_s:
            self._sent.popleft()

    def came(self, sent_at: float, now: float) -> None:
        """A beat, which the leader sent at that instant of its own clock."""
        lag = now - sent_at
        while self._lags and self._lags[0][0] < now - self.pace.silence_s:
            self._lags.popleft()
        self._lags.append((now, lag))
        came_at = now - (lag - min(lag for _, lag in self._lags))
        self.came_at = came_at if self.came_at is None else max(self.came_at, came_at)

    def granted_until(self, came_at: float) -> float:
        """How long a decision that should have come then lets ranks run."""
        until = came_at + self.pace.fence_s
        before = [at for at in self._sent if at <= came_at]
        return min(until, before[-1] + self.pace.beat_s + self.pace.fence_s) if before else until
