"""What the Wrapper says to plug-ins, and what they can say back: one rank, in this process.

Plug-ins of both generations: the first is called with ``(state)`` or ``(state, exception)`` and
gets the state itself, the second is called with a picture of it (``FrozenState``).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch.distributed

from nvidia_resiliency_ext.inprocess import CallWrapper, Compose, FrozenState, Mode, State
from nvidia_resiliency_ext.inprocess.abort import Abort
from nvidia_resiliency_ext.inprocess.completion import Completion
from nvidia_resiliency_ext.inprocess.exception import (
    HealthCheckError,
    InternalError,
    RestartAbort,
    RestartError,
)
from nvidia_resiliency_ext.inprocess.finalize import Finalize
from nvidia_resiliency_ext.inprocess.health_check import FaultCounter, HealthCheck
from nvidia_resiliency_ext.inprocess.initialize import Initialize, RetryController
from nvidia_resiliency_ext.inprocess.monitor_thread import RankShouldRestart
from nvidia_resiliency_ext.inprocess.rank_assignment import (
    MaxActiveWorldSize,
    RankAssignment,
    RankAssignmentCtx,
    RankDiscarded,
    RankFilter,
    ShiftRanks,
)
from nvidia_resiliency_ext.inprocess.state import Status
from nvidia_resiliency_ext.inprocess.terminate import Terminate
from tests.promises.conftest import Alone
from tests.promises.rows import promise, promises

BASES: dict[str, type] = {
    "initialize": Initialize,
    "abort": Abort,
    "finalize": Finalize,
    "health_check": HealthCheck,
    "completion": Completion,
    "terminate": Terminate,
    "rank_assignment": RankAssignment,
    "rank_filter": RankFilter,
}


def plugin(family: str, call: Callable[..., Any]) -> Any:
    """A plug-in of this family with this ``__call__``, as a class of a program has it."""
    return type(f"My_{family}", (BASES[family],), {"__call__": call})()


def fails_once(call: CallWrapper) -> int:
    if call.iteration == 0:
        raise ValueError("boom")
    return call.iteration


class Told:
    """What plug-ins were told, in order: each notes its name and what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def second(self, family: str) -> Any:
        """A plug-in of the second generation: annotated, as programs annotate them."""

        def call(_self: object, state: FrozenState) -> FrozenState:
            self.calls.append((family, state))
            return state

        return plugin(family, call)

    def first(self, family: str) -> Any:
        """A plug-in of the first generation."""

        def with_exception(_self: object, state: Any, exc: Any) -> Any:
            self.calls.append((family, (state, exc)))
            return state, exc

        def without(_self: object, state: State) -> Any:
            self.calls.append((family, state))
            return state

        takes_exception = family in ("finalize", "health_check")
        return plugin(family, with_exception if takes_exception else without)

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def of(self, name: str) -> list[Any]:
        return [what for family, what in self.calls if family == name]


STEPS = ("initialize", "abort", "finalize", "health_check", "completion", "terminate")
ORDER = [
    *("initialize", "health_check", "function", "abort", "finalize", "health_check"),
    *("initialize", "health_check", "function", "completion"),
]


def told_by(alone: Alone, make: str, function: Callable[..., Any] = fails_once) -> Told:
    """What plug-ins of a generation are told in a call with one fault."""
    told = Told()

    def noting(call: CallWrapper) -> Any:
        told.calls.append(("function", None))
        return function(call)

    plugins = {family: getattr(told, make)(family) for family in STEPS}
    assert alone(noting, **plugins) == 1
    return told


# ---------------------------------------------------------------- the order of calls
@promises(
    "inprocess 4.1",
    "make",
    {
        "The order on a rank that fails (second generation)": "second",
        "The order on a rank that fails (first generation)": "first",
    },
)
def test_order(alone: Alone, make: str) -> None:
    assert told_by(alone, make).names() == ORDER


@promise("inprocess 4.1", "Rank assignment comes before `initialize`, and after all of a restart")
def test_order_of_assignment(alone: Alone) -> None:
    told = Told()

    def assign(_self: object, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        told.calls.append(("rank_assignment", ctx.state.iteration))
        return ctx

    steps = ("initialize", "finalize", "health_check")
    alone(
        fails_once,
        rank_assignment=plugin("rank_assignment", assign),
        **{family: told.second(family) for family in steps},
    )
    assert told.names() == [
        *("rank_assignment", "initialize", "health_check"),
        *("finalize", "health_check", "rank_assignment", "initialize", "health_check"),
    ]


@promise("inprocess 12", "`rank_filter` is applied after `rank_assignment`, each time")
def test_order_of_filter(alone: Alone) -> None:
    told: list[str] = []

    def assign(_self: object, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        told.append("assignment")
        return ctx

    def choose(_self: object, state: State) -> State:
        told.append("filter")
        return state

    alone(
        fails_once,
        rank_assignment=plugin("rank_assignment", assign),
        rank_filter=plugin("rank_filter", choose),
    )
    assert told == ["assignment", "filter"] * 2


@promise("inprocess 4.1", "`completion` is called when the call has succeeded, `terminate` is not")
def test_completion(alone: Alone) -> None:
    told = Told()
    alone(lambda: None, completion=told.second("completion"), terminate=told.second("terminate"))
    assert told.names() == ["completion"]


@promise("inprocess 4.1", "Exceptions of `completion` are only logged")
def test_completion_fails(alone: Alone, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_self: object, _state: Any) -> Any:
        raise ValueError("in completion")

    assert alone(lambda: 3, completion=plugin("completion", fail)) == 3
    assert "in completion" in caplog.text


@promise("inprocess 4.1", "A rank that leaves: `terminate` is called, then its exception is raised")
def test_terminate(alone: Alone) -> None:
    told = Told()

    def function() -> None:
        raise RestartAbort("enough")

    with pytest.raises(RestartAbort, match="enough"):
        alone(function, terminate=told.second("terminate"), completion=told.second("completion"))
    assert told.names() == ["terminate"]
    assert told.of("terminate")[0].mode is Mode.TERMINATED


@promise("inprocess 4.1", "Garbage is collected before the function is called again")
def test_garbage(alone: Alone) -> None:
    class Cycle:
        alive = 0

        def __init__(self) -> None:
            self.me = self
            Cycle.alive += 1

        def __del__(self) -> None:
            Cycle.alive -= 1

    def function(call: CallWrapper) -> int:
        if call.iteration == 0:
            Cycle()
            raise ValueError
        return Cycle.alive

    gc.disable()
    try:
        assert alone(function) == 0
    finally:
        gc.enable()


# ---------------------------------------------------------------- what they are told
@promise("inprocess 0", "Second generation: plug-ins get a FrozenState")
def test_frozen(alone: Alone) -> None:
    told = told_by(alone, "second")
    assert all(isinstance(what, FrozenState) for name, what in told.calls if name != "function")


@promise(
    "inprocess 0",
    "Second generation: the exception is `state.fn_exception`, on the rank that failed",
)
def test_exception_in_state(alone: Alone) -> None:
    told = told_by(alone, "second")
    raised = [repr(state.fn_exception) for state in told.of("finalize") + told.of("abort")]
    assert raised == ["ValueError('boom')"] * 2
    checks = [repr(state.fn_exception) for state in told.of("health_check")]
    assert checks == ["None", "ValueError('boom')", "None"]


@promise(
    "inprocess 9", "Assigning to a FrozenState is a FrozenInstanceError, and the plug-in's failure"
)
def test_frozen_is_frozen(alone: Alone) -> None:
    def assigns(_self: object, state: FrozenState) -> FrozenState:
        state.rank = 7  # type: ignore[misc]
        return state

    with pytest.raises(dataclasses.FrozenInstanceError):
        alone(fails_once, finalize=plugin("finalize", assigns))


@promise(
    "inprocess 0",
    "First generation: `finalize` and `health_check` get `(state, exception or None)`",
)
def test_state_and_exception(alone: Alone) -> None:
    told = told_by(alone, "first")
    [(state, exception)] = told.of("finalize")
    assert isinstance(state, State)
    assert repr(exception) == "ValueError('boom')"
    raised = [repr(exception) for _, exception in told.of("health_check")]
    assert raised == ["None", "ValueError('boom')", "None"]


@promises(
    "inprocess 0",
    "family",
    {
        f"First generation: `{family}` gets the State itself": family
        for family in ("initialize", "abort")
    },
)
def test_state_itself(alone: Alone, family: str) -> None:
    seen: list[Any] = []

    def call(_self: object, state: State) -> State:
        seen.append(state)
        return state

    alone(fails_once, **{family: plugin(family, call)})
    assert {type(state) for state in seen} == {State}


def any_name(_self: object, it: Any) -> Any:
    it.seen = getattr(it, "seen", 0) + 1
    return it


@promise("inprocess 0", "First generation: `initialize` may change the state whatever it calls it")
def test_state_by_any_name(alone: Alone) -> None:
    found: list[int] = []

    def looks(_self: object, it: Any, error: Any) -> Any:
        found.append(getattr(it, "seen", 0))
        return it, error

    alone(
        fails_once,
        initialize=plugin("initialize", any_name),
        finalize=plugin("finalize", looks),
    )
    assert found == [1]


def with_args(told: list[Any]) -> Callable[..., Any]:
    def call(_self: object, *args: Any) -> Any:
        told.append(args)
        return args if len(args) > 1 else args[0]

    return call


@promises(
    "inprocess 0",
    "family",
    {
        f"First generation: `{family}` as `__call__(self, *args)` gets `(state, exception)`": family
        for family in ("finalize", "health_check")
    },
)
def test_args(alone: Alone, family: str) -> None:
    told: list[Any] = []
    alone(fails_once, **{family: plugin(family, with_args(told))})
    assert {len(args) for args in told} == {2}
    raised = [repr(exception) for _, exception in told]
    assert "ValueError('boom')" in raised


@promise(
    "inprocess 0", "First generation: `rank_assignment` gets `(state, set)`, without annotations"
)
def test_assignment_of_the_first_generation(alone: Alone) -> None:
    told: list[Any] = []

    def assign(_self: object, state: Any, terminated: Any) -> Any:
        told.append((type(state), terminated))
        return state, terminated

    alone(fails_once, rank_assignment=plugin("rank_assignment", assign))
    assert told == [(State, set())] * 2


@promise("inprocess 0", "Second generation: `rank_assignment` gets a RankAssignmentCtx")
def test_assignment_of_the_second_generation(alone: Alone) -> None:
    told: list[Any] = []

    def assign(_self: object, ctx: Any) -> Any:
        told.append((type(ctx), type(ctx.state), ctx.terminated_ranks))
        return ctx

    alone(fails_once, rank_assignment=plugin("rank_assignment", assign))
    assert told == [(RankAssignmentCtx, State, set())] * 2


@promise(
    "inprocess 4.1", "An assignment after a fault sees the iteration that failed, and its exception"
)
def test_assignment_sees_the_fault(alone: Alone) -> None:
    seen: list[Any] = []

    def assign(_self: object, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        seen.append((ctx.state.iteration, repr(ctx.state.fn_exception)))
        return ctx

    alone(fails_once, rank_assignment=plugin("rank_assignment", assign))
    assert seen == [(0, "None"), (0, "ValueError('boom')")]


@promise(
    "inprocess 9", "One State lives for the whole call: attributes that plug-ins put on it stay"
)
def test_attributes_stay(alone: Alone) -> None:
    seen: list[int] = []

    def counts(_self: object, state: State) -> State:
        state.mine = getattr(state, "mine", 0) + 1  # type: ignore[attr-defined]
        seen.append(state.mine)  # type: ignore[attr-defined]
        return state

    def twice(call: CallWrapper) -> None:
        if call.iteration < 2:
            raise ValueError

    alone(twice, initialize=plugin("initialize", counts))
    assert seen == [1, 2, 3]


@promise("inprocess 9", "Each iteration has its number, and no exception of the one before")
def test_iterations(alone: Alone) -> None:
    states = told_by(alone, "second").of("initialize")
    assert [(state.iteration, state.fn_exception) for state in states] == [(0, None), (1, None)]


@promise(
    "inprocess 9", "The state has the numbers of the rank: its own, the world's, the active ones"
)
def test_numbers(alone: Alone) -> None:
    state = told_by(alone, "second").of("initialize")[0]
    assert (state.rank, state.world_size, state.initial_rank, state.initial_world_size) == (
        0,
        1,
        0,
        1,
    )
    assert (state.active_rank, state.active_world_size, state.mode) == (0, 1, Mode.ACTIVE)


@promise(
    "inprocess 4.2", "First generation: `state.store` is the store of the iteration, empty at first"
)
def test_store_of_an_iteration(alone: Alone) -> None:
    counts: list[int] = []

    def initialize(_self: object, state: State) -> State:
        counts.append(state.store.add("mine", 1))
        return state

    def function(call: CallWrapper) -> None:
        counts.append(call.store.add("mine", 1))
        if call.iteration == 0:
            raise ValueError

    alone(function, initialize=plugin("initialize", initialize))
    assert counts == [1, 2, 1, 2]


# ---------------------------------------------------------------- what they can say
@promise("inprocess 0", "First generation: what `initialize` returns replaces the state")
def test_initialize_replaces(alone: Alone) -> None:
    seen: list[int] = []

    def initialize(_self: object, state: State) -> State:
        other = State(state.rank, state.world_size)
        other.copy_from(state)
        other.initial_world_size = 77
        return other

    def finalize(_self: object, state: Any, exc: Any) -> Any:
        seen.append(state.initial_world_size)
        return state, exc

    alone(
        fails_once,
        initialize=plugin("initialize", initialize),
        finalize=plugin("finalize", finalize),
    )
    assert seen == [77]


@promise("inprocess 4.2", "First generation: the status that `initialize` leaves decides who works")
def test_status_decides(alone: Alone) -> None:
    def initialize(_self: object, state: State) -> State:
        state.status = Status.ACTIVE
        return state

    # All ranks of a call that stand by would wait for ever; so the other way round.
    def choose(_self: object, state: State) -> State:
        state.status = Status.INACTIVE
        return state

    assert (
        alone(
            lambda: "worked",
            rank_filter=plugin("rank_filter", choose),
            initialize=plugin("initialize", initialize),
        )
        == "worked"
    )


@promise("inprocess 4.1", "A mode other than ACTIVE and INACTIVE is a fault, as InternalError")
def test_other_modes(alone: Alone) -> None:
    seen: list[Any] = []

    def choose(_self: object, state: State) -> State:
        if not seen:
            state.mode = Mode.INITIALIZED
        return state

    def finalize(_self: object, state: FrozenState) -> FrozenState:
        seen.append(type(state.fn_exception))
        return state

    alone(
        lambda: None,
        rank_filter=plugin("rank_filter", choose),
        finalize=plugin("finalize", finalize),
    )
    assert seen == [InternalError]


@promise("inprocess 12", "A bare `ShiftRanks()` activates all ranks")
def test_bare_shift(alone: Alone) -> None:
    assert alone(fails_once, rank_assignment=ShiftRanks()) == 1


@promise(
    "inprocess 4.2",
    "First generation: a set that is not empty after the assignment is a RestartError",
)
def test_left_over(alone: Alone) -> None:
    def assign(_self: object, state: Any, terminated: Any) -> Any:
        return state, {0}

    with pytest.raises(RestartError):
        alone(lambda: None, rank_assignment=plugin("rank_assignment", assign))


@promise("inprocess 6", "What the assignment raises is raised to the caller")
def test_assignment_raises(alone: Alone) -> None:
    def assign(_self: object, ctx: Any) -> Any:
        raise LookupError("no place")

    with pytest.raises(LookupError, match="no place"):
        alone(lambda: None, rank_assignment=plugin("rank_assignment", assign))


@promise("inprocess 6", "A rank that the assignment discards leaves with RankDiscarded")
def test_discarded(alone: Alone) -> None:
    def assign(_self: object, ctx: Any) -> Any:
        raise RankDiscarded("not you")

    with pytest.raises(RankDiscarded, match="not you"):
        alone(lambda: None, rank_assignment=plugin("rank_assignment", assign))


# ---------------------------------------------------------------- faults before the function
@promise("inprocess 5", "What `initialize` raises is a fault of this rank, and the call goes on")
def test_initialize_fails(alone: Alone) -> None:
    def initialize(_self: object, state: Any) -> Any:
        if state.iteration == 0:
            raise ValueError("not yet")
        return state

    assert alone(lambda: 3, initialize=plugin("initialize", initialize)) == 3


@promise(
    "inprocess 4.1",
    "A first health check that fails is a fault, as HealthCheckError; the call goes on",
)
def test_first_health_check_fails(alone: Alone) -> None:
    seen: list[Any] = []

    def check(_self: object, state: Any) -> Any:
        if state.iteration == 0 and state.fn_exception is None:
            raise ValueError("unwell")
        return state

    def finalize(_self: object, state: FrozenState) -> FrozenState:
        seen.append((type(state.fn_exception), repr(state.fn_exception.__cause__)))  # type: ignore[union-attr]
        return state

    result = alone(
        lambda: "recovered",
        health_check=plugin("health_check", check),
        finalize=plugin("finalize", finalize),
    )
    assert result == "recovered"
    assert seen == [(HealthCheckError, "ValueError('unwell')")]


# ---------------------------------------------------------------- what the caller sees
@promises(
    "inprocess 6",
    "error",
    {
        f"{type(error).__name__} in the function ends the call of this rank with it": error
        for error in (SystemExit(3), KeyboardInterrupt(), RestartAbort("enough"))
    },
)
def test_leaving(alone: Alone, error: BaseException) -> None:
    def function() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        alone(function)
    assert caught.value is error


@promise(
    "inprocess 6", "What `finalize` raises is raised to the caller, and no health check follows"
)
def test_finalize_fails(alone: Alone) -> None:
    told = Told()

    def finalize(_self: object, state: Any) -> Any:
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        alone(
            fails_once,
            finalize=plugin("finalize", finalize),
            health_check=told.second("health_check"),
        )
    assert told.names() == ["health_check"]


@promise("inprocess 6", "What `finalize` raises keeps its cause")
def test_finalize_keeps_its_cause(alone: Alone) -> None:
    def finalize(_self: object, state: Any) -> Any:
        raise LookupError("lost") from OSError("disk")

    with pytest.raises(LookupError) as caught:
        alone(fails_once, finalize=plugin("finalize", finalize))
    assert repr(caught.value.__cause__) == "OSError('disk')"


@promise(
    "inprocess 6",
    "A health check that fails at a restart: HealthCheckError, caused by what it raised",
)
def test_restart_health_check_fails(alone: Alone) -> None:
    def check(_self: object, state: Any) -> Any:
        if state.fn_exception is not None:
            raise OSError("no card")
        return state

    with pytest.raises(HealthCheckError) as caught:
        alone(fails_once, health_check=plugin("health_check", check))
    assert repr(caught.value.__cause__) == "OSError('no card')"


@promise("inprocess 6", "RankShouldRestart raised by the function itself is a request to restart")
def test_request(alone: Alone) -> None:
    def function(call: CallWrapper) -> int:
        if call.iteration == 0:
            raise RankShouldRestart("please")
        return call.iteration

    assert alone(function) == 1


@promise("inprocess 6", "RankShouldRestart is a direct subclass of BaseException")
def test_its_base() -> None:
    assert RankShouldRestart.__bases__ == (BaseException,)


# ---------------------------------------------------------------- stop conditions
@promise("inprocess 8", "`RetryController(max_iterations=n)`: the function is called n times")
def test_retries(alone: Alone) -> None:
    calls: list[int] = []

    def function(call: CallWrapper) -> None:
        calls.append(call.iteration)
        raise ValueError

    with pytest.raises(RestartAbort, match="iteration=3"):
        alone(function, initialize=RetryController(max_iterations=3))
    assert calls == [0, 1, 2]


@promise("inprocess 8", "`FaultCounter(max_rank_faults=n)`: the rank leaves with fault n + 1")
def test_fault_counter(alone: Alone) -> None:
    calls: list[int] = []

    def function(call: CallWrapper) -> None:
        calls.append(call.iteration)
        raise ValueError

    with pytest.raises(HealthCheckError, match="max_rank_faults=1"):
        alone(function, health_check=FaultCounter(max_rank_faults=1))
    assert calls == [0, 1]


@promise("inprocess 10", "`rank_filter` alone: the active numbers are what the function sees")
def test_filter_alone(alone: Alone) -> None:
    seen = alone(
        lambda: (os.environ["RANK"], os.environ["WORLD_SIZE"]), rank_filter=MaxActiveWorldSize(1)
    )
    assert seen == ("0", "1")


# ---------------------------------------------------------------- composed plug-ins
@promises(
    "inprocess 7",
    "family",
    {
        f"Of a composed `{family}` the last is called first": family
        for family in ("initialize", "abort", "finalize", "health_check", "completion")
    },
)
def test_composed_order(alone: Alone, family: str) -> None:
    order: list[int] = []

    def noting(number: int) -> Any:
        def call(_self: object, state: Any) -> Any:
            order.append(number)
            return state

        return plugin(family, call)

    alone(fails_once, **{family: Compose(noting(1), noting(2), noting(3))})
    assert order[:3] == [3, 2, 1]
    assert order == [3, 2, 1] * (len(order) // 3)


@promise("inprocess 7", "Every leaf of a composed `abort` is called, also after one that raises")
def test_composed_abort(alone: Alone, caplog: pytest.LogCaptureFixture) -> None:
    called: list[int] = []

    def leaf(number: int) -> Any:
        def call(_self: object, state: Any) -> Any:
            called.append(number)
            if number == 2:
                raise ImportError("no checkpointing here")
            return state

        return plugin("abort", call)

    assert alone(fails_once, abort=Compose(leaf(1), leaf(2), leaf(3))) == 1
    assert called == [3, 2, 1]
    assert "no checkpointing here" in caplog.text


# ---------------------------------------------------------------- the call, from inside
@promise("inprocess 3", "`call.iteration` counts restarts from 0")
def test_iteration(alone: Alone) -> None:
    seen: list[int] = []

    def function(call: CallWrapper) -> None:
        seen.append(call.iteration)
        if call.iteration < 3:
            raise ValueError

    alone(function)
    assert seen == [0, 1, 2, 3]


@promise("inprocess 3", "`atomic()` is a reentrant lock; other threads wait for it")
def test_atomic(alone: Alone) -> None:
    order: list[str] = []

    def other(call: CallWrapper, began: threading.Event) -> None:
        began.set()
        with call.atomic():
            order.append("other")

    def function(call: CallWrapper) -> None:
        began = threading.Event()
        thread = threading.Thread(target=other, args=(call, began))
        with call.atomic(), call.atomic():
            thread.start()
            began.wait()
            time.sleep(0.05)
            order.append("main")
        thread.join()

    alone(function)
    assert order == ["main", "other"]


INTERVALS = ("monitor_process_interval", "monitor_thread_interval", "progress_watchdog_interval")


@promise("inprocess 3", "`disable_hang_protection()`: no timeout inside; both again after it")
def test_hang_protection(alone: Alone) -> None:
    """Also after an exception."""
    seen: list[Any] = []
    limit_s = 1.0

    def function(call: CallWrapper) -> None:
        if "hung" in seen:
            return
        with suppress(LookupError), call.disable_hang_protection():
            time.sleep(1.6 * limit_s)
            seen.append("not interrupted")
            raise LookupError
        seen.append("hung")
        time.sleep(1000)

    limits = dict.fromkeys(INTERVALS, dt.timedelta(seconds=limit_s / 5))
    alone(function, soft_timeout=dt.timedelta(seconds=limit_s), **limits)
    assert seen == ["not interrupted", "hung"]


@promise("inprocess 5", "A busy function that stopped pinging is restarted after `soft_timeout`")
def test_ping(alone: Alone) -> None:
    seen: list[int] = []

    def function(call: CallWrapper) -> int:
        seen.append(call.iteration)
        if call.iteration:
            return call.iteration
        call.ping()
        while True:
            time.sleep(0.01)

    limits = dict.fromkeys(INTERVALS, dt.timedelta(seconds=0.2))
    alone(function, soft_timeout=dt.timedelta(seconds=1), **limits)
    assert seen[:2] == [0, 1]


@promise(
    "inprocess 11", "After a call there are no more threads, stores or logging handlers than before"
)
def test_nothing_stays(alone: Alone) -> None:
    def of(name: str | None) -> int:
        return len(logging.getLogger(name).handlers)

    def counts() -> Any:
        gc.collect()
        stores = [one for one in gc.get_objects() if issubclass(type(one), torch.distributed.Store)]
        loggers = [of(name) for name in (None, "nvidia_resiliency_ext", "nvrx", "holdfast")]
        return threading.active_count(), len(stores), loggers

    before = counts()
    alone(fails_once)
    assert counts() == before
