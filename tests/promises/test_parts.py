"""The parts by themselves: Compose, plug-ins, states, assignments, stores; no Wrapper."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.inprocess import Compose, FrozenState, Mode, State
from nvidia_resiliency_ext.inprocess import rank_assignment as ra
from nvidia_resiliency_ext.inprocess.abort import (
    Abort,
    AbortTorchDistributed,
    AbortTransformerEngine,
)
from nvidia_resiliency_ext.inprocess.attribution import Interruption, InterruptionRecord
from nvidia_resiliency_ext.inprocess.exception import (
    HealthCheckError,
    InternalError,
    RestartAbort,
    RestartError,
)
from nvidia_resiliency_ext.inprocess.exception import TimeoutError as RestartTimeoutError
from nvidia_resiliency_ext.inprocess.finalize import Finalize, ThreadedFinalize
from nvidia_resiliency_ext.inprocess.health_check import (
    ChainedGPUHealthCheck,
    ChainedNicHealthCheck,
    ChainedNVLHealthCheck,
    CudaHealthCheck,
    FaultCounter,
    HealthCheck,
)
from nvidia_resiliency_ext.inprocess.initialize import RetryController
from nvidia_resiliency_ext.inprocess.nested_restarter import (
    NestedRestarterAborted,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
    NestedRestarterHandlingStarting,
)
from nvidia_resiliency_ext.inprocess.state import Status
from nvidia_resiliency_ext.inprocess.store import (
    BarrierError,
    BarrierOverflow,
    BarrierTimeout,
    PrefixStore,
    StoreMixin,
    TCPStore,
)
from tests.promises.rows import promise, promises
from tests.unit.inprocess.job import Job

NOW = dt.timedelta(0)
SOON = dt.timedelta(seconds=0.05)
LATE = dt.timedelta(seconds=60)


def frozen(rank: int = 0, world_size: int = 4, **more: Any) -> FrozenState:
    return State(rank, world_size, **more).freeze()


# ---------------------------------------------------------------- Compose
@promise("inprocess 7", "`Compose(a, b, c)(x)` is `a(b(c(x)))`")
def test_last_first() -> None:
    assert Compose(lambda x: f"a{x}", lambda x: f"b{x}", lambda x: f"c{x}")("x") == "abcx"


@promise("inprocess 7", "A tuple is spread over the parameters of the next one")
def test_tuples() -> None:
    assert Compose(lambda a, b: a + b, lambda x: (x, 2 * x))(3) == 9


@promise("inprocess 7", "What takes no parameters is called without any")
def test_no_parameters() -> None:
    assert Compose(lambda: 7, lambda x: x)(3) == 7


@promise(
    "inprocess 7", "It is an instance of what all its instances share, and of nothing narrower"
)
def test_common_base() -> None:
    composed = Compose(CudaHealthCheck(), FaultCounter())
    assert isinstance(composed, HealthCheck)
    assert not isinstance(composed, (CudaHealthCheck, FaultCounter))
    mixed = Compose(CudaHealthCheck(), RetryController())
    assert not isinstance(mixed, HealthCheck)


@promise("inprocess 7", "`instances` are those given, in order")
def test_instances() -> None:
    given = (CudaHealthCheck(), FaultCounter())
    assert tuple(Compose(*given).instances) == given


@promise(
    "inprocess 7", "One that returned None for its arguments: a UserWarning, and the chain goes on"
)
def test_forgotten_return() -> None:
    called: list[Any] = []
    with pytest.warns(UserWarning, match="None"):
        Compose(called.append, lambda _: None)(3)
    assert called == [None]


@promise("inprocess 7", "None for None is no warning")
def test_none_for_none() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Compose(lambda _: None)(None) is None


# ---------------------------------------------------------------- plug-ins that come along
@promises(
    "inprocess 8",
    "limits, state, leaves",
    {
        "RetryController() never ends a call": ({}, frozen(iteration=999), False),
        "RetryController leaves when `iteration >= max_iterations`": (
            {"max_iterations": 3},
            frozen(iteration=3),
            True,
        ),
        "... and not before": ({"max_iterations": 3}, frozen(iteration=2), False),
        "RetryController leaves when `world_size < min_world_size`": (
            {"min_world_size": 5},
            frozen(),
            True,
        ),
        "RetryController leaves when `active_world_size < min_active_world_size`": (
            {"min_active_world_size": 4},
            frozen(active_world_size=3),
            True,
        ),
    },
)
def test_retry_controller(limits: dict[str, int], state: FrozenState, leaves: bool) -> None:
    controller = RetryController(**limits)
    if not leaves:
        assert controller(state) is state
        return
    with pytest.raises(RestartAbort, match=f"iteration={state.iteration}"):
        controller(state)


@promise(
    "inprocess 8", "`AbortTorchDistributed` and `AbortTransformerEngine` accept a state of None"
)
def test_aborts_without_state() -> None:
    assert AbortTorchDistributed()(None) is None
    assert AbortTransformerEngine()(None) is None


@promise(
    "inprocess 8",
    "ThreadedFinalize runs `fn(*args, **kwargs)` in a daemon thread, and waits for it",
)
def test_threaded_finalize() -> None:
    seen: list[Any] = []

    def function(*args: int, **kwargs: int) -> None:
        seen.append((args, kwargs, threading.current_thread().daemon))

    state = frozen()
    finalize = ThreadedFinalize(timeout=LATE, fn=function, args=(1,), kwargs={"b": 2})
    assert isinstance(finalize, Finalize)
    assert finalize(state) is state
    assert seen == [((1,), {"b": 2}, True)]


@promise(
    "inprocess 8", "ThreadedFinalize raises `exception.TimeoutError` if fn is not done in time"
)
def test_threaded_finalize_is_late() -> None:
    with pytest.raises(RestartTimeoutError):
        ThreadedFinalize(timeout=SOON, fn=threading.Event().wait, args=(5,))(frozen())


@promise("inprocess 8", "ThreadedFinalize does not need CUDA (first generation)")
def test_threaded_finalize_without_cuda() -> None:
    ThreadedFinalize(LATE, list)(frozen())


@promise(
    "inprocess 8", "CudaHealthCheck passes where CUDA is not initialised, also for a state of None"
)
def test_cuda_health_check() -> None:
    state = frozen()
    assert CudaHealthCheck()(state) is state
    assert CudaHealthCheck(timeout=LATE)(None) is None


@promises(
    "inprocess 0",
    "check",
    {
        f"{type(check).__name__} is called in the manner of either generation": check
        for check in (
            CudaHealthCheck(),
            FaultCounter(),
            ChainedGPUHealthCheck(),
            ChainedNVLHealthCheck(),
            ChainedNicHealthCheck(),
            ThreadedFinalize(LATE, list),
        )
    },
)
def test_either_manner(check: Any) -> None:
    state, error = frozen(), ValueError()
    assert check(state) is state
    assert check(state, error) == (state, error)


@promise(
    "inprocess 8",
    "FaultCounter counts faults of this rank only, and raises above `max_rank_faults`",
)
def test_fault_counter() -> None:
    counter = FaultCounter(max_rank_faults=1)
    for _ in range(3):
        counter(frozen())
    counter(frozen(fn_exception=ValueError()))
    with pytest.raises(inprocess.health_check.FaultCounterExceeded):
        counter(frozen(fn_exception=ValueError()))


@promise(
    "inprocess 8", "With `LOCAL_RANK`, restarts check NIC, NVLink, GPU, then what the user gave"
)
def test_restart_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    first, second = FaultCounter(), CudaHealthCheck()
    check = inprocess.Wrapper(health_check=Compose(first, second)).restart_health_check
    order = list(reversed(check.instances))
    kinds = [ChainedNicHealthCheck, ChainedNVLHealthCheck, ChainedGPUHealthCheck]
    assert [type(each) for each in order[:3]] == kinds
    assert order[3:] == [second, first]
    assert {each.device_index for each in order[:3]} == {3}


@promise("inprocess 8", "Without `LOCAL_RANK`, restarts check what the user gave, or nothing")
def test_restart_chain_without_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    mine = FaultCounter()
    assert inprocess.Wrapper(health_check=mine).restart_health_check is mine
    assert inprocess.Wrapper().restart_health_check is None


@promise("inprocess 8", "The nested restarter's plug-ins print their lines, on one rank")
def test_nested_restarter(capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        NestedRestarterHandlingCompleted()(frozen(rank))
        NestedRestarterHandlingStarting()(frozen(rank))
        NestedRestarterHandlingCompleted()(frozen(rank, iteration=1))
        NestedRestarterFinalized()(frozen(rank))
        NestedRestarterAborted()(frozen(rank))
    assert capsys.readouterr().out.splitlines() == [
        f"[NestedRestarter] name=[InProcess] state={state}"
        for state in (
            "initialize",
            "handling stage=starting",
            "handling stage=completed",
            "finalized",
            "aborted",
        )
    ]


FAMILIES = [
    "initialize",
    "abort",
    "finalize",
    "health_check",
    "completion",
    "terminate",
    "rank_assignment",
]


@promises(
    "inprocess 8", "name", {f"The base of `{each}` needs a `__call__`": each for each in FAMILIES}
)
def test_abstract_bases(name: str) -> None:
    base = getattr(getattr(inprocess, name), "".join(part.title() for part in name.split("_")))
    with pytest.raises(TypeError, match="__call__"):
        base()
    type("Mine", (base,), {"__call__": lambda self, state: state})()


# ---------------------------------------------------------------- states
@promise("inprocess 9", "A State without arguments reads the environment")
def test_state_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    for state in (State(), State.from_env()):
        assert (state.rank, state.world_size) == (3, 8)
        assert (state.initial_rank, state.initial_world_size) == (3, 8)


@promise(
    "inprocess 9", "A State by numbers: initial numbers default to them; INITIALIZED, iteration 0"
)
def test_state_by_numbers() -> None:
    state = State(1, 4)
    assert (state.initial_rank, state.initial_world_size) == (1, 4)
    assert (state.active_rank, state.active_world_size) == (None, None)
    assert (state.iteration, state.mode, state.fn_exception) == (0, Mode.INITIALIZED, None)
    assert State(1, 4, 0, 2).active_world_size == 2


@promise(
    "inprocess 9", "`status` and `mode` are one; `Status` has the names of the first generation"
)
def test_status() -> None:
    state = State(0, 1)
    state.status = Status.ACTIVE
    assert state.mode is Mode.ACTIVE
    names = ["INITIALIZED", "ACTIVE", "INACTIVE", "ABORTING", "ABORTED"]
    assert {Status[name] for name in names} <= set(Status)
    assert Mode.TERMINATED in set(Mode)


@promise("inprocess 9", "`freeze()` gives a picture; assigning to it is a FrozenInstanceError")
def test_freeze() -> None:
    state = State(0, 2)
    picture = state.freeze()
    state.rank = 1
    assert picture.rank == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        picture.rank = 1  # type: ignore[misc]


@promise("inprocess 9", "`advance()` counts the iteration, and forgets the exception")
def test_advance() -> None:
    state = State(0, 2, fn_exception=ValueError())
    state.advance()
    assert (state.iteration, state.fn_exception) == (1, None)


@promise("inprocess 9", "`copy_from(other, fields)` takes these fields")
def test_copy_from() -> None:
    state = State(0, 2)
    state.copy_from(State(1, 3, iteration=7), fields=["world_size"])
    assert (state.rank, state.world_size, state.iteration) == (0, 3, 0)


@promise(
    "inprocess 9", "`set_distributed_vars()` exports the active rank and the active world size"
)
def test_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("WORLD_SIZE", "9")
    State(5, 8, 2, 4).set_distributed_vars()
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("2", "4")


@promise("inprocess 12", "On an inactive rank `RANK` is a number, never the text None")
def test_exports_of_a_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("WORLD_SIZE", "9")
    State(5, 8, None, 4, mode=Mode.INACTIVE).set_distributed_vars()
    assert os.environ["RANK"] == "5"


# ---------------------------------------------------------------- who is called what


@promises(
    "inprocess 10",
    "assignment, world, lost, ranks",
    {
        "ShiftRanks: a rank moves down by the number of lost ones before it": (
            ra.ShiftRanks,
            8,
            (1, 4),
            [0, None, 1, 2, None, 3, 4, 5],
        ),
        "FillGaps: the first keep their numbers, the last take those of the lost": (
            ra.FillGaps,
            4,
            (1,),
            [0, None, 2, 1],
        ),
        "FillGaps: rank r beyond the new world takes the (r - new world)-th lost number": (
            ra.FillGaps,
            8,
            (1, 2),
            [0, None, None, 3, 4, 5, 1, 2],
        ),
    },
)
def test_assignments(
    assignment: Callable[[], Any], world: int, lost: tuple[int, ...], ranks: list[int | None]
) -> None:
    assert Job(world, assignment).lose().lose(*lost).ranks == ranks


@promise("inprocess 10", "An assignment leaves no terminated rank: the set is empty after it")
def test_nothing_left() -> None:
    for assignment in (ra.ShiftRanks(), ra.FillGaps()):
        ctx = ra.RankAssignmentCtx(State(2, 4), None, {1})
        assert assignment(ctx).terminated_ranks == set()
        state, left = assignment(State(2, 4), {1})
        assert (state.world_size, left) == (3, set())


@promise("inprocess 10", "A rank that is among the terminated is discarded")
def test_discards_itself() -> None:
    for assignment in (ra.ShiftRanks(), ra.FillGaps()):
        with pytest.raises(ra.RankDiscarded):
            assignment(ra.RankAssignmentCtx(State(1, 4), None, {1}))
    assert issubclass(ra.RankDiscarded, RestartError)


@promise(
    "inprocess 10", "FilterCountGroupedByKey terminates groups whose count fails its condition"
)
def test_filter_by_key() -> None:
    def assignment() -> Any:
        return Compose(
            ra.ActivateAllRanks(),
            ra.ShiftRanks(),
            ra.FilterCountGroupedByKey(
                key_or_fn=lambda state: state.rank // 2, condition=lambda count: count == 2
            ),
        )

    job = Job(6, assignment).lose().lose(3)
    assert job.discarded == {2}
    assert job.ranks == [0, 1, None, None, 2, 3]


@promise(
    "inprocess 10",
    "FilterGroupedByKey (first generation): its key function gets `(rank, world_size)`",
)
def test_filter_by_key_of_the_first_generation() -> None:
    def assignment() -> Any:
        return Compose(
            ra.ShiftRanks(),
            ra.FilterGroupedByKey(lambda rank, world_size: rank // 2, lambda count: count == 2),
        )

    assert Job(4, assignment).lose().lose(3).ranks == [0, 1, None, None]


@promises(
    "inprocess 10",
    "filters, lost, active",
    {
        "MaxActiveWorldSize: ranks below are active, the rest have no active rank": (
            lambda: ra.MaxActiveWorldSize(2),
            (),
            [0, 1, None, None],
        ),
        "MaxActiveWorldSize: a spare takes the place of a lost rank": (
            lambda: ra.MaxActiveWorldSize(2),
            (0,),
            [None, 0, 1, None],
        ),
        "MaxActiveWorldSize without a number: all": (
            ra.MaxActiveWorldSize,
            (),
            [0, 1, 2, 3],
        ),
        "ActiveWorldSizeDivisibleBy rounds down": (
            lambda: ra.ActiveWorldSizeDivisibleBy(2),
            (0,),
            [None, 0, 1, None],
        ),
        "WorldSizeDivisibleBy is its name of the first generation": (
            lambda: ra.WorldSizeDivisibleBy(3),
            (),
            [0, 1, 2, None],
        ),
    },
)
def test_filters(filters: Callable[[], Any], lost: tuple[int, ...], active: list[Any]) -> None:
    job = Job(4, ra.ShiftRanks, filters).lose()
    if lost:
        job.lose(*lost)
    assert job.active == active


@promise(
    "inprocess 10", "Second generation: an active world that shrank does not grow again by itself"
)
def test_no_growing() -> None:
    def assignment() -> Any:
        return Compose(ra.ActiveWorldSizeDivisibleBy(2), ra.ShiftRanks())

    job = Job(5, assignment).lose()
    assert job.active == [0, 1, 2, 3, None]
    job.lose(0, 1)
    assert [each for each in job.active if each is not None] == [0, 1]


@promise("inprocess 10", "ActivateAllRanks: active numbers are the numbers")
def test_activate_all() -> None:
    ctx = ra.RankAssignmentCtx(State(2, 4), None, set())
    state = ra.ActivateAllRanks()(ctx).state
    assert (state.mode, state.active_rank, state.active_world_size) == (Mode.ACTIVE, 2, 4)


RESERVE, BACKFILL = ra.LayerFlag.RESERVE, ra.LayerFlag.BACKFILL


def tree(*flags: Any, **inner: Any) -> Callable[[], Any]:
    outer, group = flags
    return lambda: ra.Tree(
        layers=[
            ra.Layer(flag=outer),
            ra.Layer(key_or_fn=lambda state: state.rank // 4, flag=group, **inner),
        ]
    )


@promises(
    "inprocess 10",
    "assignment, losses, active",
    {
        "Tree, 8 ranks in groups of 4, rank 1 lost, both layers BACKFILL": (
            tree(BACKFILL, BACKFILL),
            [1],
            [0, None, 2, 3, 4, 5, 6, 1],
        ),
        "... only the inner layer BACKFILL": (
            tree(None, BACKFILL),
            [1],
            [0, None, 2, 1, 3, 4, 5, 6],
        ),
        "... no flag": (tree(None, None), [1], [0, None, 1, 2, 3, 4, 5, 6]),
        "... RESERVE in both, inner `max_ranks=3`": (
            tree(RESERVE, RESERVE, max_ranks=3),
            [1],
            [0, None, 2, 1, 3, 4, 5, None],
        ),
        "... and then rank 3 is lost": (
            tree(RESERVE, RESERVE, max_ranks=3),
            [1, 3],
            [0, None, 2, 1, None, 4, 5, 3],
        ),
        "Tree, `min_ranks=4` in the groups: a group that lost a rank is terminated": (
            tree(None, None, min_ranks=4),
            [1],
            [None, None, None, None, 0, 1, 2, 3],
        ),
    },
)
def test_trees(assignment: Callable[[], Any], losses: list[int], active: list[Any]) -> None:
    """The documents name lost ranks by their active number, which has an owner of its own."""
    job = Job(8, assignment).lose()
    for index in losses:
        job.lose(next(s.rank for s in job.states.values() if s.active_rank == index))
    assert job.active == active


@promise("inprocess 10", "Tree: `world_size_filter` may make the active world smaller, not larger")
def test_tree_filter() -> None:
    def assignment(size: Callable[[int], int]) -> Callable[[], Any]:
        return lambda: ra.Tree([ra.Layer()], world_size_filter=size)

    assert Job(4, assignment(lambda n: n - 1)).lose().active == [0, 1, 2, None]
    with pytest.raises(AssertionError):
        Job(4, assignment(lambda n: n + 1)).lose()


@promise("inprocess 10", "Tree: more than one key of the root is a RuntimeError")
def test_tree_roots() -> None:
    with pytest.raises(RuntimeError):
        Job(2, lambda: ra.Tree([ra.Layer(key_or_fn=lambda state: state.rank)])).lose()


@promise(
    "inprocess 10",
    "Tree: ranks of a group that are not neighbours are renumbered, with a UserWarning",
)
def test_tree_order() -> None:
    def assignment() -> Any:
        return ra.Tree([ra.Layer(), ra.Layer(key_or_fn=lambda state: state.rank % 2)])

    with pytest.warns(UserWarning, match="Tree"):
        job = Job(4, assignment).lose()
    assert job.ranks == [0, 2, 1, 3]


@promise("inprocess 10", "`Tree.layers` are those given")
def test_tree_layers() -> None:
    layers = [ra.Layer(min_ranks=1, max_ranks=2, key_or_fn="x", flag=RESERVE)]
    assert list(ra.Tree(layers=layers).layers) == layers


# ---------------------------------------------------------------- stores
class MixinLast(dist.HashStore, StoreMixin):
    """As a store of a program of either generation."""


class MixinFirst(StoreMixin, dist.HashStore):
    pass


@pytest.fixture(params=[MixinLast, MixinFirst], ids=["StoreMixin last", "StoreMixin first"])
def store(request: pytest.FixtureRequest) -> Any:
    return request.param()


@promise(
    "inprocess 11", "`critical_ranks` of a store are none by default, and rank 0 of a TCPStore"
)
def test_critical_ranks(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    assert tuple(store.critical_ranks) == ()
    hosted = TCPStore(host_name="127.0.0.1", port=0, world_size=1)
    assert tuple(hosted.critical_ranks) == (0,)


@promise("inprocess 11", "Interruption records: append-only, in order, and locked for all")
def test_records(store: Any) -> None:
    one = InterruptionRecord(1, Interruption.EXCEPTION)
    two = InterruptionRecord(2, Interruption.SOFT_TIMEOUT)
    store.record_interrupted([one])
    store.record_interrupted([two])
    store.lock_interruption_records()
    store.record_interrupted([InterruptionRecord(3, Interruption.TERMINATED)])
    assert store.get_interruption_records() == [one, two]


@promise("inprocess 11", "Terminated ranks, a completion flag, and a map of initial ranks")
def test_lists(store: Any) -> None:
    assert not store.is_any_rank_completed()
    store.record_completed()
    store.record_terminated_ranks([3])
    store.record_terminated_ranks([5, 3])
    store.set_initial_rank(0, 4)
    assert store.is_any_rank_completed()
    assert set(store.get_terminated_ranks()) == {3, 5}
    assert store.get_initial_rank(0) == 4


@promise("inprocess 11", "Heartbeats: sent by rank, read for all")
def test_heartbeats(store: Any) -> None:
    store.send_heartbeat(0)
    first, second = store.get_all_heartbeats(world_size=2)
    assert abs(first - time.time()) < 60
    assert not second


@promise(
    "inprocess 11",
    "A reentrant barrier: a rank may arrive again, and for others; zero: do not wait",
)
def test_barriers(store: Any) -> None:
    store.iteration_barrier([0], 3, NOW)
    store.iteration_barrier([0], 3, NOW)
    with pytest.raises(BarrierTimeout):
        store.iteration_barrier([0], 3, SOON)
    store.iteration_barrier([1, 2], 3, LATE)
    store.iteration_barrier([0], 3, LATE)


@promise("inprocess 11", "More arrivals than a barrier is for: BarrierOverflow")
def test_overflow(store: Any) -> None:
    with pytest.raises(BarrierOverflow):
        store.completion_barrier([0, 1, 2], 2, NOW)
    assert issubclass(BarrierOverflow, BarrierError)
    assert issubclass(BarrierTimeout, BarrierError)
    assert issubclass(BarrierError, RestartError)


@promise(
    "inprocess 11",
    "`PrefixStore(iteration, store)` is a room of its own; `base_store` is the other",
)
def test_prefix(store: Any) -> None:
    rooms = [PrefixStore(iteration, store) for iteration in (0, 1)]
    assert [room.add("key", 1) for room in rooms] == [1, 1]
    assert rooms[0].base_store is store


@promise("inprocess 11", "TCPStore: rank 0 hosts, and is a client where a store listens already")
def test_tcp_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    hosted = TCPStore(port=0, timeout=LATE)
    monkeypatch.setenv("MASTER_PORT", str(hosted.port))
    joined = TCPStore(timeout=LATE, wait_for_workers=False)
    hosted.set("key", "value")
    assert joined.get("key") == b"value"


# ---------------------------------------------------------------- what interrupted whom
KINDS = [
    "EXCEPTION",
    "BASE_EXCEPTION",
    "SOFT_TIMEOUT",
    "HARD_TIMEOUT",
    "TERMINATED",
    "UNRESPONSIVE",
]


@promises("inprocess 5", "name", {f"`Interruption.{name}` is a kind": name for name in KINDS})
def test_kinds(name: str) -> None:
    record = InterruptionRecord(rank=3, interruption=Interruption[name])
    assert InterruptionRecord.from_str(str(record)) == record


@promise("inprocess 5", "`InterruptionRecord` is frozen; a text that is none is a ValueError")
def test_records_are_frozen() -> None:
    record = InterruptionRecord(3, Interruption.EXCEPTION)
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.rank = 4  # type: ignore[misc]
    with pytest.raises(ValueError):
        InterruptionRecord.from_str("nothing of the kind")


# ---------------------------------------------------------------- exceptions
@promise(
    "inprocess 11",
    "HealthCheckError, InternalError and TimeoutError are RestartErrors, an Exception",
)
def test_exceptions() -> None:
    assert issubclass(RestartError, Exception)
    for kind in (HealthCheckError, InternalError, RestartTimeoutError):
        assert issubclass(kind, RestartError)


@promise("inprocess 11", "RestartAbort is a BaseException and no Exception")
def test_restart_abort() -> None:
    assert issubclass(RestartAbort, BaseException)
    assert not issubclass(RestartAbort, Exception)


# ---------------------------------------------------------------- helpers
PLACES = ("nvidia_resiliency_ext.shared_utils", "nvidia_resiliency_ext.inprocess.tools")


@promises(
    "inprocess 13",
    "place",
    {f"`inject_fault` is in `{each.rpartition('.')[2]}`": each for each in PLACES},
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the old place
def test_inject_fault(place: str) -> None:
    module = importlib.import_module(f"{place}.inject_fault")
    assert callable(module.dispatch_fault_injection)
    names = "GPU_ERROR GPU_SLEEP WORKLOAD_EXC ASYNC_EXC SIGNAL_EXC OS_ABORT LOCK_GIL SEGFAULT"
    for name in f"{names} SIGINT SIGKILL SIGTERM SIGSTOP".split():
        assert module.Fault[name]


@promise("inprocess 11", "`python -m ...shared_utils.wait_daemon` without the file: exit code 1")
def test_wait_daemon(tmp_path: Path) -> None:
    compat = Path(sys.modules["nvidia_resiliency_ext"].__file__ or "").parents[1]
    command = ("-m", "nvidia_resiliency_ext.shared_utils.wait_daemon", str(tmp_path / "none"))
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(compat)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1


def test_abort_is_a_base() -> None:
    assert issubclass(AbortTorchDistributed, Abort)
