"""State of a launcher's restarts, for a restarter around it that reads its lines. Pure.

UNINITIALIZED ──► INITIALIZE ──► HANDLING_START ──► HANDLING_PROCESSING ⟲
      │               │               │    └──────────────┐   │
      │               │               │                   ▼   ▼
      │               │               │  ┌──► HANDLING_COMPLETED ──► HANDLING_START, FINALIZED
      ▼               ▼               └──┴──► ABORTED (from PROCESSING, too)
   FINALIZED ⟲ ◄──────┴─────────────────────── ABORTED
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from holdfast.errors import InvalidStateTransitionException


class RankMonitorState(Enum):
    """Where a rank is in its restarts; the value is how its log line says so."""

    UNINITIALIZED = "state=uninitialized"
    INITIALIZE = "state=initialize"
    HANDLING_START = "state=handling stage=starting"
    HANDLING_PROCESSING = "state=handling stage=processing"
    HANDLING_COMPLETED = "state=handling stage=completed"
    FINALIZED = "state=finalized"
    ABORTED = "state=aborted"


_S = RankMonitorState
TRANSITIONS: dict[RankMonitorState, frozenset[RankMonitorState]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZE, _S.FINALIZED}),
    _S.INITIALIZE: frozenset({_S.HANDLING_START, _S.FINALIZED}),
    _S.HANDLING_START: frozenset({_S.HANDLING_COMPLETED, _S.HANDLING_PROCESSING, _S.ABORTED}),
    _S.HANDLING_PROCESSING: frozenset({_S.HANDLING_COMPLETED, _S.HANDLING_PROCESSING, _S.ABORTED}),
    _S.HANDLING_COMPLETED: frozenset({_S.HANDLING_START, _S.FINALIZED}),
    _S.ABORTED: frozenset({_S.FINALIZED}),
    _S.FINALIZED: frozenset({_S.FINALIZED}),
}
"""State to the states it may be followed by."""

RESTARTING = frozenset({_S.HANDLING_START, _S.HANDLING_PROCESSING})
"""A restart has begun and training has not come back yet."""

_Follows = dict[RankMonitorState, RankMonitorState]
"""By the present state the next one; in other states the event means nothing."""
_AFTER_MESSAGE: _Follows = {
    _S.UNINITIALIZED: _S.INITIALIZE,
    **dict.fromkeys(RESTARTING, _S.HANDLING_COMPLETED),
}
_AFTER_DISCONNECT: _Follows = {
    **dict.fromkeys((_S.INITIALIZE, _S.HANDLING_COMPLETED), _S.HANDLING_START),
    **dict.fromkeys(RESTARTING, _S.ABORTED),
}
_AFTER_SIGNAL: _Follows = {
    **dict.fromkeys((_S.INITIALIZE, _S.HANDLING_COMPLETED, _S.ABORTED, _S.FINALIZED), _S.FINALIZED),
    **dict.fromkeys(RESTARTING, _S.ABORTED),
}


class RestarterLogger(Protocol):
    """Gets a line for every new state."""

    def log_restarter_event(self, msg: str, /) -> None:
        """Take one line."""


class RankMonitorStateMachine:
    """Follows one rank through its restarts, and says where it stands in lines that others parse.

    Args:
        logger: Gets ``[NestedRestarter] name=[InJob] state=...`` at each transition.
    """

    def __init__(self, logger: RestarterLogger) -> None:
        self.logger = logger
        self.state = RankMonitorState.UNINITIALIZED

    def transition_to(self, new_state: RankMonitorState) -> None:
        """Go to ``new_state``.

        Raises:
            InvalidStateTransitionException: It may not follow the present one, which stays.
        """
        if new_state not in TRANSITIONS[self.state]:
            raise InvalidStateTransitionException(
                f"Invalid transition attempted from {self.state} to {new_state}"
            )
        self.state = new_state
        self.logger.log_restarter_event(f"[NestedRestarter] name=[InJob] {new_state.value}")

    def is_restarting(self) -> bool:
        """A restart has begun and training has not come back yet."""
        return self.state in RESTARTING

    def handle_message(self) -> None:
        """The rank sent a heartbeat or a section message."""
        self._handle(_AFTER_MESSAGE)

    def handle_disconnect(self) -> None:
        """The rank left its monitor, or died."""
        self._handle(_AFTER_DISCONNECT)

    def handle_signal(self) -> None:
        """A signal ends the monitor."""
        self._handle(_AFTER_SIGNAL)

    def handle_periodic_check(self) -> None:
        """Say once more that the restart goes on.

        Raises:
            AssertionError: No restart is going on.
        """
        if not self.is_restarting():
            raise AssertionError(f"no restart is in progress in {self.state}")
        self.transition_to(RankMonitorState.HANDLING_PROCESSING)

    def _handle(self, follows: _Follows) -> None:
        if self.state in follows:
            self.transition_to(follows[self.state])


class RestartLineWriter(RankMonitorStateMachine):
    """The state machine of one rank, which repeats the line of a restart that goes on.

    Args:
        write: Takes a line.
        every_s: Seconds between two lines while a restart goes on (``restart_check_interval``).
        clock: Says the instant of a line.
    """

    def __init__(
        self, write: Callable[[str], None], every_s: float, clock: Callable[[], float]
    ) -> None:
        super().__init__(self)
        self._write = write
        self._every_s = every_s
        self._clock = clock
        self._next_at: float | None = None

    def log_restarter_event(self, msg: str, /) -> None:
        """Take one line from the machine."""
        self._write(msg)
        self._next_at = self._clock() + self._every_s if self.is_restarting() else None

    def next_deadline(self) -> float | None:
        """When :meth:`on_time` has something to do."""
        return self._next_at

    def on_time(self, now: float) -> None:
        """Repeat the line, if it is time."""
        if self._next_at is not None and now >= self._next_at:
            self.handle_periodic_check()
