"""A program as users write it: type checkers read it beside an installed holdfast.

``make check`` holds it to mypy --strict, ``make release-check`` to mypy and pyright with the
package from the wheel. Nothing runs it. ``assert_type`` says what a name must be to its user; a
name that is ``Any`` or ``object`` for them is a defect.
"""

import datetime as dt
import functools
from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import assert_type

import holdfast
import holdfast.fault_tolerance as ft
from holdfast import inprocess
from holdfast.fault_tolerance import (
    FaultToleranceConfig,
    InvalidStateTransitionException,
    RankMonitorClient,
    RankMonitorClientError,
    RankMonitorState,
    RankMonitorStateMachine,
    WorkloadAction,
    WorkloadControlRequest,
)
from holdfast.fault_tolerance.launcher import LaunchConfig, elastic_launch
from holdfast.inprocess import CallWrapper, Compose, FrozenState, Mode, State, Wrapper
from holdfast.inprocess.health_check import HealthCheck
from holdfast.inprocess.rank_assignment import ActivateAllRanks, MaxActiveWorldSize, ShiftRanks

assert_type(holdfast.__version__, str)

NOT_THERE = (
    ft.RankMonitorClinet,  # type: ignore[attr-defined]
    inprocess.Wraper,  # type: ignore[attr-defined]
)
"""A misspelled name is an error, not an ``object``; unused ignores are errors, too."""


def with_sections(batches: list[torch.Tensor]) -> None:
    client = ft.client()
    assert_type(client, RankMonitorClient)
    step = client.section("step")
    for _ in batches:
        with step:
            client.send_heartbeat()
    client.start_section("checkpointing")
    client.end_section("checkpointing")
    client.end_all_sections()
    assert_type(client.is_initialized, bool)
    assert_type(client.calculate_and_set_section_timeouts(selected_sections=["step"]), bool)
    assert_type(client.calculate_and_set_hb_timeouts(), bool)
    state = client.state_dict()
    assert_type(state, dict[str, Any])
    client.load_state_dict(state)
    request = WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "broken")
    client.send_workload_control_request(request)
    client.shutdown_workload_monitoring()


def as_the_original() -> str:
    client = RankMonitorClient()
    try:
        client.init_workload_monitoring(num_warmup_iters=3)
    except RankMonitorClientError as error:
        return str(error)
    return ""


def configured() -> FaultToleranceConfig:
    config = FaultToleranceConfig(rank_heartbeat_timeout=300.0, rank_section_timeouts={"step": 60})
    assert_type(config.rank_heartbeat_timeout, float | None)
    return config


def state_of(machine: RankMonitorStateMachine) -> RankMonitorState | None:
    try:
        return machine.state
    except InvalidStateTransitionException:
        return None


def squared(number: int) -> int:
    return number * number


def launched() -> dict[int, Any]:
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=3, fault_tol_cfg=configured()
    )
    return elastic_launch(config, squared)(3)


@Wrapper(
    soft_timeout=dt.timedelta(seconds=60),
    abort=inprocess.abort.AbortTorchDistributed(),
    initialize=inprocess.initialize.RetryController(max_iterations=3),
    rank_assignment=Compose(MaxActiveWorldSize(2), ActivateAllRanks(), ShiftRanks()),
)
def train(steps: int, call: CallWrapper | None = None) -> int:
    if call is not None:
        call.ping()
        with call.atomic():
            assert_type(call.iteration, int)
    return steps


@Wrapper()
def with_call_first(call: CallWrapper, steps: int, *, rate: float = 0.1) -> str:
    return str(call.iteration * steps * rate)


@Wrapper()
def with_optional_call_first(call: CallWrapper | None = None, steps: int = 1) -> int:
    return steps if call is None else 0


@Wrapper()
def with_object_first(what: object, steps: int) -> int:
    return steps if what else 0


@Wrapper()
def with_any(*args: Any, **kwargs: Any) -> int:
    return len(args) + len(kwargs)


class Trainer:
    def train(self, call: CallWrapper, steps: int) -> int:
        return steps + call.iteration

    def in_place(self) -> int:
        return Wrapper()(self.train)(3)


class ShortWrapper(Wrapper):
    """A program's own, with parameters of its own."""

    def __init__(self, seconds: float, **others: Any) -> None:
        super().__init__(soft_timeout=dt.timedelta(seconds=seconds), **others)


@ShortWrapper(30, hard_timeout=dt.timedelta(seconds=60))
def short(call: CallWrapper, steps: int) -> int:
    return steps + call.iteration


prepared = functools.partial(Wrapper, soft_timeout=dt.timedelta(seconds=30))


@prepared()
def with_prepared(steps: int) -> int:
    return steps


@Wrapper  # type: ignore[arg-type, call-arg]  # mypy, not pyright, has __init__ decide for __new__
def bare(steps: int) -> int:
    return steps


def decorated() -> None:
    assert_type(with_call_first(3, rate=0.2), str)
    assert_type(with_optional_call_first(steps=3), int)
    assert_type(with_object_first("it", 3), int)
    assert_type(with_any(1, two=2), int)
    assert_type(short(3), int)
    assert_type(with_prepared(3), int)
    assert_type(Wrapper()(fn=squared)(3), int)
    as_text: Callable[[int], str] = with_call_first
    as_text(3)
    train("3")  # type: ignore[arg-type]
    train(3, stesp=3)  # type: ignore[call-arg]
    with_call_first("3")  # type: ignore[arg-type]
    with_call_first()  # type: ignore[call-arg]


def arguments() -> None:
    """A wrong name, and a wrong type, at the call and as an attribute."""
    wrapper = Wrapper(store_kwargs={"port": 29501}, abort=None, max_start_faults=None)
    assert_type(wrapper.soft_timeout, dt.timedelta)
    wrapper.soft_timeout = dt.timedelta(seconds=30)
    wrapper.soft_timeout = 30  # type: ignore[assignment]
    wrapper.sofft_timeout = dt.timedelta(seconds=30)  # type: ignore[attr-defined]
    Wrapper(soft_timeout=60)  # type: ignore[arg-type]
    Wrapper(sofft_timeout=dt.timedelta(seconds=30))  # type: ignore[call-arg]
    Wrapper(health_check=inprocess.abort.AbortTorchDistributed())  # type: ignore[arg-type]
    Wrapper(store_factory=dict)  # type: ignore[arg-type]


class Temperature(HealthCheck):
    def __call__(self, state: FrozenState) -> FrozenState:
        return state


def spare(state: State) -> bool:
    return state.mode == Mode.INACTIVE


if __name__ == "__main__":
    assert_type(train(3), int)
