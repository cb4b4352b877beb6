"""The layered-restart state machine, with one method for each message and event by name."""

from __future__ import annotations

from holdfast.errors import InvalidStateTransitionException
from holdfast.watch.pure.layered_restart import TRANSITIONS, RankMonitorState, RestarterLogger
from holdfast.watch.pure.layered_restart import RankMonitorStateMachine as _StateMachine

__all__ = [
    "InvalidStateTransitionException",
    "RankMonitorState",
    "RankMonitorStateMachine",
    "RestarterLogger",
]


class RankMonitorStateMachine(_StateMachine):
    """See :class:`holdfast.fault_tolerance.RankMonitorStateMachine`.

    The methods take whatever the event brings along (a message, a signal's number and frame) and
    use none of it: that the event happened decides.
    """

    def can_transition_to(self, new_state: RankMonitorState) -> bool:
        """Whether :meth:`transition_to` would go to ``new_state``."""
        return new_state in TRANSITIONS[self.state]

    def handle_heartbeat_msg(self, *_message: object) -> None:
        """The rank sent a heartbeat."""
        self.handle_message()

    def handle_section_msg(self, *_message: object) -> None:
        """The rank opened or closed a section."""
        self.handle_message()

    def handle_ipc_connection_lost(self, *_details: object) -> None:
        """The rank closed its connection, or died."""
        self.handle_disconnect()

    def handle_signal(self, *_signal: object) -> None:
        """The monitor was asked to end; may be called with a signal's number and frame."""
        super().handle_signal()

    def periodic_restart_check(self) -> None:
        """Repeat that the restart goes on.

        Raises:
            AssertionError: No restart is going on.
        """
        self.handle_periodic_check()
