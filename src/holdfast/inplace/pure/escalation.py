"""Tell a rank that hangs again and again by itself from one that only waits for it.

A rank that is hung is interrupted at the soft timeout and called again. One that blocks in the same
way each time would be interrupted for ever: after :data:`MOST` hangs in a row it is ended like one
that cannot be interrupted, and the others go on without it.

When one rank hangs, all others wait for it in a collective, and their limits run out at about the
same time: which rank is *named* by a soft timeout says little. What tells them apart is the abort
of collectives that comes first in each restart. A rank that waited for others is freed by it: its
main thread runs Python again, or leaves the function with an error. A rank that hangs by itself
stays where it is until it is interrupted. So at each restart that was caused by a soft timeout, a
rank that stands still for at least half the soft timeout is looked at for a moment between the two:

    freed, or known to wait for others     its row ends
    still blocked                          one more hang in the row
    not looked at                          its row ends: this iteration ended otherwise

The row begins anew where the rank had worked for a whole soft timeout in that iteration before it
blocked: that is the progress which counts, a single ``ping()`` does not.

Pure. Times are seconds.
"""

from __future__ import annotations

from holdfast.base.pure.value import Value
from holdfast.inplace.pure.messages import Cause, Kind

MOST = 3
"""A rank is ended with this hang in a row."""
_LOOK_S = 0.25
"""How long a rank has to run again once its collectives are aborted."""


class Blocked(Value):
    """A main thread that an abort found in the user's code.

    Attributes:
        worked_s: From the call of the function to its last progress.
        silent_s: From there to the abort.
        is_freed: It waited for others, or it ran again when collectives were aborted.
    """

    worked_s: float
    silent_s: float
    is_freed: bool


def is_looked_at(causes: tuple[Cause, ...], silent_s: float, soft_s: float) -> bool:
    """Whether a rank that stands still for so long is looked at in a restart for ``causes``."""
    return silent_s >= soft_s / 2 and any(cause.kind is Kind.SOFT_TIMEOUT for cause in causes)


def look_for_s(soft_s: float, in_a_row: int) -> float:
    """How long it is looked at, at most.

    No longer than it takes at its first hang: a restart would wait for it, and a rank that was
    freed a moment later is seen to be freed the next time, before anything follows.
    """
    return min(_LOOK_S, soft_s / 4) if in_a_row else 0.0


class Hangs:
    """The hangs of one rank.

    Args:
        soft_s: The soft timeout.

    Attributes:
        in_a_row: So far.
    """

    def __init__(self, soft_s: float) -> None:
        self._soft_s = soft_s
        self.in_a_row = 0

    def did_not_hang(self) -> None:
        """An iteration ended in another way: the function came back, or another rank failed."""
        self.in_a_row = 0

    def looked(self, blocked: Blocked) -> str | None:
        """It was looked at.

        Returns:
            Why it is ended; ``None``: it is not.
        """
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
