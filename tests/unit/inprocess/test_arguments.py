"""Every argument of the Wrapper is checked, by type and by value."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import pytest

from holdfast.inprocess import Compose, Wrapper
from holdfast.inprocess.abort import AbortTorchDistributed, AbortTransformerEngine
from holdfast.inprocess.arguments import WrapperArguments
from holdfast.inprocess.finalize import ThreadedFinalize
from holdfast.inprocess.health_check import CudaHealthCheck, FaultCounter
from holdfast.inprocess.initialize import RetryController
from holdfast.inprocess.nested_restarter import NestedRestarterAborted, NestedRestarterFinalized
from holdfast.inprocess.rank_assignment import MaxActiveWorldSize, ShiftRanks


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
