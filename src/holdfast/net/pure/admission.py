"""Decide how long a caller that has not proved who it is may stay, and who goes first.

    came ──► stranger ──proof──► left
                ├─ nothing for SILENT_S ───────────────────► overdue: cut off
                ├─ the same, but the server was late ──────► EXCUSED_S more, for all
                └─ a place is needed ──► the oldest of who has most of them goes first

A server that looks LATE_S after a deadline was itself stopped or busy: its callers may have spoken
meanwhile. The host or process with the most connections makes room first, so that a flood from one
pushes out its own connections and no others.

Pure. Times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

SILENT_S = 5.0
"""A connection that has not proved who it is for so long is cut off."""
LATE_S = 0.5
"""A server that looks so much too late was stopped or busy ..."""
EXCUSED_S = 1.0
"""... and gives those who may have spoken meanwhile this long again."""


class AdmissionControl:
    """Unauthenticated connections of one listener, by numbers that their owner gives them."""

    def __init__(self) -> None:
        self._who: dict[int, str] = {}  # the oldest first
        self._until: dict[int, float] = {}  # in the same order, and never before the one before

    def came(self, key: int, who: str, now: float) -> None:
        """Somebody connected.

        Args:
            key: A number that no other stranger has now.
            who: From which host or process.
            now: Not before that of any earlier call.
        """
        self._who[key] = who
        self._until[key] = now + SILENT_S

    def left(self, key: int) -> None:
        """It has proved who it is, or was cut off. Does nothing if it is not here."""
        self._who.pop(key, None)
        self._until.pop(key, None)

    def next_deadline(self) -> float | None:
        """When the first one is overdue."""
        return next(iter(self._until.values()), None)

    def overdue(self, now: float) -> list[int]:
        """Who is to be cut off now, the oldest first; they stay here until they :meth:`left`."""
        deadline = self.next_deadline()
        if deadline is not None and now >= deadline + LATE_S:
            for key, until in self._until.items():
                self._until[key] = max(until, now + EXCUSED_S)
        return [key for key, until in self._until.items() if now >= until]

    def first_to_go(self) -> tuple[int, int] | None:
        """Who is cut off where a place is needed, and how many connections are from there."""
        counts: dict[str, int] = {}
        for who in self._who.values():
            counts[who] = counts.get(who, 0) + 1
        if not counts:
            return None
        most = max(counts, key=lambda who: counts[who])
        return next(key for key, who in self._who.items() if who == most), counts[most]
