"""Who a rank monitor lets in when it has no descriptor free."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.clock import monotonic
from holdfast.base.processes.proc import Process
from holdfast.net import endpoint
from holdfast.net.descriptors import Descriptors
from holdfast.net.pure.admission import EXCUSED_S, SILENT_S
from holdfast.net.pure.frames import encode
from holdfast.watch.monitor.rank_sessions import Caller, RankSession, RankSessions
from holdfast.watch.pure.rank_messages import Hello
from tests.unit.node.test_control_endpoint import is_hung_up_on, no_descriptor_free, wait_until


class Quiet:
    """A host to whom nothing happens."""

    def may_accept(self) -> bool:
        return True

    def warns(self, line: str) -> None:
        raise AssertionError(line)

    def rejects(self, pid: int, hello: Hello) -> str | None:
        return None

    def accept(self, caller: Caller, session: RankSession, *, is_new: bool) -> None:
        caller.channel.send({"op": "welcome"})

    def answer(self, session: RankSession, message: Any) -> Any:
        raise AssertionError(message)

    def holds(self, session: RankSession) -> bool:
        return False

    def can_be_replaced(self, session: RankSession) -> bool:
        return False

    def left(self, session: RankSession, why: str) -> None:
        """Nothing to be done."""


def open_visitors(
    path: str, descriptors: Descriptors, host: Quiet
) -> tuple[RankSessions, socket.socket]:
    listener = endpoint.listen(path)
    visitors = RankSessions(listener, descriptors, host)
    visitors.open()
    return visitors, listener


def close_visitors(
    visitors: RankSessions, listener: socket.socket, descriptors: Descriptors
) -> None:
    visitors._server.close()
    listener.close()
    descriptors.epoll.close()


def test_without_a_free_descriptor_a_rank_waits_until_there_is_one(tmp_path: Path) -> None:
    """It was refused, and failed, though it would have waited 30 s. The monitor sleeps."""
    path, host, descriptors = f"{tmp_path}/s", Quiet(), Descriptors()
    said: list[str] = []
    host.warns = said.append  # type: ignore[method-assign]
    visitors, listener = open_visitors(path, descriptors, host)
    with socket.socket(socket.AF_UNIX) as rank:
        rank.settimeout(30.0)
        with no_descriptor_free(but=0):
            rank.connect(path)
            rank.sendall(encode({"op": "hello", "rank": 0, "pid": os.getpid()}))
            descriptors.wait(0.0)
            assert descriptors.epoll.poll(0) == []
        [line] = said
        assert "so its callers wait: Too many open files" in line
        deadline = visitors.next_deadline()
        assert deadline is not None
        wait_until(deadline)
        visitors.on_time(deadline)
        descriptors.wait(30.0)
        descriptors.wait(30.0)
        assert b"welcome" in rank.recv(1000)
        visitors.release("is over")
    close_visitors(visitors, listener, descriptors)


def test_a_monitor_that_ends_leaves_calls_to_its_successor(tmp_path: Path) -> None:
    """Which is given the same listener."""
    path, host, descriptors = f"{tmp_path}/s", Quiet(), Descriptors()
    host.may_accept = lambda: False  # type: ignore[method-assign]
    visitors, listener = open_visitors(path, descriptors, host)
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(path)
        descriptors.wait(30.0)
        listener.accept()[0].close()
    close_visitors(visitors, listener, descriptors)


def test_a_cycle_that_begins_turns_away_who_has_said_nothing_yet(tmp_path: Path) -> None:
    """It belongs to the cycle before, as one that waits for the session does."""
    path, descriptors = f"{tmp_path}/s", Descriptors()
    visitors, listener = open_visitors(path, descriptors, Quiet())
    with socket.socket(socket.AF_UNIX) as rank:
        rank.settimeout(30.0)
        rank.connect(path)
        descriptors.wait(30.0)
        visitors.dismiss_all("cycle 1 has begun")
        assert b"cycle 1 has begun" in rank.recv(1000)
        assert visitors.next_deadline() is None
    close_visitors(visitors, listener, descriptors)


def test_a_hello_that_came_while_the_monitor_was_stopped_counts(tmp_path: Path) -> None:
    """The rank was cut off, and failed, because its monitor was late."""
    path, host, descriptors = f"{tmp_path}/s", Quiet(), Descriptors()
    visitors, listener = open_visitors(path, descriptors, host)
    with socket.socket(socket.AF_UNIX) as rank:
        rank.settimeout(30.0)
        rank.connect(path)
        descriptors.wait(30.0)
        rank.sendall(encode({"op": "hello", "rank": 0, "pid": os.getpid()}))
        deadline = visitors.next_deadline()
        assert deadline is not None
        visitors.on_time(deadline + 2.0)
        descriptors.wait(30.0)
        assert b"welcome" in rank.recv(1000)
        visitors.release("is over")
    close_visitors(visitors, listener, descriptors)


def test_who_says_no_hello_is_cut_off_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 5 s, or 4 KiB; 64 of them kept ranks out for three minutes."""
    path, host, descriptors = f"{tmp_path}/s", Quiet(), Descriptors()
    said: list[str] = []
    monkeypatch.setattr(host, "warns", said.append)
    visitors, listener = open_visitors(path, descriptors, host)
    silent, long = (socket.socket(socket.AF_UNIX) for _ in range(2))
    for caller in (silent, long):
        caller.settimeout(30.0)
        caller.connect(path)
        descriptors.wait(30.0)
    long.sendall((4097).to_bytes(4, "big") + b"x" * 100)
    descriptors.wait(30.0)
    assert b"frame of 4097 bytes announced" in long.recv(1000)
    assert is_hung_up_on(long)
    deadline = visitors.next_deadline()
    assert deadline is not None
    visitors.on_time(deadline - 0.1)
    assert visitors.next_deadline() == deadline
    visitors.on_time(deadline)
    assert deadline <= monotonic() + SILENT_S
    assert b"sent no hello within 5 s" in silent.recv(1000)
    [line] = said
    what = "sent a malformed message: frame of 4097 bytes announced, limit 4096"
    assert line == f"process {os.getpid()} was cut off: {what}"
    for caller in (silent, long):
        caller.close()
    close_visitors(visitors, listener, descriptors)


@pytest.mark.parametrize("by_steps", [True, False], ids=["steps", "client"])
def test_a_step_does_not_wait_for_the_seat_of_another_process(
    tmp_path: Path, by_steps: bool
) -> None:
    """A shell may start several Pythons for one rank. A client of the script's own does wait."""
    path, descriptors = f"{tmp_path}/s", Descriptors()
    visitors, listener = open_visitors(path, descriptors, Quiet())
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as first:
        visitors.take(RankSession(0, Process(first.pid), None))
        with socket.socket(socket.AF_UNIX) as rank:
            rank.settimeout(30.0)
            rank.connect(path)
            rank.sendall(encode({"op": "hello", "rank": 0, "pid": 0, "by_steps": by_steps}))
            descriptors.wait(30.0)
            descriptors.wait(0.0)
            assert bool(visitors._waiting) is not by_steps
            if by_steps:
                assert f"process {first.pid} is watched".encode() in rank.recv(1000)
            visitors.dismiss_all("over")
        visitors.release("is over")
    close_visitors(visitors, listener, descriptors)


def test_a_flood_pushes_out_silent_callers_and_no_rank_that_has_spoken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 wait at the most; a hello that was not read yet counts. The oldest goes first."""
    path, host, descriptors = f"{tmp_path}/s", Quiet(), Descriptors()
    said: list[str] = []
    monkeypatch.setattr(host, "warns", said.append)
    visitors, listener = open_visitors(path, descriptors, host)
    callers = [socket.socket(socket.AF_UNIX) for _ in range(70)]
    for caller in callers:
        caller.settimeout(30.0)
        caller.connect(path)
        visitors._server.accept()
        if caller is callers[1]:
            caller.sendall(encode({"op": "hello", "rank": 0, "pid": os.getpid()}))
    too_many = b"has too many connections without a hello: 64"
    assert too_many in callers[0].recv(1000)
    assert b"welcome" in callers[1].recv(1000)
    assert visitors.session is not None
    assert [too_many in caller.recv(1000) for caller in callers[2:6]] == [True] * 4
    assert len(said) == 1

    visitors.on_time(monotonic() + SILENT_S + 60.0)
    deadline = visitors.next_deadline()
    assert deadline is not None
    assert deadline >= monotonic() + SILENT_S + 50.0 + EXCUSED_S, "it was late: they count first"
    visitors.dismiss_all("over")
    assert visitors.next_deadline() is None
    visitors.release("is over")
    for caller in callers:
        caller.close()
    close_visitors(visitors, listener, descriptors)


def test_ranks_that_wait_for_the_seat_are_bounded_too(tmp_path: Path) -> None:
    """The one that has waited the longest makes room."""
    path, descriptors = f"{tmp_path}/s", Descriptors()
    visitors, listener = open_visitors(path, descriptors, Quiet())
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as first:
        visitors.take(RankSession(0, Process(first.pid), None))
        ranks = [socket.socket(socket.AF_UNIX) for _ in range(65)]
        for rank in ranks:
            rank.settimeout(30.0)
            rank.connect(path)
            rank.sendall(encode({"op": "hello", "rank": 0, "pid": 0}))
            descriptors.wait(30.0)
            descriptors.wait(30.0)
        assert len(visitors._waiting) == 64
        assert b"too many connections wait here" in ranks[0].recv(1000)
        visitors.dismiss_all("over")
        visitors.release("is over")
        for rank in ranks:
            rank.close()
    close_visitors(visitors, listener, descriptors)
