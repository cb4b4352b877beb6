"""The Wrapper as an object: arguments, checks, what is injected; no restart yet."""

from __future__ import annotations

import datetime as dt
import inspect
import os
import threading
from typing import Any, Optional, Union

import pytest
import torch.distributed as dist

from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.inprocess import CallWrapper, Compose, Wrapper
from tests.processes import descriptors
from tests.promises.conftest import Alone
from tests.promises.rows import promise, promises

S = dt.timedelta(seconds=1)

# ---------------------------------------------------------------- what the package exposes
MODULES = (
    "abort attribution compose completion exception finalize health_check initialize "
    "monitor_thread nested_restarter progress_watchdog rank_assignment rank_filter state store "
    "terminate wrap"
)


@promises("inprocess 1", "name", {f"`inprocess.{each}` is there": each for each in MODULES.split()})
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of rank_filter, an old place
def test_modules_are_attributes(name: str) -> None:
    assert inspect.ismodule(getattr(inprocess, name))


# ---------------------------------------------------------------- the constructor
@promise("inprocess 2", "The constructor takes keywords only")
def test_keywords_only() -> None:
    kinds = {each.kind for each in inspect.signature(Wrapper).parameters.values()}
    assert kinds <= {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}


@promise("inprocess 2", "`enabled=False` returns the function itself")
def test_disabled() -> None:
    assert Wrapper(enabled=False)(test_keywords_only) is test_keywords_only


WRONG_TYPES: dict[str, Any] = {
    "store_factory": dict,
    "store_kwargs": [],
    **dict.fromkeys(
        [
            "initialize",
            "abort",
            "finalize",
            "health_check",
            "rank_assignment",
            "rank_filter",
            "completion",
            "terminate",
        ],
        print,
    ),
    **dict.fromkeys(
        [
            "monitor_thread_interval",
            "monitor_process_interval",
            "heartbeat_interval",
            "progress_watchdog_interval",
            "soft_timeout",
            "hard_timeout",
            "heartbeat_timeout",
            "barrier_timeout",
            "completion_timeout",
            "last_call_wait",
            "termination_grace_time",
        ],
        1.0,
    ),
    **dict.fromkeys(["monitor_process_logfile", "monitor_process_pidfile"], b"/a"),
    "enabled": "yes",
}


@promises(
    "inprocess 2",
    "name",
    {f"A wrong type of `{name}` is a TypeError that names it": name for name in WRONG_TYPES},
)
def test_wrong_types(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        Wrapper(**{name: WRONG_TYPES[name]})


WRONG_VALUES: dict[str, tuple[str, dict[str, Any]]] = {
    "`soft < hard`": ("soft_timeout < hard_timeout", {"soft_timeout": 90 * S}),
    "`hard < barrier`": ("hard_timeout < barrier_timeout", {"hard_timeout": 120 * S}),
    "`heartbeat_timeout < barrier`": (
        "heartbeat_timeout < barrier_timeout",
        {"heartbeat_timeout": 120 * S},
    ),
    "`heartbeat_interval < heartbeat_timeout`": (
        "heartbeat_interval < heartbeat_timeout",
        {"heartbeat_interval": 30 * S},
    ),
    "`progress_watchdog_interval < soft`": (
        "progress_watchdog_interval < soft_timeout",
        {"progress_watchdog_interval": 60 * S},
    ),
    "the logfile's path is absolute": ("isabs", {"monitor_process_logfile": "log"}),
    "the pidfile's path is absolute": ("isabs", {"monitor_process_pidfile": "pid"}),
}


@promises(
    "inprocess 2",
    "condition, arguments",
    {f"{rule}, or a ValueError with the condition": row for rule, row in WRONG_VALUES.items()},
)
def test_wrong_values(condition: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=condition):
        Wrapper(**arguments)


@promise("inprocess 2", "All checks run even when `enabled=False`")
def test_disabled_is_checked() -> None:
    with pytest.raises(TypeError, match="abort"):
        Wrapper(enabled=False, abort=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="soft_timeout < hard_timeout"):
        Wrapper(enabled=False, soft_timeout=91 * S)


@promises(
    "inprocess 2",
    "arguments",
    {
        "What the first generation accepts is accepted: `heartbeat_timeout` of 1 s": {
            "heartbeat_timeout": S,
            "monitor_process_interval": 0.5 * S,
        },
        "What the first generation accepts is accepted: `monitor_process_interval > soft`": {
            "monitor_process_interval": 25 * S,
            "soft_timeout": 20 * S,
        },
    },
)
def test_accepted_values(arguments: dict[str, Any]) -> None:
    Wrapper(**arguments)


@promise("inprocess 2", "`rank_assignment=None` passes by its type (first generation)")
def test_no_assignment() -> None:
    assert Wrapper(rank_assignment=None).rank_assignment is None


@promise("inprocess 2", "Arguments are kept as attributes of the same names")
def test_attributes() -> None:
    given: dict[str, Any] = {
        "soft_timeout": 5 * S,
        "initialize": inprocess.initialize.RetryController(max_iterations=3),
        "rank_filter": inprocess.rank_filter.WorldSizeDivisibleBy(2),
        "monitor_process_logfile": "/a/{rank}",
    }
    wrapper = Wrapper(**given)
    assert {name: getattr(wrapper, name) for name in given} == given
    assert wrapper.store_kwargs == {}


@promise("inprocess 2", "An attribute that is assigned counts at the call, or is refused")
def test_attributes_that_are_assigned(alone: Alone) -> None:
    seen: list[str] = []

    class Noting(inprocess.initialize.Initialize):
        def __call__(self, state: Any) -> Any:
            seen.append("new")
            return state

    wrapper = Wrapper()
    try:
        wrapper.initialize = Noting()
    except (AttributeError, TypeError):
        return
    wrapper(lambda: None)()
    assert seen == ["new"]


@promise(
    "inprocess 2", "Each call makes a CallWrapper of its own; plug-ins are shared by all calls"
)
def test_calls_are_independent(alone: Alone) -> None:
    calls: list[Any] = []
    initialized: list[int] = []

    class Counting(inprocess.initialize.Initialize):
        def __call__(self, state: Any) -> Any:
            initialized.append(state.iteration)
            return state

    def function(call: CallWrapper) -> int:
        calls.append(call)
        if call.iteration == 0:
            raise ValueError
        return len(calls)

    wrapped = alone.wrapped(function, initialize=Counting())
    assert [wrapped(), wrapped()] == [2, 4]
    assert calls[0] is calls[1] is not calls[2] is calls[3]
    assert initialized == [0, 1, 0, 1]


@promise("inprocess 2", "The call returns what the function returned in the successful iteration")
def test_result(alone: Alone) -> None:
    def function(first: int, call: CallWrapper, *, second: int) -> tuple[int, int, int]:
        if call.iteration < 2:
            raise ValueError
        return first, second, call.iteration

    wrapped = alone.wrapped(function)
    assert wrapped(7, second=8) == (7, 8, 2)


# ---------------------------------------------------------------- what is injected
def with_class(it: CallWrapper) -> Any:
    return it


def with_optional(it: Optional[CallWrapper] = None) -> Any:  # noqa: UP045 - as programs write it
    return it


def with_union(it: Union[int, CallWrapper, None] = 3) -> Any:  # noqa: UP007
    return it


def with_bar(it: CallWrapper | None = None) -> Any:
    return it


@promises(
    "inprocess 3",
    "function",
    {
        "A parameter annotated `CallWrapper` gets the call": with_class,
        "`Optional[CallWrapper]`, too": with_optional,
        "A Union that contains it, too": with_union,
        "`CallWrapper | None`, too": with_bar,
    },
)
def test_injected(alone: Alone, function: Any) -> None:
    assert isinstance(alone(function), CallWrapper)


@promise(
    "inprocess 3", "Every such parameter gets it; what was passed, or is a default, is overwritten"
)
def test_all_are_injected(alone: Alone) -> None:
    def function(a: int, b: CallWrapper, *, c: Optional[CallWrapper] = None, d: int = 4) -> Any:  # noqa: UP045
        return a, b, c, d

    a, b, c, d = alone(function, 1, "passed")
    assert (a, d) == (1, 4)
    assert isinstance(b, CallWrapper)
    assert b is c


NAMES = ["call_wrapper", "inprocess_call_wrapper", "nvrx_call_wrapper", "holdfast_call_wrapper"]


@promises(
    "inprocess 3",
    "name",
    {f"Only annotations count: `{name}` keeps what is passed": name for name in NAMES},
)
def test_names_do_not_count(alone: Alone, name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def function({name}=None): return {name}", space)
    assert alone(space["function"], "passed") == "passed"


@promise("inprocess 3", "A parameter without annotation keeps its default")
def test_defaults_stay(alone: Alone) -> None:
    assert alone(lambda a, b=2: (a, b), 1) == (1, 2)


# ---------------------------------------------------------------- setting up and clean-up
@promise("inprocess 3", "torch.distributed must not be initialised when the call begins")
def test_no_group_before(alone: Alone) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match=r"not torch\.distributed\.is_initialized\(\)"):
            alone(lambda: None)
    finally:
        dist.destroy_process_group()


class Refuses(inprocess.store.StoreMixin, dist.HashStore):
    def __init__(self) -> None:
        raise ConnectionRefusedError("nobody there")


@promise("inprocess 3", "What fails in setting up is raised unchanged, and helpers are torn down")
def test_failing_set_up(alone: Alone) -> None:
    alone(lambda: None)  # what a process makes once is there
    before = threading.active_count(), len(descriptors(os.getpid()))
    with pytest.raises(ConnectionRefusedError, match="nobody there"):
        alone(lambda: None, store_factory=Refuses)
    assert (threading.active_count(), len(descriptors(os.getpid()))) == before
    assert alone(lambda: "again") == "again"


@promise("inprocess 6", "After the call `RANK` and `WORLD_SIZE` keep their last values")
def test_environment_stays(alone: Alone) -> None:
    alone(lambda: None)
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("0", "1")


@promise("inprocess 4", "`RANK` defaults to 0 and `WORLD_SIZE` to 1")
def test_environment_defaults(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("MASTER_ADDR")
    monkeypatch.delenv("MASTER_PORT")
    assert alone(lambda: (os.environ["RANK"], os.environ["WORLD_SIZE"])) == ("0", "1")


@promise("inprocess 7", "A Compose passes the type checks of what it composes")
def test_composed_arguments() -> None:
    ip = inprocess
    Wrapper(
        initialize=Compose(ip.initialize.RetryController(), ip.initialize.RetryController()),
        abort=Compose(ip.abort.AbortTransformerEngine(), ip.abort.AbortTorchDistributed()),
        health_check=Compose(ip.health_check.CudaHealthCheck(), ip.health_check.FaultCounter()),
    )
    with pytest.raises(TypeError, match="abort"):
        Wrapper(abort=Compose(ip.initialize.RetryController()))  # type: ignore[arg-type]
