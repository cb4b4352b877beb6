"""Iterations that fail at their start, one after the other: how long to wait; the end. Pure.

A fault before the function is entered, or in its ``init_process_group``, is one of the host, the
network or a plug-in: the next iteration, milliseconds later, has it too. So each one in a row waits
longer than the one before, and after the last one the call ends, with its reason.
"""

from __future__ import annotations

MOST = 12
"""Restarts in a row, by default: with their waits they take nearly two minutes."""
_FIRST_WAIT_S = 0.1
_WAIT_S_MAX = 30.0


class StartFaults:
    """Of one call, on all ranks.

    Args:
        most: Restarts in a row after such faults; None: without end, and without waits.

    Attributes:
        in_a_row: How many iterations have failed at their start, one after the other.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self.in_a_row = 0

    def wait_s(self, *, at_start: bool) -> float | None:
        """An iteration has failed: how long the next one waits, in seconds; None: there is none."""
        self.in_a_row = self.in_a_row + 1 if at_start else 0
        if self._most is None or not self.in_a_row:
            return 0.0
        if self.in_a_row > self._most:
            return None
        return wait_s(self.in_a_row)


def wait_s(in_a_row: int) -> float:
    """Seconds before the restart after that many. One alone may be chance: no wait.

    >>> [wait_s(n) for n in (1, 2, 3, 4, 12)]
    [0.0, 0.1, 0.2, 0.4, 30.0]
    """
    if in_a_row < 2:
        return 0.0
    return float(min(_FIRST_WAIT_S * 2 ** min(in_a_row - 2, 32), _WAIT_S_MAX))
