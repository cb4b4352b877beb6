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
        self._peers: dict[int, str] = {}  # the oldest first
        self._until: dict[int, float] = {}  # in the same order, and never before the one before

    def came(self, key: int, peer: str, now: float) -> None:
        """A peer has connected.

        Args:
            key: A number that no other unauthenticated connection has now.
            peer: Its host or process.
            now: Not before that of any earlier call.
        """
        self._peers[key] = peer
        self._until[key] = now + SILENT_S

    def left(self, key: int) -> None:
        """It is authenticated, or was cut off. Does nothing if it is not here."""
        self._peers.pop(key, None)
        self._until.pop(key, None)

    def next_deadline(self) -> float | None:
        """When the first one is overdue."""
        return next(iter(self._until.values()), None)

    def overdue(self, now: float) -> list[int]:
        """Connections to cut off now, the oldest first; they stay here until they :meth:`left`."""
        deadline = self.next_deadline()
        if deadline is not None and now >= deadline + LATE_S:
            for key, until in self._until.items():
                self._until[key] = max(until, now + EXCUSED_S)
        return [key for key, until in self._until.items() if now >= until]

    def first_to_go(self) -> tuple[int, int] | None:
        """The connection to cut off where a place is needed, and how many its peer has."""
        counts: dict[str, int] = {}
        for peer in self._peers.values():
            counts[peer] = counts.get(peer, 0) + 1
        if not counts:
            return None
        most = max(counts, key=lambda peer: counts[peer])
        return next(key for key, peer in self._peers.items() if peer == most), counts[most]
