"""Whether a machine of a launcher has slept: suspended, stopped, or without a processor.

Pure. Times are seconds on the launcher's clock. By its excuse (:mod:`holdfast.base.pure.excuse`) a
machine that slept gives others time, or waits itself (decision 42).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from holdfast.base.pure.excuse import Excuse, overslept


@dataclass
class SleepDetector:
    """Whether one machine has slept.

    Attributes:
        from_s: The machine is that late, or less, on a busy host.
        woke_at: When its last sleep was over; minus infinity: there was none.
        slept_s: For how long it had done nothing then.
    """

    from_s: float

    woke_at: float = field(default=-math.inf, init=False)
    slept_s: float = field(default=0.0, init=False)
    _due_at: float | None = field(default=None, init=False)
    _handled_at: float = field(default=0.0, init=False)

    def called(self, now: float, from_s: float | None = None) -> Excuse | None:
        """The machine handles an event; its excuse, if it has slept until now.

        ``from_s``: in the place of its own, where it is about to end ranks.
        """
        excuse = overslept(self._due_at, now, self.from_s if from_s is None else from_s)
        if excuse is not None:
            self.woke_at, self.slept_s = now, now - self._handled_at
        return excuse

    def handled(self, now: float, due_at: float | None) -> None:
        """It has done so, and is due then; None: at no time."""
        self._due_at, self._handled_at = due_at, now
