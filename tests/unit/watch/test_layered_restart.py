"""The layered-restart state machine."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidStateTransitionException
from holdfast.watch.pure.layered_restart import (
    TRANSITIONS,
    RankMonitorState,
    RankMonitorStateMachine,
    RestartEvent,
    next_state,
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


RULES = {
    (S.UNINITIALIZED, RestartEvent.MESSAGE): S.INITIALIZE,
    (S.HANDLING_START, RestartEvent.MESSAGE): S.HANDLING_COMPLETED,
    (S.HANDLING_PROCESSING, RestartEvent.MESSAGE): S.HANDLING_COMPLETED,
    (S.INITIALIZE, RestartEvent.DISCONNECT): S.HANDLING_START,
    (S.HANDLING_COMPLETED, RestartEvent.DISCONNECT): S.HANDLING_START,
    (S.HANDLING_START, RestartEvent.DISCONNECT): S.ABORTED,
    (S.HANDLING_PROCESSING, RestartEvent.DISCONNECT): S.ABORTED,
    (S.HANDLING_START, RestartEvent.CHECK): S.HANDLING_PROCESSING,
    (S.HANDLING_PROCESSING, RestartEvent.CHECK): S.HANDLING_PROCESSING,
    (S.INITIALIZE, RestartEvent.SIGNAL): S.FINALIZED,
    (S.HANDLING_START, RestartEvent.SIGNAL): S.ABORTED,
    (S.HANDLING_PROCESSING, RestartEvent.SIGNAL): S.ABORTED,
    (S.HANDLING_COMPLETED, RestartEvent.SIGNAL): S.FINALIZED,
    (S.ABORTED, RestartEvent.SIGNAL): S.FINALIZED,
    (S.FINALIZED, RestartEvent.SIGNAL): S.FINALIZED,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(S, RestartEvent)))
def test_every_event_in_every_state(state, event) -> None:
    """What is not in the table of rules means nothing."""
    assert next_state(state, event) is RULES.get((state, event))


def test_a_check_while_nothing_restarts_is_a_mistake() -> None:
    """Of the caller, who has asked is_restarting() before."""
    with pytest.raises(AssertionError, match="no restart is going on"):
        RankMonitorStateMachine(Lines()).handle_periodic_check()


@given(st.lists(st.sampled_from(RestartEvent)))
def test_no_sequence_of_events_leads_to_a_forbidden_transition(events) -> None:
    """The rules never ask for what the table forbids."""
    state = S.UNINITIALIZED
    for event in events:
        new = next_state(state, event)
        assert new is None or new in TRANSITIONS[state]
        state = new or state
