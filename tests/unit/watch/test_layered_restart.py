"""The layered-restart state machine."""

import itertools

import pytest

from holdfast.errors import InvalidStateTransitionException
from holdfast.watch.pure.layered_restart import (
    TRANSITIONS,
    RankMonitorState,
    RankMonitorStateMachine,
)

S = RankMonitorState


class Lines(list):
    """A logger that keeps what it is told."""

    def log_restarter_event(self, msg: str) -> None:
        self.append(msg.removeprefix("[NestedRestarter] name=[InJob] "))


def test_the_life_of_a_rank_is_told_in_lines_that_others_parse() -> None:
    """Start, restart, end."""
    lines = Lines()
    machine = RankMonitorStateMachine(lines)
    machine.handle_message()
    machine.handle_message()
    machine.handle_disconnect()
    assert machine.is_restarting()
    machine.handle_periodic_check()
    machine.handle_periodic_check()
    machine.handle_message()
    assert not machine.is_restarting()
    machine.handle_signal()
    machine.handle_disconnect()
    assert lines == [
        "state=initialize",
        "state=handling stage=starting",
        "state=handling stage=processing",
        "state=handling stage=processing",
        "state=handling stage=completed",
        "state=finalized",
    ]


def test_the_prefix_names_the_restarter() -> None:
    """Exactly as parsers expect it."""
    told = []

    class Logger:
        def log_restarter_event(self, msg: str) -> None:
            told.append(msg)

    RankMonitorStateMachine(Logger()).handle_message()
    assert told == ["[NestedRestarter] name=[InJob] state=initialize"]


@pytest.mark.parametrize(("old", "new"), list(itertools.product(S, S)))
def test_only_transitions_of_the_table_are_possible(old, new) -> None:
    """Others raise and change nothing."""
    machine = RankMonitorStateMachine(Lines())
    machine.state = old
    if new in TRANSITIONS[old]:
        machine.transition_to(new)
        assert machine.state is new
    else:
        with pytest.raises(
            InvalidStateTransitionException,
            match=f"Invalid transition attempted from {old} to {new}",
        ):
            machine.transition_to(new)
        assert machine.state is old


Machine = RankMonitorStateMachine
RULES = {
    (S.UNINITIALIZED, Machine.handle_message): S.INITIALIZE,
    (S.HANDLING_START, Machine.handle_message): S.HANDLING_COMPLETED,
    (S.HANDLING_PROCESSING, Machine.handle_message): S.HANDLING_COMPLETED,
    (S.INITIALIZE, Machine.handle_disconnect): S.HANDLING_START,
    (S.HANDLING_COMPLETED, Machine.handle_disconnect): S.HANDLING_START,
    (S.HANDLING_START, Machine.handle_disconnect): S.ABORTED,
    (S.HANDLING_PROCESSING, Machine.handle_disconnect): S.ABORTED,
    (S.HANDLING_START, Machine.handle_periodic_check): S.HANDLING_PROCESSING,
    (S.HANDLING_PROCESSING, Machine.handle_periodic_check): S.HANDLING_PROCESSING,
    (S.INITIALIZE, Machine.handle_signal): S.FINALIZED,
    (S.HANDLING_START, Machine.handle_signal): S.ABORTED,
    (S.HANDLING_PROCESSING, Machine.handle_signal): S.ABORTED,
    (S.HANDLING_COMPLETED, Machine.handle_signal): S.FINALIZED,
    (S.ABORTED, Machine.handle_signal): S.FINALIZED,
    (S.FINALIZED, Machine.handle_signal): S.FINALIZED,
}
EVENTS = list(dict.fromkeys(event for _, event in RULES))


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (state, event)
        for state, event in itertools.product(S, EVENTS)
        if event is not Machine.handle_periodic_check or (state, event) in RULES
    ],
)
def test_every_event_in_every_state(state, event) -> None:
    """What is not in the table of rules means nothing. None asks for a forbidden transition."""
    lines = Lines()
    machine = Machine(lines)
    machine.state = state
    event(machine)
    assert machine.state is RULES.get((state, event), state)
    assert len(lines) == ((state, event) in RULES)


@pytest.mark.parametrize("state", [S.UNINITIALIZED, S.HANDLING_COMPLETED, S.ABORTED])
def test_a_check_while_nothing_restarts_is_a_mistake(state) -> None:
    """Of the caller, who has asked is_restarting() before."""
    machine = Machine(Lines())
    machine.state = state
    with pytest.raises(AssertionError, match="no restart is in progress"):
        machine.handle_periodic_check()
