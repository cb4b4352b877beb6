"""Lines of layered restarts from a monitor that a program has started by itself.

Apart from the monitor, because only programs that ask for the lines pay for its imports.
"""

from __future__ import annotations

from holdfast.base import clock
from holdfast.watch.pure.layered_restart import RankMonitorStateMachine, RestartChecks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Restarter(RankMonitorStateMachine):
    """The state machine of one rank, which repeats the line of a restart that goes on.

    Args:
        write: Takes a line.
        every_s: Seconds between two lines while a restart goes on (``restart_check_interval``).
    """

    def __init__(self, write: Callable[[str], None], every_s: float) -> None:
        super().__init__(self)
        self._write = write
        self._checks = RestartChecks(self, every_s)
        self.next_deadline = self._checks.next_deadline
        self.on_time = self._checks.on_time

    def log_restarter_event(self, msg: str, /) -> None:
        """Take one line from the machine."""
        self._write(msg)
        self._checks.line_written(clock.monotonic())
