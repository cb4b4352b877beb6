"""For how long the rank of a monitor has done nothing: looks at it and its children, in /proc."""

from __future__ import annotations

from holdfast.core.monitor.movement import Stillness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.stacks import Place


class IdleTime:
    """Of one rank at a time.

    Attributes:
        least_s: Less than that is nothing to speak of.
    """

    def __init__(self) -> None:
        self.least_s = 0.0
        self._stillness = Stillness()
        self._has_looked = False
        self._last_at = 0.0

    def forget(self) -> None:
        """The rank is another one."""
        self._stillness, self._has_looked = Stillness(), False

    def look(self, pid: int, now: float) -> None:
        """Look at it."""
        from holdfast.host.moves import moves_of  # noqa: PLC0415 - of ranks that send no heartbeats

        self._has_looked, self._last_at = True, now
        self._stillness.looked(moves_of(pid), now)

    def look_last(self, pid: int, now: float) -> None:
        """Look before its stacks are asked for, which moves it; if it was looked at before."""
        if self._has_looked:
            self.look(pid, now)

    def seconds(self, place: Place) -> float:
        """Until the last look; 0.0: it is not known to do nothing. ``place``: where it is."""
        calm = place.is_in_loader
        return self._stillness.idle_s(self._last_at, self.least_s, calm=calm)
