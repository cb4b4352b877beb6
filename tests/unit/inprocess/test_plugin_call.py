"""Plug-ins of both generations, each called the way it was written."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast.inprocess import Compose
from holdfast.inprocess._plugin_call import AssignmentPlugin, StatePlugin
from holdfast.inprocess.exception import RestartError
from holdfast.inprocess.finalize import Finalize
from holdfast.inprocess.health_check import FaultCounter, HealthCheck
from holdfast.inprocess.rank_assignment import (
    ActivateAllRanks,
    FillGaps,
    Layer,
    MaxActiveWorldSize,
    RankAssignmentCtx,
    ShiftRanks,
    Tree,
    WorldSizeDivisibleBy,
)
from holdfast.inprocess.state import FrozenState, Mode, State
from tests.unit.inprocess.job import Job

_ = None
ERROR = ValueError("what the function raised")


def failed() -> State:
    return State(1, 4, iteration=2, fn_exception=ERROR)


class Seen(list):
    """Plug-ins of every shape; each keeps what it was given."""

    def none(self):
        self.append(())

    def second(self, state: FrozenState):
        self.append((state,))
        return state

    def second_with_default(self, state: FrozenState | None, verbose=False):
        self.append((state, verbose))
        return state

    def one(self, whatever):
        self.append((whatever,))
        return whatever

    def one_annotated(self, state: State) -> State:
        self.append((state,))
        return state

    def first(self, state, exc):
        self.append((state, exc))
        return state, exc

    def default(self, state, exc=None):
        self.append((state, exc))
        return state

    def anything(self, *args, **kwargs):
        self.append(args)
        return args


def noting(called: list[str], name: str):
    def note(state):
        called.append(name)
        return state

    return note


def raising(called: list[str], error: BaseException):
    def fail(state):
        called.append(repr(error))
        raise error

    return fail


@pytest.mark.parametrize("family", ["finalize", "health_check"])
def test_what_handles_faults_gets_the_exception_in_its_own_way(family) -> None:
    """In the state, or beside it."""
    seen, state = Seen(), failed()
    frozen = state.freeze()
    for method, given in [
        (seen.none, ()),
        (seen.second, (frozen,)),
        (seen.second_with_default, (frozen, False)),
        (seen.one, (state,)),
        (seen.one_annotated, (state,)),
        (seen.first, (state, ERROR)),
        (seen.default, (state, ERROR)),
        (seen.anything, (state, ERROR)),
    ]:
        StatePlugin(family, method)(state)
        assert seen[-1] == given
    assert frozen.fn_exception is ERROR


@pytest.mark.parametrize("family", ["initialize", "abort", "completion", "terminate"])
def test_others_get_the_state(family) -> None:
    """The one that can be changed, unless they are annotated to take a picture of it."""
    seen, state = Seen(), failed()
    for method, kind in [
        (seen.second, FrozenState),
        (seen.second_with_default, FrozenState),
        (seen.one, State),
        (seen.one_annotated, State),
        (seen.default, State),
        (seen.anything, State),
    ]:
        StatePlugin(family, method)(state)
        assert type(seen[-1][0]) is kind
    with pytest.raises(TypeError, match=f"{family}: .*takes 2 arguments, and gets at most 1"):
        StatePlugin(family, seen.first)


def test_what_a_plug_in_puts_on_the_state_stays() -> None:
    """Also on another state that it returns: the next plug-in finds it."""
    state = State(1, 4)

    def mark(state):
        state.seed = 7
        return state

    def replace(state):
        other = State(1, 4)
        other.epochs = 3
        return other

    StatePlugin("initialize", Compose(replace, mark))(state)
    assert (state.seed, state.epochs) == (7, 3)


def test_an_exception_that_a_plug_in_gives_back_is_the_next_ones() -> None:
    """Of the first generation, in a composition."""
    seen, other = Seen(), KeyError("instead")
    StatePlugin("finalize", Compose(seen.first, seen.one, lambda state, exc: (state, other)))(
        failed()
    )
    assert [given[1:] for given in seen] == [(), (other,)]


def test_of_a_composition_each_is_called_in_its_own_way() -> None:
    """Both generations together, the last one first."""
    seen, state = Seen(), failed()
    plugin = Compose(seen.first, Compose(seen.second, lambda state, exc: None), seen.none)
    with pytest.warns(UserWarning, match="returned None"):
        StatePlugin("finalize", plugin)(state)
    assert seen == [(), (state.freeze(),), (state, ERROR)]


def test_a_plugin_that_nobody_could_call_is_refused_when_it_is_given() -> None:
    """Before any training has begun."""

    def keyword(state, *, needed): ...
    def three(state, exc, more): ...

    with pytest.raises(TypeError, match=r"health_check: .*needs needed by keyword"):
        StatePlugin("health_check", keyword)
    with pytest.raises(TypeError, match=r"finalize: .*takes 3 arguments, and gets at most 2"):
        StatePlugin("finalize", Compose(print, three))
    with pytest.raises(TypeError, match=r"rank_assignment: .*takes 3"):
        AssignmentPlugin(three)
    with pytest.raises(TypeError, match=r"rank_filter: .*takes 3"):
        AssignmentPlugin(None, three)


def test_a_mutable_state_that_comes_back_is_adopted_and_a_frozen_one_is_not() -> None:
    """The first generation's initialize may replace the state."""
    state = failed()
    StatePlugin("initialize", lambda state: State(7, 8, iteration=5))(state)
    assert (state.rank, state.iteration) == (7, 5)

    def another(state: FrozenState) -> FrozenState:
        return dataclasses.replace(state, iteration=6)

    StatePlugin("initialize", another)(state)
    assert state.iteration == 5


def test_a_plugin_that_changes_a_frozen_state_fails() -> None:
    """As that plug-in's own failure."""

    def change(state: FrozenState):
        state.rank = 0

    with pytest.raises(dataclasses.FrozenInstanceError):
        StatePlugin("finalize", change)(failed())


@pytest.mark.parametrize("family", ["initialize", "health_check"])
@pytest.mark.parametrize("error", [SystemExit(3), ValueError("unwell")], ids=repr)
def test_what_a_plugin_raises_comes_out_and_ends_the_chain(family, error) -> None:
    """Of any class: one check that fails is the answer, and a start has to be whole."""
    called: list[str] = []
    with pytest.raises(type(error)) as caught:
        StatePlugin(family, Compose(noting(called, "after"), raising(called, error)))(failed())
    assert caught.value is error
    assert called == [repr(error)]


@pytest.mark.parametrize("family", ["abort", "finalize", "completion", "terminate"])
def test_of_those_that_clean_up_each_is_called_whichever_fail(family, caplog) -> None:
    """The first failure comes out, the others are logged."""
    first, second = ValueError("the first"), KeyError("the second")
    called: list[str] = []
    last = noting(called, "last")
    between = noting(called, "between")

    with pytest.raises(ValueError, match="the first") as caught:
        StatePlugin(
            family, Compose(last, raising(called, second), between, raising(called, first))
        )(failed())
    assert caught.value is first
    assert called == [repr(first), "between", repr(second), "last"]
    assert f"{family}: " in caplog.text
    assert "the second" in caplog.text
    assert "the first" not in caplog.text


@pytest.mark.parametrize("family", ["finalize", "completion", "terminate"])
def test_what_ends_the_process_ends_the_chain_but_not_of_aborts(family) -> None:
    """Ctrl-C comes in the main thread; aborts run in another one, and free all ranks."""
    for name, and_then in ((family, []), ("abort", ["after"])):
        called: list[str] = []
        leave = SystemExit(3)
        with pytest.raises(SystemExit):
            StatePlugin(name, Compose(noting(called, "after"), raising(called, leave)))(failed())
        assert called == [repr(leave), *and_then]


def test_a_subclass_of_compose_that_calls_in_its_own_way_is_left_alone() -> None:
    """Only Compose's own way is known."""

    class Reversed(Compose):
        def __call__(self, state):
            return [one(state) for one in self.instances]

    seen, state = Seen(), failed()
    StatePlugin("finalize", Reversed(seen.second, seen.anything))(state)
    assert seen == [(state,)] * 2


# ------------------------------------------------------------------ assignments
class FirstGeneration(Seen):
    """Written before there was a ctx."""

    def __call__(self, state, terminated):
        self.append((state.rank, set(terminated)))
        state.rank -= sum(rank < state.rank for rank in terminated)
        state.world_size -= len(terminated)
        return state, set()


class AnyNumber(FirstGeneration):
    """Written for a caller that says what it gives."""

    def __call__(self, *args):
        return super().__call__(*args)


class AnyNames(FirstGeneration):
    """With a default, too."""

    def __call__(self, mine, gone=frozenset()):
        return super().__call__(mine, gone)


@pytest.mark.parametrize("kind", [ShiftRanks, FillGaps, FirstGeneration, AnyNumber, AnyNames])
def test_a_bare_assignment_activates_all(kind) -> None:
    """Nobody decided who works, so everybody does."""
    job = Job(4, kind).lose(3)
    assert job.active == [0, 1, 2, _]
    assert {state.mode for state in job.states.values()} == {Mode.ACTIVE}


def test_a_rank_filter_starts_from_all_in_each_iteration() -> None:
    """As in the first generation, whatever the assignment's."""
    for kind in (ShiftRanks, FirstGeneration):
        job = Job(8, kind, lambda: Compose(WorldSizeDivisibleBy(2), MaxActiveWorldSize(5)))
        assert job.lose().active == [0, 1, 2, 3, _, _, _, _]
        assert job.lose(0, 1, 2).active == [_, _, _, 0, 1, 2, 3, _]


def test_rank_filters_of_both_manners() -> None:
    """``(state)`` and ``(ctx)``."""

    def by_state(state):
        state.mode = Mode.INACTIVE if state.rank else Mode.ACTIVE
        state.active_rank = None if state.rank else 0
        state.active_world_size = 1
        return state

    def by_ctx(ctx):
        by_state(ctx.state)
        return ctx

    for one in (by_state, by_ctx):
        assert Job(3, ShiftRanks, lambda one=one: one).lose().active == [0, _, _]
    assert Job(3, lambda: Compose(by_state, ShiftRanks())).lose(0).active == [_, 0, _]


def test_generations_can_be_mixed_in_one_composition() -> None:
    """A filter of the first, an assignment of the second."""

    def drop_odd(state, terminated):
        return state, terminated | {rank for rank in range(state.world_size) if rank % 2}

    job = Job(6, lambda: Compose(ActivateAllRanks(), ShiftRanks(), drop_odd)).lose(0)
    assert job.ranks == [_, _, 0, _, 1, _]
    assert job.discarded == {1, 3, 5}


def test_built_in_assignments_can_be_called_in_the_first_generations_way() -> None:
    """By those who write their own around them."""
    state, left = ShiftRanks()(State(3, 4), {1})
    assert (state.rank, state.world_size, left) == (2, 3, set())
    assert MaxActiveWorldSize(2)(State(3, 4)).mode is Mode.INACTIVE
    composed = Compose(ShiftRanks(), lambda state, terminated: (state, terminated | {0}))
    assert composed(State(3, 4), {1})[0].rank == 1


def test_a_new_ctx_or_state_is_adopted() -> None:
    """An assignment may return another object."""

    def fresh(ctx):
        state = State(0, 1, 0, 1, iteration=ctx.state.iteration)
        return RankAssignmentCtx(state, ctx.store, set())

    state = State(1, 2)
    AssignmentPlugin(fresh)(state, None, {0})
    assert (state.rank, state.world_size, state.active_rank) == (0, 1, 0)


@pytest.mark.parametrize(
    "assignment",
    [
        None,
        ActivateAllRanks(),
        lambda ctx: ctx,
        lambda state, terminated: (state, terminated),
        Compose(ActivateAllRanks(), MaxActiveWorldSize(2)),
    ],
)
def test_lost_ranks_that_nobody_takes_out_are_an_error(assignment) -> None:
    """Otherwise all would wait for them."""
    with pytest.raises(RestartError, match=r"left 1 terminated ranks in place, the first is 2"):
        AssignmentPlugin(assignment)(State(0, 3), None, {2})
    AssignmentPlugin(assignment)(State(0, 3), None, set())


def test_the_second_generation_may_leave_names_in_the_set() -> None:
    """As long as the world became smaller."""

    def assign(ctx):
        ctx.state.world_size -= len(ctx.terminated_ranks)
        return ctx

    state = State(0, 3)
    AssignmentPlugin(assign)(state, None, {2})
    assert state.world_size == 2


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rank": 5}, "this rank 5 of 4"),
        ({"rank": -1}, "this rank -1 of 4"),
        ({"mode": Mode.ACTIVE}, "active, as None of None"),
        ({"mode": Mode.ACTIVE, "active_rank": 4, "active_world_size": 4}, "active, as 4 of 4"),
        ({"mode": Mode.ACTIVE, "active_rank": 4, "active_world_size": 9}, "active, as 4 of 9"),
    ],
)
def test_numbers_that_cannot_be_are_told_at_once(change, text) -> None:
    """Not by a collective that never ends."""

    def assign(ctx: Any):
        for name, value in change.items():
            setattr(ctx.state, name, value)
        return ctx

    with pytest.raises(RestartError, match=text):
        AssignmentPlugin(assign)(State(0, 4), None, set())


def test_what_a_tree_knows_belongs_to_one_call_of_the_function() -> None:
    """Plug-ins are shared between calls; a new call starts with a new state."""
    one = Tree([Layer()])
    first = Job(3, lambda: one).lose().lose(0)
    again = Job(3, lambda: one).lose()
    assert (first.active, again.active) == ([_, 0, 1], [0, 1, 2])


# ------------------------------------------------------------------ subclasses as users write them
def test_subclasses_of_either_generation_are_called_as_they_are_written() -> None:
    """By their own signature, not by their base."""
    seen: list[object] = []

    class First(Finalize, HealthCheck):
        def __call__(self, state, exc):
            seen.append(exc)
            return state, exc

    class Second(Finalize, HealthCheck):
        def __call__(self, state):
            seen.append(state.fn_exception)
            return state

    for family in ("finalize", "health_check"):
        StatePlugin(family, Compose(First(), FaultCounter(), Second()))(failed())
    assert seen == [ERROR] * 4
