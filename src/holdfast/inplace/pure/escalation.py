"""Tell a rank that hangs again and again by itself from one that only waits for it.

After :data:`MOST` hangs in a row a rank is ended like one that cannot be interrupted, and the
others go on without it. All ranks wait for one that hangs, and their soft timeouts run out at about
the same time. The abort of collectives, which comes first in each restart, tells them apart: it
frees a rank that waited for others. So at each restart after a soft timeout, a rank that has stood
still for half of that is looked at for a moment between abort and interrupt:

    freed, or known to wait for others     its row ends
    still blocked                          one more hang in the row
    not looked at                          its row ends: this iteration ended otherwise

The row begins anew where the rank had worked for a whole soft timeout in that iteration before it
blocked; a single ``ping()`` is not enough.

Pure. Times are seconds.
"""

from __future__ import annotations

from holdfast.base.pure.value import Value
from holdfast.inplace.pure.job_calls import Cause, FaultKind
from holdfast.inplace.pure.timing import STILL_SHARE, moment_s

MOST = 3
"""A rank is ended with this hang in a row."""


class Blocked(Value):
    """A main thread that an abort found in the user's code.

    ``worked_s``: from the call of the function to its last progress; ``silent_s``: from there to
    the abort. ``is_freed``: it waited for others, or ran again when collectives were aborted.
    """

    worked_s: float
    silent_s: float
    is_freed: bool


def is_looked_at(causes: tuple[Cause, ...], silent_s: float, soft_s: float) -> bool:
    """Whether a rank that stands still for so long is looked at in a restart for ``causes``."""
    return silent_s >= STILL_SHARE * soft_s and any(
        cause.kind is FaultKind.SOFT_TIMEOUT for cause in causes
    )


def look_for_s(soft_s: float, in_a_row: int) -> float:
    """How long it is looked at, at most.

    Not at its first hang: a restart would wait for it, and a rank that was freed a moment later is
    seen to be freed the next time, before anything follows.
    """
    return moment_s(soft_s) if in_a_row else 0.0


class Hangs:
    """The hangs of one rank; ``in_a_row``: so far."""

    def __init__(self, soft_s: float) -> None:
        self._soft_s = soft_s
        self.in_a_row = 0

    def did_not_hang(self) -> None:
        """An iteration ended in another way: the function came back, or another rank failed."""
        self.in_a_row = 0

    def looked(self, blocked: Blocked) -> str | None:
        """Why the rank that was found ``blocked`` is ended; ``None``: it is not."""
        if blocked.is_freed:
            self.in_a_row = 0
            return None
        self.in_a_row = 1 if blocked.worked_s >= self._soft_s else self.in_a_row + 1
        if self.in_a_row < MOST:
            return None
        return (
            f"hung by itself in {self.in_a_row} iterations in a row, now for "
            f"{blocked.silent_s:.1f} s, without {self._soft_s:g} s (soft_timeout) of progress in "
            "any of them; it is not interrupted again"
        )
