"""Where ranks ask something of their launcher."""

from __future__ import annotations

import gc
import os
import resource
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.base.clock import monotonic
from holdfast.base.pure import codec
from holdfast.evidence.pure.evidence import RankDigest
from holdfast.fault_tolerance.data import WorkloadAction
from holdfast.inplace.pure.job_calls import (
    Cause,
    EndsHungRank,
    FaultKind,
    OfGuard,
    RestartedInPlace,
)
from holdfast.net.loop import Loop
from holdfast.net.pure.frames import Decoder, encode
from holdfast.node.control_endpoint import CONNECTIONS_MAX, ControlEndpoint
from holdfast.watch.pure.rank_messages import ExitsNow, Uncaught


class Node:
    """A launcher's endpoint, and the ranks that call."""

    def __init__(self, folder: Path, loop: Loop) -> None:
        self.loop = loop
        self.path = str(folder / "launcher.socket")
        self.asked: list[tuple[int, WorkloadAction, str]] = []
        self.reports: list[OfGuard] = []
        self.ranks = {os.getpid()}
        self.exits: list[tuple[int, Uncaught | ExitsNow | None]] = []
        self.endpoint = ControlEndpoint(
            self.path,
            loop,
            lambda rank, action, why: self.asked.append((rank, action, why)),
            self.reports.append,
            self.on_exception,
        )

    def on_exception(self, pid: int, message: Uncaught | ExitsNow | None) -> bool:
        """As the launcher: whether it is a rank."""
        self.exits.append((pid, message))
        return pid in self.ranks

    def connect(self, rank: socket.socket) -> None:
        rank.settimeout(30)
        rank.connect(self.path)

    def ask(self, rank: socket.socket) -> str:
        """What the launcher answers."""
        rank.sendall(
            encode({"op": "control", "rank": 3, "action": "ShutdownWorkload", "description": "x"})
        )
        self.turn(2)  # accept, serve
        [answer] = Decoder().feed(rank.recv(1 << 16))
        return str(answer["op"])

    def turn(self, times: int) -> None:
        """Let the loop run; nothing here waits for anybody."""
        for _ in range(times):
            self.loop.wait(0.0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Loop() as loop:
        node = Node(tmp_path, loop)
        yield node
        node.endpoint.close()


@contextmanager
def no_descriptor_free(*, but: int) -> Iterator[None]:
    """As if this process had as many open as it may, ``but`` some.

    Objects of earlier tests that wait for the garbage collector hold some: it would free them now.
    """
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    taken: list[int] = []
    try:
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        for _ in range(but):
            os.close(taken.pop())
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def wait_until(deadline: float) -> None:
    """Sleep as a loop would that has nothing else to do."""
    select.select([], [], [], max(0.0, deadline - monotonic()))


def is_hung_up_on(rank: socket.socket) -> bool:
    return rank.recv(1) == b""


def test_a_request_is_answered(node: Node) -> None:
    """And told to the launcher."""
    with socket.socket(socket.AF_UNIX) as rank:
        node.connect(rank)
        assert node.ask(rank) == "ok"

    assert node.asked == [(3, WorkloadAction.ShutdownWorkload, "x")]


def test_a_restart_in_place_is_told_and_not_answered(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """The guard that says so does not wait for anybody; it may have hung up by then."""
    cause = Cause(1, FaultKind.EXCEPTION, "boom")
    restart = RestartedInPlace(1, (cause,), 1, 4.0, 5.0, 5.5)
    with socket.socket(socket.AF_UNIX) as guard:
        node.connect(guard)
        guard.sendall(encode(codec.encode(restart)))
    node.turn(2)

    assert node.reports == [restart]
    assert caplog.text == ""


def test_what_was_said_of_a_rank_is_heard_before_its_end_is_judged(node: Node) -> None:
    """The loop may see the end first; callers that have said nothing are not waited for."""
    ended = EndsHungRank(1, "no progress", RankDigest(1, "n"))
    with socket.socket(socket.AF_UNIX) as guard, socket.socket(socket.AF_UNIX) as rank:
        node.connect(rank)
        node.connect(guard)
        guard.sendall(encode(codec.encode(ended)))
        node.endpoint.drain()
        assert node.reports == [ended]
        node.endpoint.drain()
        node.turn(2)
        assert node.reports == [ended]
        assert node.ask(rank) == "ok"


def test_without_a_free_descriptor_a_request_waits_until_there_is_one(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """It was refused, and the rank failed. Nothing keeps the loop turning meanwhile."""
    ranks = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    with no_descriptor_free(but=0):
        for rank in ranks:
            node.connect(rank)
        node.turn(3)
        assert node.loop.epoll.poll(0) == [], "nothing to be done is left"
        deadline = node.endpoint.next_deadline()
        assert deadline is not None
    assert caplog.text.count("can accept no connection, so its callers wait: Too many open") == 1

    wait_until(deadline)
    node.endpoint.on_time()
    for rank in ranks:
        assert node.ask(rank) == "ok"
        rank.close()


def test_a_rank_that_has_asked_is_not_pushed_out_by_silent_callers(node: Node) -> None:
    """It waits for its exit handlers; the launcher's hundredth caller pushed it out."""
    with socket.socket(socket.AF_UNIX) as rank:
        node.connect(rank)
        rank.sendall(encode({"op": "uncaught", "traceback": "ValueError: x"}))
        node.turn(2)
        silent = [socket.socket(socket.AF_UNIX) for _ in range(CONNECTIONS_MAX + 3)]
        for caller in silent:
            node.connect(caller)
            node.turn(1)
        assert [is_hung_up_on(caller) for caller in silent[:3]] == [True] * 3
        rank.sendall(encode({"op": "exitsnow"}))
        node.turn(1)
        assert node.exits[-1] == (os.getpid(), ExitsNow())
        for caller in silent:
            caller.close()


def test_a_rank_that_an_exception_ends_is_followed_until_its_exit_handlers_have_run(
    node: Node,
) -> None:
    """What it says is of the process that the kernel names, and its connection tells the rest."""
    me = os.getpid()
    for last in (ExitsNow(), None):
        node.exits.clear()
        with socket.socket(socket.AF_UNIX) as rank:
            node.connect(rank)
            rank.sendall(encode({"op": "uncaught", "traceback": "ValueError: x"}))
            node.turn(2)
            [answer] = Decoder().feed(rank.recv(1 << 16))
            assert answer["op"] == "ok"
            if last is not None:
                rank.sendall(encode({"op": "exitsnow"}))
                node.turn(1)
        node.turn(2)
        assert node.exits == [(me, Uncaught("ValueError: x")), (me, last)]


def test_the_first_message_may_be_a_long_traceback(node: Node) -> None:
    """Longer than what other endpoints read of a caller that they don't know."""
    with socket.socket(socket.AF_UNIX) as rank:
        node.connect(rank)
        rank.sendall(encode({"op": "uncaught", "traceback": "x" * 20_000}))
        node.turn(3)
        assert [pid for pid, _ in node.exits] == [os.getpid()]


def test_no_process_but_a_rank_is_followed_to_its_end(node: Node) -> None:
    """A child of a rank, which has its environment, ends as plain Python does."""
    node.ranks.clear()
    with socket.socket(socket.AF_UNIX) as child:
        node.connect(child)
        child.sendall(encode({"op": "uncaught", "traceback": "ValueError: x"}))
        child.sendall(encode({"op": "exitsnow"}))
        node.turn(3)
        [answer] = Decoder().feed(child.recv(1 << 16))
        assert answer["op"] == "error"
    node.turn(2)
    assert [said for _, said in node.exits] == [Uncaught("ValueError: x")]
