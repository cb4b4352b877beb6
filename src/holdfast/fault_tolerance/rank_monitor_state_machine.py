"""The layered-restart state machine under its public name; the table is in ``core``."""

from __future__ import annotations

from typing import Protocol

from holdfast.core.launch.layered_restart import (
    RESTARTING,
    TRANSITIONS,
    RankMonitorState,
    RestartEvent,
    next_state,
)
from holdfast.errors import InvalidStateTransitionException

__all__ = ["InvalidStateTransitionException", "RankMonitorState", "RankMonitorStateMachine"]


class RestarterLogger(Protocol):
    """Who is told of every new state."""

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
        self._handle(RestartEvent.MESSAGE)

    def handle_disconnect(self) -> None:
        """The rank left its monitor, or died."""
        self._handle(RestartEvent.DISCONNECT)

    def handle_signal(self) -> None:
        """The monitor was told to end."""
        self._handle(RestartEvent.SIGNAL)

    def handle_periodic_check(self) -> None:
        """Say once more that the restart goes on.

        Raises:
            AssertionError: No restart is going on.
        """
        if not self.is_restarting():
            raise AssertionError(f"no restart is going on in {self.state}")
        self._handle(RestartEvent.CHECK)

    def _handle(self, event: RestartEvent) -> None:
        new_state = next_state(self.state, event)
        if new_state is not None:
            self.transition_to(new_state)
