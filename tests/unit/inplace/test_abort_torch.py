"""``AbortTorchDistributed`` and what is left of torch's state after it, in one process."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch._C._distributed_c10d import TCPStore, Work  # noqa: E402
from torch.distributed import HashStore, ProcessGroupGloo  # noqa: E402

from holdfast.inplace.torch_edge import abort_distributed, work_abort  # noqa: E402
from holdfast.inplace.torch_edge.abort_distributed import (  # noqa: E402
    GroupReaper,
    group_reaper,
)
from holdfast.inplace.torch_edge.gloo_abort import RestartPendingError, gloo_aborter  # noqa: E402
from holdfast.inprocess.abort import AbortTorchDistributed  # noqa: E402
from holdfast.inprocess.state import State  # noqa: E402
from holdfast.net import half_close  # noqa: E402
from tests.real.harness import until  # noqa: E402


@pytest.fixture(autouse=True)
def no_group() -> Iterator[None]:
    hook = sys.excepthook
    sys.excepthook = sys.__excepthook__  # another file's group may have left one of torch's
    yield
    abort_distributed.discard_process_groups()
    group_reaper.join(30.0)
    sys.excepthook = hook


def make_group() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def test_a_group_can_be_made_again_after_it() -> None:
    """Again and again; the hook for exceptions is not wrapped once more each time."""
    hook = sys.excepthook
    abort = AbortTorchDistributed()
    for _ in range(5):
        make_group()
        dist.new_group()
        assert sys.excepthook is not hook
        assert abort(None) is None  # type: ignore[arg-type,func-returns-value]
        assert not dist.is_initialized()
        assert sys.excepthook is hook
    assert group_reaper.join(30.0)


def test_hooks_of_others_stay() -> None:
    """Only what torch has put on top of them is taken off."""

    def mine(*_: object) -> None: ...

    make_group()
    sys.excepthook = mine
    make_and_discard = AbortTorchDistributed()
    make_and_discard(State(0, 1).freeze())
    assert sys.excepthook is mine


def test_a_thread_of_the_wrapper_leaves_the_group_to_the_main_thread() -> None:
    """Whose clean-up may still ask for its rank."""
    make_group()
    thread = threading.Thread(target=AbortTorchDistributed(), args=(None,))
    thread.start()
    thread.join(30.0)
    assert dist.get_rank() == 0


def test_without_a_group_it_does_nothing() -> None:
    """It is called on every rank, wherever that is."""
    state = State(0, 1).freeze()
    assert AbortTorchDistributed()(state) is state


def test_the_flight_recorder_is_dumped_once_for_each_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is on, and a folder is named; by argument or by environment."""
    monkeypatch.setenv("NVRX_FR_TRACE_PATH", str(tmp_path))
    abort = AbortTorchDistributed()
    state = State(0, 1)
    make_group()
    abort(state.freeze())
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "100")
    make_group()
    abort(state.freeze())
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("rank_*")] == ["iter_0/rank_0"]
    other = AbortTorchDistributed(str(tmp_path / "other"))
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    make_group()
    other(state.freeze())
    assert not (tmp_path / "other").exists()


def test_nothing_of_torch_stays_wrapped() -> None:
    """Nested contexts included."""

    def now() -> list[object]:
        owned = (ProcessGroupGloo.__dict__, TCPStore.__dict__)
        return [d["__init__"] for d in owned] + [Work.wait, ProcessGroupGloo.create_device]

    before = now()
    with abort_distributed.watching():
        with abort_distributed.watching():
            pass
        assert all(a is not b for a, b in zip(now(), before, strict=True))
    assert now() == before


def test_no_group_is_made_between_an_abort_and_its_release() -> None:
    """It would wait for ranks that are restarting."""
    with abort_distributed.watching():
        abort_distributed.abort_collectives()
        with pytest.raises(RestartPendingError, match="restart of this process"):
            make_group()
        abort_distributed.release()
        make_group()


def make_group_to_watch() -> Callable[[], bool]:
    """Make a group; returns whether it was destroyed."""
    make_group()
    group = weakref.ref(dist.distributed_c10d._get_default_group())
    return lambda: group() is None


def test_discarded_groups_are_destroyed_once_every_rank_has_aborted() -> None:
    """A connection that reaches a closed pair of gloo's ends the process."""
    with abort_distributed.watching():
        is_destroyed = make_group_to_watch()
        abort_distributed.abort_collectives()
        abort_distributed.discard_process_groups()
        assert not dist.is_initialized()
        assert reaping_threads() == []
        assert not is_destroyed()
        abort_distributed.release()
        until(is_destroyed, "the group is destroyed")


def test_groups_that_the_clean_up_of_the_user_destroys_are_kept_as_well() -> None:
    """``finally: destroy_process_group()`` runs before the other ranks have aborted."""
    with abort_distributed.watching():
        is_destroyed = make_group_to_watch()
        abort_distributed.abort_collectives()
        dist.destroy_process_group()
        assert not is_destroyed()
        abort_distributed.release()
        until(is_destroyed, "the group is destroyed")


def test_a_group_made_while_the_abort_began_is_kept_as_well() -> None:
    """It is registered only when :func:`abort_again` looks."""
    with abort_distributed.watching():
        is_destroyed = make_group_to_watch()
        abort_distributed.abort_again()
        dist.destroy_process_group()
        assert not is_destroyed()


def test_groups_are_kept_before_the_abort_of_native_ones_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may take a minute, and the main thread may be in its clean-up."""

    def clean_up() -> list[str]:
        dist.destroy_process_group()
        return []

    monkeypatch.setattr(abort_distributed, "abort_native_groups", clean_up)
    with abort_distributed.watching():
        is_destroyed = make_group_to_watch()
        abort_distributed.abort_collectives()
        assert not is_destroyed()


def test_a_release_leaves_groups_that_were_not_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were only held meanwhile."""
    shut_down: list[object] = []

    def shutdown(group: object) -> None:
        shut_down.append(group)

    monkeypatch.setattr(dist.ProcessGroup, "shutdown", shutdown, raising=False)
    with abort_distributed.watching():
        make_group()
        abort_distributed.abort_collectives()
        abort_distributed.release()
        assert group_reaper.join(30.0)
        assert shut_down == []
        assert dist.get_rank() == 0


def test_groups_wait_for_the_outermost_user() -> None:
    """A nested context that ends says nothing about the other ranks."""
    with abort_distributed.watching():
        with abort_distributed.watching():
            is_destroyed = make_group_to_watch()
            abort_distributed.abort_collectives()
            abort_distributed.discard_process_groups()
        assert abort_distributed.is_aborted()
        assert not is_destroyed()
        assert reaping_threads() == []
    until(is_destroyed, "the group is destroyed")
    assert not abort_distributed.is_aborted()


class Group:
    """Notes what is done to it, and in which thread."""

    def __init__(self, ended: list[tuple[str, str]]) -> None:
        self._ended = ended

    def shutdown(self) -> None:
        self._ended.append(("shutdown", threading.current_thread().name))

    def __del__(self) -> None:
        self._ended.append(("destroyed", threading.current_thread().name))


def test_the_reaper_destroys_in_a_thread_of_its_own() -> None:
    """It takes a tick of gloo's loop. What it only kept is not shut down."""
    ended: list[tuple[str, str]] = []
    reaper = GroupReaper()
    reaper.keep([Group(ended)])
    reaper.go_on()
    assert reaper.join(30.0)
    assert ended == [("destroyed", "holdfast-group-reaper")]

    reaper.keep([])
    reaper.take([Group(ended)])
    assert ended[1:] == []
    reaper.go_on()
    assert reaper.join(30.0)
    assert ended[1:] == [(each, "holdfast-group-reaper") for each in ("shutdown", "destroyed")]


def test_a_join_destroys_what_was_kept() -> None:
    """At the end of a call and of the interpreter nothing is left."""
    with abort_distributed.watching():
        is_destroyed = make_group_to_watch()
        abort_distributed.abort_collectives()
        abort_distributed.discard_process_groups()
        assert group_reaper.join(30.0)
        assert is_destroyed()


def test_a_rank_that_was_interrupted_in_a_wait_waits_no_more() -> None:
    """Python 3.10 may skip the ``finally`` that says so."""
    thread = threading.get_ident()
    work_abort.work_aborter._waiting[thread] = dist.Work()
    abort_distributed.discard_process_groups()
    assert not work_abort.work_aborter.waits(thread)


def test_nothing_is_kept_where_nothing_would_release_it() -> None:
    """An abort by the user, outside of a wrapper."""
    is_destroyed = make_group_to_watch()
    abort_distributed.abort_collectives()
    abort_distributed.discard_process_groups()
    until(is_destroyed, "the group is destroyed")


def reaping_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if "group-reaper" in each.name]


def test_a_descriptor_that_is_another_socket_now_is_left_alone() -> None:
    """The number was noted; since then it was closed and given to somebody else."""
    left, right = socket.socketpair()
    noted = (left.fileno(), os.fstat(left.fileno()).st_ino)
    other, its_peer = socket.socketpair()
    with left, right, other, its_peer:
        os.dup2(other.fileno(), noted[0])
        assert half_close.copy_of(*noted) is None
    assert half_close.copy_of(*noted) is None


def test_sockets_and_epolls_of_the_user_are_not_touched() -> None:
    """Made while a group was, in another thread."""
    with abort_distributed.watching():
        listener = socket.create_server(("127.0.0.1", 0))
        with gloo_aborter._noting_devices(2):
            epoll = select.epoll()
            client = socket.create_connection(listener.getsockname())
            server, _ = listener.accept()
            for sock in (listener, client, server):
                epoll.register(sock)
        assert abort_distributed.abort_collectives() == []
        server.sendall(b"x")
        assert client.recv(1) == b"x"
    for sock in (listener, client, server):
        sock.close()
    epoll.close()


@pytest.mark.parametrize("module", ["torch.cuda", "torch.cuda.streams"])
def test_a_main_thread_that_waits_for_its_device_may_wait_for_other_ranks(module: str) -> None:
    """NCCL's operations end on the device; the rank that keeps all waiting is to be named first."""
    seen: list[bool] = []
    done = threading.Lock()
    done.acquire()

    def look() -> None:
        until(lambda: _main_is_in("synchronize"), "the wait")
        seen.append(abort_distributed.main_waits())
        done.release()

    scope = {"__name__": module, "wait": done.acquire}
    exec("def synchronize(): wait()", scope)
    watcher = threading.Thread(target=look)
    watcher.start()
    scope["synchronize"]()  # type: ignore[operator]
    watcher.join()
    assert seen == [True]


def _main_is_in(name: str) -> bool:
    main = threading.main_thread().ident
    assert main is not None
    return sys._current_frames()[main].f_code.co_name == name


def test_a_failed_test_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And then nothing private is called."""
    monkeypatch.setattr(work_abort, "_TEST", "raise SystemExit('it crashed')")
    aborter = work_abort.WorkAborter()
    aborter.prepare()
    aborter.prepare()
    assert not aborter.wait_prepared(30.0)
    aborter.prepare()
    assert not aborter.wait_prepared(30.0)
    assert caplog.text.count("it crashed") == 1
    assert not aborter.abort(threading.get_ident())


def test_a_test_that_is_not_over_ends_with_its_last_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its process nor a thread that waits for it is left; the next user starts it anew."""
    monkeypatch.setattr(work_abort, "_TEST", "import time; time.sleep(60)")
    threads, children = set(threading.enumerate()), own_children()
    aborter = work_abort.WorkAborter()
    monkeypatch.setattr(abort_distributed, "work_aborter", aborter)
    with abort_distributed.watching():
        with abort_distributed.watching():
            aborter.prepare()
        assert not aborter.wait_prepared(0.0)
        assert set(threading.enumerate()) <= threads
        (child,) = own_children() - children
    assert not Path(f"/proc/{child}").exists()
    monkeypatch.setattr(work_abort, "_TEST", "raise SystemExit('it crashed')")
    with abort_distributed.watching():
        aborter.prepare()
        assert not aborter.wait_prepared(30.0)


def own_children() -> set[int]:
    tid = threading.get_native_id()
    return {int(pid) for pid in Path(f"/proc/self/task/{tid}/children").read_text().split()}
