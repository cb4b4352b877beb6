from __future__ import annotations

import datetime as dt
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from holdfast.base import torch_private
from holdfast.inplace.bootstrap import only_rank_without_environment
from holdfast.inprocess import Compose
from holdfast.inprocess.rank_assignment import (
    FilterCountGroupedByKey,
    RankAssignmentCtx,
    RankDiscarded,
    ShiftRanks,
)
from holdfast.inprocess.state import State
from nvidia_resiliency_ext.inprocess.attribution import Interruption, InterruptionRecord
from nvidia_resiliency_ext.inprocess.store import (
    BarrierOverflow,
    BarrierTimeout,
    FileStore,
    PrefixStore,
    StoreMixin,
    TCPStore,
)

SOON = dt.timedelta(milliseconds=50)
NOW = dt.timedelta(0)
BOUND_S = 30


class HashStore(StoreMixin, dist.HashStore):
    """As a user would bring it."""


class MixinLast(dist.HashStore, StoreMixin):
    """As it was written for the other implementation, where torch's own names come first."""


KINDS = ["hash", "mixin last", "file", "prefix"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "file":
        return FileStore(str(tmp_path / "store"), 2)
    if request.param == "mixin last":
        return MixinLast()
    return HashStore() if request.param == "hash" else PrefixStore(3, HashStore())


def both(first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None, None]

    def run(number: int, do: Callable[[], Any]) -> None:
        results[number] = do()

    threads = [threading.Thread(target=run, args=item) for item in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    return results


def test_ranks_meet(store: Any) -> None:
    both(lambda: store.meet("a", 2), lambda: store.meet("a", 2))


def test_who_comes_alone_is_told_who_is_missing_after_the_timeout(store: Any) -> None:
    with pytest.raises(BarrierTimeout, match=r"'a': 1 of 2 ranks came within 0.05 s"):
        store.meet("a", 2, SOON)


def test_one_too_many_is_an_error(store: Any) -> None:
    store.meet("a", 1)
    with pytest.raises(BarrierOverflow, match="2 ranks came, it is for 1"):
        store.meet("a", 1)


def test_with_no_timeout_one_arrives_and_does_not_wait(store: Any) -> None:
    store.meet("a", 2, NOW)
    store.meet("a", 2)


def test_who_arrives_repeatedly_counts_once(store: Any) -> None:
    for _ in range(3):
        store.meet_again("a", [0], 2, NOW)
    with pytest.raises(BarrierTimeout, match="1 of 2"):
        store.meet_again("a", [0], 2, SOON)


def test_the_lost_are_stood_in_for(store: Any) -> None:
    store.meet_again("a", [1, 2], 3, NOW)
    store.meet_again("a", [0], 3)


def test_values_are_exchanged_in_the_order_of_the_ranks(store: Any) -> None:
    def give(rank: int) -> Callable[[], Any]:
        return lambda: store.exchange("keys", rank, 2, {"node": f"n{rank}"})

    assert both(give(0), give(1)) == [[{"node": "n0"}, {"node": "n1"}]] * 2


def test_an_exchange_that_not_all_join_ends(store: Any) -> None:
    with pytest.raises(BarrierTimeout, match="not all of 2 ranks"):
        store.exchange("keys", 0, 2, 1, SOON)


@pytest.mark.parametrize("name", ["initial", "completion", "iteration", "termination"])
def test_the_barriers_of_a_call_have_names(store: Any, name: str) -> None:
    """Each rank arrives as often as it likes, and for others."""
    barrier = getattr(store, f"{name}_barrier")
    barrier([0], 3, NOW)
    with pytest.raises(BarrierTimeout, match=f"barrier/{name}': 1 of 3"):
        barrier([0], 3, SOON)
    both(lambda: barrier(0, 3), lambda: barrier([1, 2], 3))
    with pytest.raises(BarrierOverflow):
        barrier([3], 3)


def test_what_interrupted_is_a_list_that_grows_until_it_is_locked(store: Any) -> None:
    records = [InterruptionRecord(rank, Interruption.EXCEPTION) for rank in range(3)]
    assert (store.is_interrupted(), store.get_interruption_records()) == (False, [])
    both(store.wait_for_interruption, lambda: store.record_interrupted(records[:1]))
    store.record_interrupted(records[1])
    assert store.get_interruption_records() == records[:2]
    both(store.lock_interruption_records, store.lock_interruption_records)
    store.record_interrupted(records[2:])
    assert store.get_interruption_records() == records[:2]


def test_ranks_tell_each_other_of_themselves(store: Any) -> None:
    before = time.time()
    store.send_heartbeat(1)
    never, seen = store.get_all_heartbeats(world_size=2)
    assert never is None
    assert before <= seen <= time.time()
    assert store.get_terminated_ranks() == set()
    store.record_terminated_ranks(3)
    store.record_terminated_ranks({3, 1})
    assert store.get_terminated_ranks() == {1, 3}
    assert not store.is_any_rank_completed()
    store.record_completed()
    assert store.is_any_rank_completed()
    store.set_initial_rank(0, 2)
    assert both(lambda: store.get_initial_ranks([0, 1]), lambda: store.set_initial_rank(1, 3)) == [
        [2, 3],
        None,
    ]


def test_over_tcp_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection serves one thread at a time, so this is not done by two."""
    monkeypatch.setenv("RANK", "0")
    store = TCPStore("127.0.0.1", 0, 2)
    assert store.critical_ranks == (0,)
    store.iteration_barrier([0], 2, NOW)
    store.iteration_barrier([1, 0], 2)
    record = InterruptionRecord(1, Interruption.TERMINATED)
    store.record_interrupted([record])
    store.lock_interruption_records()
    store.record_interrupted([record])
    store.record_terminated_ranks([1])
    store.record_completed()
    store.set_initial_rank(0, 1)
    assert store.get_interruption_records() == [record]
    assert store.get_terminated_ranks() == {1}
    assert (store.is_any_rank_completed(), store.get_initial_rank(0)) == (True, 1)
    ctx = RankAssignmentCtx(State(0, 1), store, set())
    FilterCountGroupedByKey("all", lambda count: count == 1)(ctx)
    assert ctx.terminated_ranks == set()


def test_a_file_needs_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    path = str(tmp_path / "store")
    FileStore(path).set("key", "1")
    assert FileStore(path).get("key") == b"1"


def test_keys_are_counted_over_any_store(store: Any) -> None:
    """Twice in one store, the second time without a rank that was lost meanwhile."""
    pairs = FilterCountGroupedByKey(lambda state: state.initial_rank // 2, lambda count: count == 2)

    def assign(state: State, lost: set[int]) -> Any:
        try:
            return Compose(ShiftRanks(), pairs)(RankAssignmentCtx(state, store, lost))
        except RankDiscarded:
            return "discarded"

    def all_of(states: list[State], lost: set[int]) -> list[Any]:
        with ThreadPoolExecutor(4) as threads:
            return list(threads.map(lambda state: assign(state, set(lost)), states))

    states = [State(rank, 4) for rank in range(4)]
    all_of(states, set())
    assert [(state.rank, state.world_size) for state in states] == [(n, 4) for n in range(4)]
    del states[1]
    assert all_of(states, {1})[0] == "discarded"
    assert [(state.rank, state.world_size) for state in states[1:]] == [(0, 2), (1, 2)]


def test_no_name_of_torch_is_hidden() -> None:
    ours = {name for name in vars(StoreMixin) if not name.startswith("_")}
    assert not ours & set(dir(dist.Store))


def test_a_room_knows_its_store() -> None:
    base = HashStore()
    assert PrefixStore(1, base).base_store is base
    PrefixStore(1, base).set("key", "1")
    assert not PrefixStore(2, base).check(["key"])


# ---------------------------------------------------------------- without an environment
NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As in a shell, or a notebook."""
    for name in (*NAMES, "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_one_rank_hosts_its_store_without_an_environment(plain: pytest.MonkeyPatch) -> None:
    """On a free port of this host."""
    store = TCPStore(timeout=dt.timedelta(seconds=BOUND_S))
    assert (store.host, store.add("one", 1)) == ("127.0.0.1", 1)
    assert store.port > 0


@pytest.mark.parametrize("missing", NAMES[0:1] + NAMES[2:])
def test_several_ranks_need_the_whole_environment(missing: str, plain: pytest.MonkeyPatch) -> None:
    """One sentence names what is missing, and what sets it."""
    for name, value in zip(NAMES, ("0", "2", "127.0.0.1", "1"), strict=True):
        plain.setenv(name, value)
    plain.delenv(missing)
    with pytest.raises(KeyError, match=f"{missing} is not set: each of 2 ranks needs RANK"):
        TCPStore()


def test_a_process_without_numbers_is_the_only_rank_for_the_call(
    plain: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the call exports is taken back; numbers that were there before stay."""
    with only_rank_without_environment():
        os.environ["RANK"], os.environ["WORLD_SIZE"] = "0", "1"
    assert not {"RANK", "WORLD_SIZE"} & os.environ.keys()
    assert [line for line in caplog.messages if "the only rank of its job" in line]

    caplog.clear()
    plain.setenv("WORLD_SIZE", "1")
    with only_rank_without_environment():
        pass
    assert os.environ["WORLD_SIZE"] == "1"
    assert caplog.messages == []


@pytest.mark.parametrize("name", ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_one_of_many_processes_is_not_taken_for_the_only_rank(
    name: str, plain: pytest.MonkeyPatch
) -> None:
    """Each of them would train alone, and write the same checkpoint."""
    plain.setenv(name, "1")
    with only_rank_without_environment():
        pass
    plain.setenv(name, "8")
    with (
        pytest.raises(ValueError, match=f"not set in a job of 8 processes .{name}.: set them"),
        only_rank_without_environment(),
    ):
        pytest.fail("entered")


def test_a_rank_looks_for_a_host_that_is_late_every_second_at_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch waits up to a minute between two attempts, so it is to find a process that listens."""
    made, make = [], torch_private.TCPStore.__init__

    def host_elsewhere(self: object, **given: Any) -> None:
        made.append(given["port"])
        make(self, **{**given, "port": 0, "is_master": True})

    monkeypatch.setattr(torch_private.TCPStore, "__init__", host_elsewhere)
    monkeypatch.setenv("RANK", "1")
    with socket.socket() as listener, ThreadPoolExecutor(1) as pool:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        joins = pool.submit(TCPStore, "127.0.0.1", port, 2)
        with pytest.raises(FutureTimeoutError):
            joins.result(0.3)
        assert made == []
        listener.listen()
        joins.result(BOUND_S)

    assert made == [port]


def test_a_host_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the address that was tried, and for how long."""
    monkeypatch.setenv("RANK", "1")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        with pytest.raises(
            dist.DistNetworkError, match=rf"timed out after .* \(127.0.0.1, {port}\)"
        ):
            TCPStore("127.0.0.1", port, 2, dt.timedelta(seconds=0.2))
