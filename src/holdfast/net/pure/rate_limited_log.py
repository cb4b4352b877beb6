"""Limit the rate of log lines about callers. Pure.

A caller may send garbage a thousand times a second, from a thousand addresses. A person needs one
line per offender, and now and then how often it happened again.
"""

from __future__ import annotations

from holdfast.base.pure.wording import count

QUIET_S = 60.0
"""An offender is named at most once in this time."""
LINES_MAX = 20
"""Lines about all offenders together in ``QUIET_S``."""
_OFFENDERS_MAX = 256


class RateLimitedLog:
    """Counts the lines that it leaves out, and adds the count to the next one."""

    def __init__(self) -> None:
        # When each was named, and how often it would have been again since; the last one last.
        self._offenders: dict[str, tuple[float, int]] = {}
        self._since = 0.0
        self._lines = 0
        self._unsaid = 0

    def line(self, offender: str, text: str, now: float) -> str | None:
        """The line to log, ``<offender> <text>``; None: nothing, for now."""
        named_at, unsaid = self._offenders.get(offender, (None, 0))
        if named_at is not None and now < named_at + QUIET_S:
            self._offenders[offender] = named_at, unsaid + 1
            return None
        if self._lines == 0 or now >= self._since + QUIET_S:
            self._since, self._lines = now, 0
        if self._lines >= LINES_MAX:
            self._unsaid += 1
            return None
        self._lines += 1
        again = ""
        if named_at is not None:
            again = f" ({count(unsaid, 'more time')} since it was last named)"
        others = ""
        if self._lines == 1 and self._unsaid:
            others = (
                f"; {count(self._unsaid, 'more line')} about other callers were left out before"
            )
            self._unsaid = 0
        self._offenders.pop(offender, None)
        if len(self._offenders) >= _OFFENDERS_MAX:  # the one that was named the longest ago
            del self._offenders[next(iter(self._offenders))]
        self._offenders[offender] = now, 0
        return f"{offender} {text}{again}{others}"
