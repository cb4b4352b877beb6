"""Every argument of the Wrapper is checked, by type and by value."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import inspect
import pydoc
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from torch.distributed.constants import default_pg_timeout

from holdfast.inprocess import CallWrapper, Compose, Wrapper
from holdfast.inprocess._arguments import (
    BARRIER_TIMEOUT,
    COMPLETION_TIMEOUT,
    LAST_CALL_WAIT,
    NAMES,
    WrapperArguments,
)
from holdfast.inprocess.abort import AbortTorchDistributed, AbortTransformerEngine
from holdfast.inprocess.finalize import ThreadedFinalize
from holdfast.inprocess.health_check import CudaHealthCheck, FaultCounter
from holdfast.inprocess.initialize import RetryController
from holdfast.inprocess.rank_assignment import MaxActiveWorldSize, ShiftRanks
from nvidia_resiliency_ext.inprocess.nested_restarter import (
    NestedRestarterAborted,
    NestedRestarterFinalized,
)


class StoreMixin:
    """Stands for the real one."""


class Store(StoreMixin):
    """A user's."""


def validate(available: bool = True, **arguments: Any) -> None:
    whole: Any = {"store_factory": Store, **arguments}
    WrapperArguments(**whole).validate(
        store_mixin=StoreMixin, distributed_is_available=lambda: available
    )


def seconds(number: float) -> dt.timedelta:
    return dt.timedelta(seconds=number)


def test_defaults_are_those_of_the_specification() -> None:
    """In seconds, by name."""
    defaults = {
        part.name: part.default.total_seconds()
        for part in dataclasses.fields(WrapperArguments)
        if isinstance(part.default, dt.timedelta)
    }
    assert defaults == {
        "monitor_thread_interval": 1,
        "monitor_process_interval": 1,
        "heartbeat_interval": 1,
        "progress_watchdog_interval": 1,
        "soft_timeout": 60,
        "hard_timeout": 90,
        "heartbeat_timeout": 30,
        "barrier_timeout": 120,
        "completion_timeout": 120,
        "last_call_wait": 1,
        "termination_grace_time": 5,
    }
    validate()


def test_what_is_not_given_is_what_the_specification_says() -> None:
    """``None`` means none, where something else is the default, or is refused."""
    bare = Wrapper()
    assert bare.store_kwargs == {}
    assert isinstance(bare.abort, AbortTorchDistributed)
    assert isinstance(bare.rank_assignment, Compose)
    assert bare.last_call_wait == seconds(1)
    none = Wrapper(abort=None, rank_assignment=None)
    assert (none.abort, none.rank_assignment) == (None, None)
    with pytest.raises(TypeError, match="last_call_wait"):
        Wrapper(last_call_wait=None)  # type: ignore[arg-type]


def test_everything_at_once_is_fine() -> None:
    """Compositions pass as what their instances share."""
    validate(
        store_kwargs={"port": 1},
        initialize=RetryController(),
        abort=Compose(AbortTransformerEngine(), AbortTransformerEngine()),
        finalize=ThreadedFinalize(seconds(1), print),
        health_check=Compose(CudaHealthCheck(), FaultCounter()),
        rank_assignment=Compose(MaxActiveWorldSize(), ShiftRanks()),
        rank_filter=MaxActiveWorldSize(),
        last_call_wait=seconds(0),
        monitor_process_logfile="/tmp/rank-{rank}.log",
        monitor_process_pidfile="/tmp/rank-{rank}.pid",
        enabled=False,
        completion=NestedRestarterFinalized(),
        terminate=NestedRestarterAborted(),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store_factory", dict),
        ("store_factory", Store()),
        ("store_factory", None),
        ("store_kwargs", [("port", 1)]),
        ("initialize", print),
        ("abort", RetryController()),
        ("finalize", Compose(RetryController(), print)),
        ("health_check", "cuda"),
        ("rank_assignment", ShiftRanks),
        ("rank_filter", ShiftRanks()),
        ("completion", NestedRestarterAborted()),
        ("terminate", NestedRestarterFinalized()),
        ("monitor_thread_interval", 1),
        ("monitor_process_interval", 1.0),
        ("heartbeat_interval", None),
        ("progress_watchdog_interval", "1"),
        ("soft_timeout", 60),
        ("hard_timeout", 90),
        ("heartbeat_timeout", 30),
        ("barrier_timeout", 120),
        ("completion_timeout", 120),
        ("last_call_wait", 1),
        ("termination_grace_time", 5),
        ("max_start_faults", 1.0),
        ("max_start_faults", True),
        ("monitor_process_logfile", b"/tmp/log"),
        ("monitor_process_pidfile", 3),
        ("enabled", 1),
    ],
)
def test_a_wrong_type_names_the_argument(name, value) -> None:
    """And shows what was given; enabled or not."""
    with pytest.raises(TypeError, match=f"^{name} should be "):
        validate(**{"enabled": False, name: value})


@pytest.mark.parametrize(
    ("arguments", "condition"),
    [
        ({"soft_timeout": seconds(90)}, "soft_timeout < hard_timeout"),
        ({"hard_timeout": seconds(120)}, "hard_timeout < barrier_timeout"),
        ({"monitor_process_interval": seconds(30)}, "monitor_process_interval < heartbeat_timeout"),
        ({"heartbeat_timeout": seconds(120)}, "heartbeat_timeout < barrier_timeout"),
        ({"heartbeat_interval": seconds(30)}, "heartbeat_interval < heartbeat_timeout"),
        ({"monitor_thread_interval": seconds(60)}, "monitor_thread_interval < soft_timeout"),
        ({"progress_watchdog_interval": seconds(60)}, "progress_watchdog_interval < soft_timeout"),
        ({"last_call_wait": seconds(-1)}, "last_call_wait >= 0"),
        ({"monitor_process_logfile": "here.log"}, "os.path.isabs(monitor_process_logfile)"),
        ({"monitor_process_pidfile": "here.pid"}, "os.path.isabs(monitor_process_pidfile)"),
        ({"monitor_process_logfile": "/tmp/{host}"}, "monitor_process_logfile may hold {rank}"),
        ({"available": False}, "torch.distributed.is_available()"),
    ],
)
def test_a_wrong_value_says_which_condition_does_not_hold(arguments, condition) -> None:
    """Enabled or not."""
    with pytest.raises(ValueError) as caught:
        validate(enabled=False, **arguments)
    assert str(caught.value).startswith(condition)


@pytest.mark.parametrize(
    "arguments",
    [
        {"monitor_process_interval": seconds(10), "soft_timeout": seconds(10)},
        {"monitor_process_interval": seconds(-1), "monitor_thread_interval": seconds(-1)},
        {"heartbeat_timeout": seconds(1), "monitor_process_interval": seconds(0.5)},
        {"heartbeat_timeout": seconds(0.6), "monitor_process_interval": seconds(0.5)},
    ],
)
def test_what_a_generation_accepts_is_accepted(arguments) -> None:
    """Intervals have no effect; the first generation has no ``heartbeat_interval``."""
    validate(**arguments)


@pytest.mark.parametrize(
    ("given", "every"),
    [
        ({}, 1),
        ({"heartbeat_timeout": seconds(1)}, 1 / 3),
        ({"heartbeat_timeout": seconds(0.6)}, 0.2),
        ({"heartbeat_timeout": seconds(0.6), "heartbeat_interval": seconds(0.5)}, 0.5),
    ],
)
def test_a_node_is_heard_of_several_times_within_heartbeat_timeout(given, every) -> None:
    """Unless another interval was asked for."""
    arguments = WrapperArguments(store_factory=Store, **given)
    assert arguments.heartbeats_every.total_seconds() == pytest.approx(every)


def test_a_message_shows_both_values() -> None:
    """So that one can see which to change."""
    with pytest.raises(ValueError, match="soft_timeout is 100 s, hard_timeout is 90 s"):
        validate(soft_timeout=seconds(100))


def test_a_number_in_the_place_of_a_duration_is_shown_how_to_write_it() -> None:
    """Its unit is seconds, which the reader may change."""
    with pytest.raises(
        TypeError, match=r"is 60: for seconds, write datetime.timedelta\(seconds=60"
    ):
        Wrapper(soft_timeout=60)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the Wrapper's own constructor
def test_the_constructor_lists_every_argument_once() -> None:
    """With the types and defaults of the record in which a call keeps them."""
    parameters = inspect.signature(Wrapper.__init__).parameters
    assert tuple(parameters)[1:] == NAMES
    for each in dataclasses.fields(WrapperArguments):
        ours = parameters[each.name]
        assert ours.kind is ours.KEYWORD_ONLY
        if each.name != "store_factory":
            assert ours.annotation == each.type, each.name
        if each.name not in ("store_factory", "abort", "rank_assignment"):
            assert ours.default == each.default, each.name
    assert parameters["last_call_wait"].default is LAST_CALL_WAIT
    assert parameters["completion_timeout"].default is COMPLETION_TIMEOUT
    assert parameters["barrier_timeout"].default is BARRIER_TIMEOUT


def test_what_a_rank_does_alone_at_the_end_has_a_limit_only_where_one_was_given() -> None:
    assert Wrapper().checked_arguments().completion_within == dt.timedelta.max
    given = Wrapper(completion_timeout=seconds(120))
    assert given.checked_arguments().completion_within == seconds(120)


def test_ranks_that_come_late_are_waited_for_as_by_torch_unless_a_limit_was_given() -> None:
    """One may prepare the data before the first call, or save alone between two."""
    default = Wrapper().checked_arguments()
    assert default.join_within == default_pg_timeout
    assert default.barrier_timeout == seconds(120)
    given = Wrapper(barrier_timeout=seconds(120))
    assert given.checked_arguments().join_within == seconds(120)


def test_help_shows_parameters_and_defaults_in_words() -> None:
    """Of the class, whatever is called first where one is made; of a subclass, its own."""
    shown = pydoc.plain(pydoc.render_doc(Wrapper)).replace("'", "")  # none in Python 3.14
    assert "abort: Abort | Compose | None = AbortTorchDistributed()" in shown
    assert "= Compose(ActivateAllRanks(), ShiftRanks())" in shown
    assert "soft_timeout: dt.timedelta = datetime.timedelta(seconds=60)" in shown
    assert "object at 0x" not in shown
    assert tuple(inspect.signature(Wrapper).parameters) == NAMES
    assert tuple(inspect.signature(Sub).parameters) == ("seconds_", "others")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sofft_timeout", "Wrapper has no argument sofft_timeout: did you mean soft_timeout?"),
        ("colour", "Wrapper has no argument colour: its arguments are store_factory, store_kwargs"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(name: str, text: str) -> None:
    """Or with all."""
    with pytest.raises(TypeError) as caught:
        Wrapper(**{name: 1})
    assert str(caught.value).startswith(text)


class Sub(Wrapper):
    """A program's own, with a parameter of its own."""

    def __init__(self, seconds_: float, **others: Any) -> None:
        super().__init__(soft_timeout=seconds(seconds_), **others)


class ByKeyword(Wrapper):
    """One whose parameters are all keywords."""

    def __init__(self, **others: Any) -> None:
        super().__init__(soft_timeout=seconds(30), **others)


def train(call: CallWrapper, steps: int, *, rate: float = 0.1) -> str:
    """What a user decorates."""
    return f"{steps} {rate} {call}"


@pytest.mark.parametrize(
    "decorate",
    [
        Wrapper,
        Wrapper(),
        lambda fn: Wrapper()(fn=fn),
        ByKeyword,
        Sub(30),
        functools.partial(Wrapper, soft_timeout=seconds(30)),
        functools.partial(Wrapper, soft_timeout=seconds(30))(),
        functools.partial(Sub, 30)(),
    ],
    ids=[
        "bare",
        "()",
        "fn=",
        "bare subclass",
        "subclass",
        "bare partial",
        "partial",
        "partial sub",
    ],
)
def test_a_decorated_function_has_its_parameters_less_the_injected_one(decorate) -> None:
    """With parentheses or without; from a subclass, a partial, and by the parameter's name."""
    decorated = decorate(train)

    assert inspect.isfunction(decorated)
    assert str(inspect.signature(decorated)) == "(steps: 'int', *, rate: 'float' = 0.1) -> 'str'"
    assert (decorated.__name__, decorated.__wrapped__) == ("train", train)


@pytest.mark.parametrize(
    "given",
    [(ShiftRanks(),), (Compose(ShiftRanks()),), (dict,), (seconds(60),), (train, train)],
    ids=["plug-in", "Compose", "class", "duration", "two"],
)
def test_an_argument_without_its_keyword_is_refused(given) -> None:
    """Rather than decorated."""
    with pytest.raises(TypeError, match=r"^Wrapper takes its arguments by keyword"):
        Wrapper(*given)


def test_only_what_can_be_called_is_decorated() -> None:
    """The error stands where the mistake is, and not at the first call."""
    with pytest.raises(TypeError, match="decorates a function, and not 3"):
        Wrapper()(3)  # type: ignore[call-overload]


async def _waits() -> None:
    """Its body runs where the caller awaits it."""


def _yields() -> Iterator[int]:
    yield 1


async def _yields_later() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "what"),
    [(_waits, "an async function"), (_yields, "a generator"), (_yields_later, "a generator")],
)
def test_a_function_whose_body_runs_after_its_call_is_refused(
    function: Callable[..., object], what: str
) -> None:
    """Nothing would restart it, and nothing would say so."""
    with pytest.raises(TypeError, match=f"is {what}"):
        Wrapper()(function)
    assert Wrapper(enabled=False)(function) is function


# ---------------------------------------------------------------- attributes
def test_what_is_assigned_counts_at_the_next_call() -> None:
    """The call takes a copy: a later assignment does not change a limit half-way."""
    wrapper = Wrapper()
    wrapper.soft_timeout, wrapper.hard_timeout = seconds(300), seconds(400)
    wrapper.barrier_timeout = seconds(500)
    taken = wrapper.checked_arguments()
    wrapper.soft_timeout = seconds(50)

    assert (taken.soft_timeout, taken.hard_timeout) == (seconds(300), seconds(400))
    assert not taken.waits_for_last_call
    wrapper.last_call_wait = seconds(1)
    assert wrapper.checked_arguments().waits_for_last_call


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("soft_timeout", 60, TypeError, "soft_timeout should be"),
        ("abort", print, TypeError, "abort should be"),
        ("soft_timeout", seconds(100), ValueError, "soft_timeout < hard_timeout does not hold"),
    ],
)
def test_what_was_assigned_is_checked_when_the_function_is_called(name, value, error, text) -> None:
    """As if it had been given to the constructor; the function is not called."""
    wrapper = Wrapper()
    decorated = wrapper(lambda: pytest.fail("called"))
    setattr(wrapper, name, value)
    with pytest.raises(error, match=f"^{text}"):
        decorated()


def test_a_wrapper_that_is_switched_off_later_calls_the_function_as_it_is() -> None:
    """``enabled`` is an attribute like the others."""
    wrapper = Wrapper()
    decorated = wrapper(lambda steps: steps + 1)
    wrapper.enabled = False
    assert decorated(1) == 2


def test_the_check_after_a_fault_follows_the_health_check(monkeypatch) -> None:
    """Until it is assigned itself."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    wrapper, own = Wrapper(), FaultCounter()
    wrapper.health_check = own
    checks: Any = wrapper.restart_health_check
    assert own in checks.instances
    wrapper.restart_health_check = None
    assert wrapper.restart_health_check is None


def test_programs_can_read_the_types_of_all_arguments() -> None:
    """As libraries do that make objects from configuration files."""
    assert typing.get_type_hints(Wrapper.__init__).keys() == {*NAMES, "return"}
