"""What a rank is."""

from __future__ import annotations

import dataclasses
import os

import pytest

from holdfast.inprocess.state import FIELDS, FrozenState, Mode, State, Status


def test_without_arguments_it_is_what_the_environment_says(monkeypatch) -> None:
    """Rank 0 of 1 where it says nothing."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert (State().rank, State.from_env().world_size) == (0, 1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    state = State()
    assert (state.rank, state.world_size, state.initial_rank, state.initial_world_size) == (
        3,
        8,
    ) * 2
    monkeypatch.setenv("RANK", "None")
    with pytest.raises(ValueError, match="RANK should be a whole number, is 'None'"):
        State.from_env()


def test_a_state_takes_its_numbers_from_the_environment_again(monkeypatch) -> None:
    """And keeps them where the environment has none that can be used."""
    state = State(1, 2)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "eight")
    with pytest.raises(ValueError, match="WORLD_SIZE"):
        state.get_distributed_vars()
    assert (state.rank, state.world_size) == (1, 2)
    monkeypatch.setenv("WORLD_SIZE", "8")
    state.get_distributed_vars()
    assert (state.rank, state.world_size, state.initial_rank) == (3, 8, 1)


def test_both_generations_find_their_names() -> None:
    """Status is Mode, status is mode."""
    state = State(1, 4)
    assert Status is Mode
    assert {"INITIALIZED", "ACTIVE", "INACTIVE", "ABORTING", "ABORTED", "TERMINATED"} == {
        mode.name for mode in Mode
    }
    state.status = Status.ABORTING
    assert state.mode is Mode.ABORTING
    assert state.freeze().status is Status.ABORTING


def test_a_frozen_state_cannot_be_changed_and_stays_as_it_was() -> None:
    """Whatever happens to the state."""
    state = State(1, 4, active_rank=0, active_world_size=2)
    frozen = state.freeze()
    with pytest.raises(dataclasses.FrozenInstanceError):
        frozen.rank = 0
    state.rank = 2
    assert frozen == FrozenState(1, 4, 0, 2, 1, 4) == FrozenState(1, 4, 0, 2)


def test_copies_take_what_they_are_told() -> None:
    """All, or some fields; of a frozen one, too."""
    one, other = State(1, 4), State(2, 8, iteration=3)
    one.copy_from(other.freeze(), ["iteration", "world_size"])
    assert (one.rank, one.world_size, one.iteration) == (1, 8, 3)
    assert one.copy_from(other) == other
    assert [getattr(one.copy(), name) for name in FIELDS] == [getattr(one, name) for name in FIELDS]


def test_the_next_iteration_forgets_the_exception() -> None:
    """And counts."""
    state = State(0, 1, fn_exception=ValueError())
    state.advance()
    assert (state.iteration, state.fn_exception) == (1, None)


@pytest.mark.parametrize(
    ("active_rank", "active_world", "expected"),
    [(2, 4, ("2", "4")), (None, 4, ("5", "4")), (None, None, ("5", "8"))],
)
def test_the_environment_shows_active_numbers_and_never_the_word_none(
    active_rank, active_world, expected, monkeypatch
) -> None:
    """A rank that stands by keeps its own."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")
    State(5, 8, active_rank, active_world).set_distributed_vars()
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == expected


def test_all_ranks_are_activated_at_once() -> None:
    state = State(2, 4, active_rank=None, active_world_size=1, mode=Mode.INACTIVE)
    state.activate_all_ranks()
    assert (state.mode, state.active_rank, state.active_world_size) == (Mode.ACTIVE, 2, 4)
