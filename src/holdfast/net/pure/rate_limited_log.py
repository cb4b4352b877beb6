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


class _Offender:
    __slots__ = ("named_at", "unsaid")

    def __init__(self, named_at: float) -> None:
        self.named_at = named_at
        self.unsaid = 0


class RateLimitedLog:
    """Counts the lines that it leaves out, and adds the count to the next one."""

    __slots__ = ("_lines", "_offenders", "_since", "_unsaid")

    def __init__(self) -> None:
        self._offenders: dict[str, _Offender] = {}
        self._since = 0.0
        self._lines = 0
        self._unsaid = 0

    def line(self, offender: str, text: str, now: float) -> str | None:
        """The line to log; None: nothing, for now.

        Args:
            offender: Its name, for people.
            text: Completes "<offender> ...".
            now: Seconds, monotonic.
        """
        known = self._offenders.get(offender)
        if known is not None and now < known.named_at + QUIET_S:
            known.unsaid += 1
            return None
        if self._lines == 0 or now >= self._since + QUIET_S:
            self._since, self._lines = now, 0
        if self._lines >= LINES_MAX:
            self._unsaid += 1
            return None
        self._lines += 1
        again = f" ({count(known.unsaid, 'more time')} since it was last named)" if known else ""
        others = ""
        if self._lines == 1 and self._unsaid:
            others = (
                f"; {count(self._unsaid, 'more line')} about other callers were left out before"
            )
            self._unsaid = 0
        self._offenders.pop(offender, None)
        if len(self._offenders) >= _OFFENDERS_MAX:  # the one that was named the longest ago
            del self._offenders[next(iter(self._offenders))]
        self._offenders[offender] = _Offender(now)
        return f"{offender} {text}{again}{others}"
