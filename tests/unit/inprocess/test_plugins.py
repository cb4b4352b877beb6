"""The plug-ins that come along, without any GPU."""

from __future__ import annotations

import datetime as dt
import logging
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from holdfast.inplace.cuda import context_problem
from holdfast.inprocess import Compose
from holdfast.inprocess.abort import AbortPersistentCheckpointProcesses, AbortTransformerEngine
from holdfast.inprocess.exception import HealthCheckError, RestartAbort, RestartError
from holdfast.inprocess.exception import TimeoutError as RestartTimeoutError
from holdfast.inprocess.finalize import ThreadedFinalize
from holdfast.inprocess.health_check import (
    ChainedGPUHealthCheck,
    ChainedNicHealthCheck,
    ChainedNVLHealthCheck,
    CudaHealthCheck,
    FaultCounter,
    FaultCounterExceeded,
    restart_health_check,
)
from holdfast.inprocess.initialize import RetryController
from holdfast.inprocess.state import State
from nvidia_resiliency_ext.inprocess.nested_restarter import (
    NestedRestarterAborted,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
    NestedRestarterHandlingStarting,
)

ERROR = ValueError("what the function raised")
SOON = dt.timedelta(seconds=0.05)
LATE = dt.timedelta(seconds=30)


def frozen(**more: Any):
    return State(more.pop("rank", 0), more.pop("world_size", 4), **more).freeze()


# ------------------------------------------------------------------ initialize
@pytest.mark.parametrize(
    ("limits", "state", "text"),
    [
        ({}, frozen(), None),
        ({"max_iterations": 3}, frozen(iteration=2), None),
        ({"max_iterations": 3}, frozen(iteration=3), "called 3 times"),
        ({"max_iterations": 0}, frozen(), "called 0 times"),
        ({"min_world_size": 4}, frozen(), None),
        ({"min_world_size": 5}, frozen(), "world_size=4 is below min_world_size=5"),
        ({"min_active_world_size": 3}, frozen(active_world_size=3), None),
        ({"min_active_world_size": 3}, frozen(active_world_size=2), "active_world_size=2 is below"),
        ({"min_active_world_size": 3}, frozen(), None),
    ],
)
def test_retries_end_where_going_on_makes_no_sense(limits, state, text) -> None:
    """The message holds the iteration."""
    if text is None:
        assert RetryController(**limits)(state) is state
        return
    with pytest.raises(RestartAbort, match=text) as caught:
        RetryController(**limits)(state)
    assert f"iteration={state.iteration}" in str(caught.value)
    assert not isinstance(caught.value, Exception)


# ------------------------------------------------------------------ finalize
def test_a_finalizer_runs_in_a_daemon_thread_and_is_waited_for() -> None:
    """With its arguments; what came is given back."""
    seen: list[Any] = []

    def clean(*args, **kwargs):
        seen.append((args, kwargs, threading.current_thread().daemon))

    state = frozen()
    finalize = ThreadedFinalize(LATE, clean, (1, 2), {"a": 3})
    assert finalize(state) is state
    assert finalize(state, ERROR) == (state, ERROR)
    assert seen == [((1, 2), {"a": 3}, True)] * 2


def test_a_finalizer_that_does_not_end_is_named() -> None:
    """The restart does not wait for it."""
    release = threading.Event()
    try:
        with pytest.raises(RestartTimeoutError, match=r"finalize .*wait did not end .* of 0.05 s"):
            ThreadedFinalize(SOON, release.wait)(frozen())
    finally:
        release.set()
    assert issubclass(RestartTimeoutError, RestartError)


def test_what_a_finalizer_raises_is_raised() -> None:
    """It is not lost with its thread."""

    def fail():
        raise ERROR

    with pytest.raises(ValueError, match="what the function raised"):
        ThreadedFinalize(LATE, fail)(frozen())


def test_a_finalizer_is_checked_when_it_is_made() -> None:
    """Not when the fault is there."""
    with pytest.raises(TypeError, match="timeout should be"):
        ThreadedFinalize(3, print)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="fn should be"):
        ThreadedFinalize(LATE, 3)  # type: ignore[arg-type]


# ------------------------------------------------------------------ CUDA, as far as it is in use
class FakeCuda:
    """``torch.cuda`` of a machine that has some."""

    def __init__(self, initialised: bool = True) -> None:
        self.initialised = initialised
        self.calls: list[Any] = []
        self.answer = lambda: None
        self.captures = False

    def is_initialized(self):
        return self.initialised

    def current_device(self):
        return 5

    def device_count(self):
        return 8

    def set_device(self, device):
        self.calls.append(("set", device, threading.current_thread() is threading.main_thread()))

    def is_current_stream_capturing(self):
        return self.captures

    def current_stream(self):
        return SimpleNamespace(query=self.query)

    def query(self):
        self.calls.append("query")
        return self.answer()

    def synchronize(self, device):
        in_main = threading.current_thread() is threading.main_thread()
        self.calls.append(("synchronize", device, in_main))
        self.answer()


@pytest.fixture
def cuda(monkeypatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=fake))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return fake


def test_without_cuda_everything_passes(monkeypatch) -> None:
    """Nothing imports torch, or initialises a device."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    state = frozen()
    assert CudaHealthCheck()(state) is state
    assert CudaHealthCheck()(None) is None
    assert CudaHealthCheck()(state, ERROR) == (state, ERROR)
    assert "torch" not in sys.modules


def test_cuda_that_is_not_initialised_is_left_alone(cuda) -> None:
    """A check must not take memory on a device."""
    cuda.initialised = False
    CudaHealthCheck()(frozen())
    ThreadedFinalize(LATE, list)(frozen())
    assert cuda.calls == []


def test_the_device_answers_in_a_thread_first_and_then_here(cuda, monkeypatch) -> None:
    """The local rank's device where there is one, else the current one."""
    CudaHealthCheck()(frozen())
    assert cuda.calls == [("synchronize", 5, False), ("synchronize", 5, True)]
    for local_rank, expected in [("2", 2), ("8", 5), ("first", 5), ("", 5)]:
        cuda.calls.clear()
        monkeypatch.setenv("LOCAL_RANK", local_rank)
        CudaHealthCheck()(frozen())
        assert {device for _, device, _ in cuda.calls} == {expected}


def test_a_device_that_does_not_answer_is_named(cuda) -> None:
    """And not asked again here, where nobody could get away."""
    release = threading.Event()
    cuda.answer = release.wait
    try:
        with pytest.raises(RestartTimeoutError, match="CUDA device 5 did not end"):
            CudaHealthCheck(SOON)(frozen())
        assert ("synchronize", 5, True) not in cuda.calls
    finally:
        release.set()


def test_a_context_that_is_lost_is_told_from_an_error_that_is_over(cuda) -> None:
    """An error that stays is reported by each call; nothing is waited for."""
    assert context_problem() is None
    cuda.answer = lambda: False  # kernels still run
    assert context_problem() is None
    errors = [RuntimeError("CUDA error: out of memory\nmore")]

    def once() -> bool:
        if errors:
            raise errors.pop()
        return True

    cuda.answer = once
    assert context_problem() is None

    def always() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered\nCompile with ...")

    cuda.answer = always
    assert context_problem() == "CUDA error: device-side assert triggered"
    cuda.captures = True
    assert context_problem() is None
    cuda.initialised = False
    assert context_problem() is None
    assert all(call == "query" for call in cuda.calls)


def test_a_finalizers_thread_has_the_current_device(cuda) -> None:
    """A new thread would have device 0."""
    ThreadedFinalize(LATE, list)(frozen())
    assert cuda.calls == [("set", 5, False)]


# ------------------------------------------------------------------ faults
def test_only_own_faults_are_counted() -> None:
    """Those of others leave no exception here."""
    counter = FaultCounter(max_rank_faults=2)
    for _ in range(5):
        counter(frozen())
    counter(frozen(fn_exception=ERROR))
    counter(frozen(), ERROR)
    with pytest.raises(FaultCounterExceeded, match="rank 0 has failed 3 times, max_rank_faults=2"):
        counter(frozen(fn_exception=ERROR))
    unlimited = FaultCounter()
    for _ in range(100):
        unlimited(frozen(fn_exception=ERROR))


# ------------------------------------------------------------------ hardware
@pytest.fixture
def health(monkeypatch) -> Any:
    module: Any = ModuleType("holdfast.health")
    monkeypatch.setitem(sys.modules, "holdfast.health", module)
    return module


def test_what_cannot_be_determined_is_healthy(health) -> None:
    """No probe at all, or none with an answer."""
    state = frozen()
    for kind in (ChainedGPUHealthCheck, ChainedNVLHealthCheck, ChainedNicHealthCheck):
        assert kind(0)(state) is state
        assert kind()(state, ERROR) == (state, ERROR)
    health.gpu_problem = health.nvlink_problem = health.link_downed_counts = lambda _: None
    for kind in (ChainedGPUHealthCheck, ChainedNVLHealthCheck, ChainedNicHealthCheck):
        assert kind(0)(state) is state


def test_a_gpu_that_needs_recovery_is_not_fit(health) -> None:
    """The probe says what is needed."""
    health.gpu_problem = lambda device: f"GPU {device} needs a reset"
    with pytest.raises(HealthCheckError, match="GPU 3 needs a reset"):
        ChainedGPUHealthCheck(3)(frozen())


def test_nvlinks_are_told_of_and_never_fail(health, caplog) -> None:
    """The specification ignores the result."""
    health.nvlink_problem = lambda device: f"GPU {device} has lost a link"
    ChainedNVLHealthCheck(3)(frozen())
    assert "GPU 3 has lost a link" in caplog.text


def test_a_link_that_went_down_since_last_time_is_not_fit(health) -> None:
    """Not one that went down before, nor a card that is new."""
    counts = {"mlx5_0": 2, "mlx5_1": 0}
    health.link_downed_counts = lambda _: counts
    check = ChainedNicHealthCheck(0)
    check(frozen())
    counts = {"mlx5_0": 3, "mlx5_1": 0, "mlx5_2": 9}
    with pytest.raises(HealthCheckError, match=r"mlx5_0 \(2 times before, 3 now\)$"):
        check(frozen())
    check(frozen())


@pytest.mark.parametrize("local_rank", [None, "", "first"])
def test_without_a_local_rank_only_the_users_checks_are_made(local_rank) -> None:
    """None where there are none."""
    assert restart_health_check(None, local_rank) is None
    own = FaultCounter()
    assert restart_health_check(own, local_rank) is own


def test_with_a_local_rank_hardware_is_checked_before_the_users_checks() -> None:
    """Network card, NVLink, GPU, then the user's; the last in Compose is called first."""
    own, other = FaultCounter(), CudaHealthCheck()
    hardware = [ChainedGPUHealthCheck, ChainedNVLHealthCheck, ChainedNicHealthCheck]
    for given, users in [(None, []), (own, [own]), (Compose(own, other), [own, other])]:
        chain = restart_health_check(given, "3")
        assert isinstance(chain, Compose)
        assert list(chain.instances[: len(users)]) == users
        rest = chain.instances[len(users) :]
        assert [type(check) for check in rest] == hardware
        assert {check.device_index for check in rest} == {3}
        assert chain(frozen()) == frozen()


# ------------------------------------------------------------------ abort
def test_aborts_do_nothing_where_there_is_nothing(monkeypatch) -> None:
    """No state is needed."""
    monkeypatch.delitem(
        sys.modules, "torch.distributed.checkpoint._async_process_executor", raising=False
    )
    for abort in (AbortTransformerEngine(), AbortPersistentCheckpointProcesses()):
        state = frozen()
        assert abort(state) is state
        assert abort(None) is None


def test_transformer_engines_global_state_is_freed(monkeypatch) -> None:
    """Userbuffers where there are some, FP8 state in either of its homes."""
    called: list[str] = []
    base = SimpleNamespace(_ub_communicators={}, destroy_ub=lambda: called.append("buffers"))
    manager = SimpleNamespace(reset=lambda: called.append("fp8"))
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.module.base", base)
    fp8 = SimpleNamespace(FP8GlobalStateManager=manager)
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.fp8", fp8)
    AbortTransformerEngine()(frozen())
    assert called == ["buffers", "fp8"]


class FakeProcess:
    """A checkpoint process that hears SIGTERM, or does not."""

    pid = 4711

    def __init__(self, stubborn: bool) -> None:
        self.stubborn, self.alive = stubborn, True
        self.told: list[str] = []

    def is_alive(self):
        return self.alive

    def terminate(self):
        self.told.append("terminate")
        self.alive = self.stubborn

    def join(self, timeout_s):
        self.told.append("join")

    def kill(self):
        self.told.append("kill")
        self.alive = False


@pytest.mark.parametrize(
    ("stubborn", "told"), [(False, ["terminate", "join"]), (True, ["terminate", "join", "kill"])]
)
def test_the_checkpoint_process_is_ended_and_forgotten(stubborn, told, monkeypatch) -> None:
    """So that the next asynchronous save starts another."""
    process = FakeProcess(stubborn)
    executor = SimpleNamespace(_CHECKPOINT_PROCESS=SimpleNamespace(_save_process=process))
    name = "torch.distributed.checkpoint._async_process_executor"
    monkeypatch.setitem(sys.modules, name, executor)
    AbortPersistentCheckpointProcesses()(frozen())
    assert (process.told, executor._CHECKPOINT_PROCESS) == (told, None)
    AbortPersistentCheckpointProcesses()(frozen())
    assert process.told == told


# ------------------------------------------------------------------ nested restarter
def test_an_outer_restarter_reads_where_the_inner_one_stands(capsys, monkeypatch) -> None:
    """Exactly these lines on stdout, from one rank, whatever is logged and how."""
    monkeypatch.setattr(logging.root, "handlers", [])
    for rank in (0, 1):
        NestedRestarterHandlingCompleted()(frozen(rank=rank))
        NestedRestarterHandlingStarting()(frozen(rank=rank))
        NestedRestarterHandlingCompleted()(frozen(rank=rank, iteration=1))
        NestedRestarterFinalized()(frozen(rank=rank))
    NestedRestarterAborted(special_rank=2)(frozen(rank=2))
    assert capsys.readouterr().out.splitlines() == [
        f"[NestedRestarter] name=[InProcess] {state}"
        for state in (
            "state=initialize",
            "state=handling stage=starting",
            "state=handling stage=completed",
            "state=finalized",
            "state=aborted",
        )
    ]
