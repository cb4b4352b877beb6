"""For how long the rank of a monitor has been stopped, as far as looks at /proc tell."""

from __future__ import annotations

from holdfast.evidence import sight


class StoppedTime:
    """Of one rank at a time.

    A process that was continued between two looks has switched contexts.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._switches = -1

    def forget(self) -> None:
        """The rank is another one."""
        self._since = None

    def look(self, pid: int, now: float) -> None:
        """Look at it."""
        shown = sight.look_at(pid)
        if shown is None or shown.state != "T":
            self._since = None
        elif self._since is None or shown.switches != self._switches:
            self._since, self._switches = now, shown.switches

    def seconds(self, now: float) -> float:
        """0.0: it was not stopped when it was looked at last."""
        return 0.0 if self._since is None else now - self._since
