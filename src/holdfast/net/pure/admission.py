"""Decide how long an unauthenticated connection may stay, and which is cut off first. Pure.

    came ──► unauthenticated ──proof──► left
                ├─ nothing for SILENT_S ───────────────────► overdue: cut off
                ├─ the same, but the server was late ──────► EXCUSED_S more, for all
                └─ a place is needed ──► the oldest of the peer with the most is cut off

So a flood from one host or process pushes out its own connections and no others. Times are seconds
on the caller's monotonic clock.
"""

from __future__ import annotations

SILENT_S = 5.0
"""An unauthenticated connection of this age is cut off."""
LATE_S = 0.5
"""A server that looks so much too late was stopped or busy ..."""
EXCUSED_S = 1.0
"""... and gives those who may have spoken meanwhile this long again."""


class AdmissionControl:
    """Unauthenticated connections of one listener, by numbers that their owner gives them."""

    def __init__(self) -> None:
        # Peer, and until when it may stay; the oldest first, and none before the one before it.
        self._places: dict[int, tuple[str, float]] = {}

    def came(self, key: int, peer: str, now: float) -> None:
        """A host or process has connected; no other unauthenticated connection has this ``key``."""
        self._places[key] = peer, now + SILENT_S

    def left(self, key: int) -> None:
        """It is authenticated, or was cut off. Does nothing if it is not here."""
        self._places.pop(key, None)

    def next_deadline(self) -> float | None:
        """When the first one is overdue."""
        return next((until for _, until in self._places.values()), None)

    def overdue(self, now: float) -> list[int]:
        """Connections to cut off now, the oldest first; they stay here until they :meth:`left`."""
        deadline = self.next_deadline()
        if deadline is not None and now >= deadline + LATE_S:
            for key, (peer, until) in self._places.items():
                self._places[key] = peer, max(until, now + EXCUSED_S)
        return [key for key, (_, until) in self._places.items() if now >= until]

    def first_to_go(self) -> tuple[int, int] | None:
        """The connection to cut off where a place is needed, and how many its peer has."""
        keys: dict[str, list[int]] = {}
        for key, (peer, _) in self._places.items():
            keys.setdefault(peer, []).append(key)
        most = max(keys.values(), key=len, default=None)
        return None if most is None else (most[0], len(most))
