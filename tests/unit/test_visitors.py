"""Who a rank monitor lets in when it has no descriptor free."""

from __future__ import annotations

import errno
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
from holdfast.watch.monitor.visitors import Seat, Visitor, Visitors
from holdfast.watch.pure.rank_messages import Hello
from tests.unit.test_control_endpoint import is_hung_up_on, no_descriptor_free


class Quiet:
    """A host to whom nothing happens."""

    def __init__(self) -> None:
        self.refused: list[int | None] = []

    def catch_up(self) -> None:
        """Nothing was said."""

    def is_closing(self) -> bool:
        return False

    def refuses(self, error: OSError) -> None:
        self.refused.append(error.errno)

    def complains(self, pid: int, what: str) -> None:
        raise AssertionError(what)

    def rejects(self, pid: int, hello: Hello) -> str | None:
        return None

    def greet(self, visitor: Visitor, seat: Seat, *, is_new: bool) -> None:
        visitor.channel.send({"op": "welcome"})

    def answer(self, seat: Seat, message: Any) -> Any:
        raise AssertionError(message)

    def holds(self, seat: Seat) -> bool:
        return False

    def yields(self, seat: Seat) -> bool:
        return False

    def left(self, seat: Seat, why: str) -> None:
        """Nothing to be done."""


def test_without_a_free_descriptor_a_call_is_refused_and_the_monitor_sleeps(tmp_path: Path) -> None:
    """What stays in the queue would keep its loop turning; a rank that is refused calls again."""
    path, host, descriptors = f"{tmp_path}/s", Quiet(), Descriptors()
    visitors = Visitors(endpoint.listen(path), descriptors, host)
    visitors.open()
    ranks = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    with no_descriptor_free(but=0):
        for rank in ranks:
            rank.settimeout(30.0)
            rank.connect(path)
        for _ in range(2):
            descriptors.wait(0.0)
        assert [is_hung_up_on(rank) for rank in ranks] == [True, True]
        assert descriptors.epoll.poll(0) == []
    assert host.refused == [errno.EMFILE]
    for rank in ranks:
        rank.close()

    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(path)
        descriptors.wait(30.0)
        assert len(visitors._waiting) == 1
        visitors.dismiss_all("over")
    visitors._acceptor.close()
    descriptors.epoll.close()


def test_without_even_the_reserve_the_next_free_descriptor_lets_people_in(tmp_path: Path) -> None:
    """One is free when a visitor leaves."""
    path, descriptors = f"{tmp_path}/s", Descriptors()
    visitors = Visitors(endpoint.listen(path), descriptors, Quiet())
    visitors.open()
    first, second = (socket.socket(socket.AF_UNIX) for _ in range(2))
    first.connect(path)
    descriptors.wait(30.0)
    with no_descriptor_free(but=0):
        os.close(visitors._acceptor._reserve)
        visitors._acceptor._reserve = -1
        taken = os.open(os.devnull, os.O_RDONLY)
        second.connect(path)
        descriptors.wait(0.0)
        assert descriptors.epoll.poll(0) == []

        first.close()
        descriptors.wait(30.0)
        assert visitors._waiting == []
        descriptors.wait(30.0)
        assert len(visitors._waiting) == 1, "both ends of a connection were here"
        os.close(taken)
    second.close()
    visitors.dismiss_all("over")
    visitors._acceptor.close()
    descriptors.epoll.close()


def test_a_hello_that_came_while_the_monitor_was_stopped_counts(tmp_path: Path) -> None:
    """The rank was cut off, and failed, because its monitor was late."""
    path, host, descriptors = f"{tmp_path}/s", Quiet(), Descriptors()
    visitors = Visitors(endpoint.listen(path), descriptors, host)
    visitors.open()
    with socket.socket(socket.AF_UNIX) as rank:
        rank.settimeout(30.0)
        rank.connect(path)
        descriptors.wait(30.0)
        rank.sendall(encode({"op": "hello", "rank": 0, "pid": os.getpid()}))
        deadline = visitors.next_deadline()
        assert deadline is not None
        visitors.dismiss_late(deadline + 2.0)
        descriptors.wait(30.0)
        assert b"welcome" in rank.recv(1000)
        visitors.vacate("is over")
    visitors._acceptor.close()
    descriptors.epoll.close()


def test_who_says_no_hello_is_cut_off_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 5 s, or 4 KiB; 64 of them kept ranks out for three minutes."""
    path, host, descriptors = f"{tmp_path}/s", Quiet(), Descriptors()
    said: list[tuple[int, str]] = []
    monkeypatch.setattr(host, "complains", lambda *what: said.append(what))
    visitors = Visitors(endpoint.listen(path), descriptors, host)
    visitors.open()
    silent, long = (socket.socket(socket.AF_UNIX) for _ in range(2))
    for caller in (silent, long):
        caller.settimeout(30.0)
        caller.connect(path)
        descriptors.wait(30.0)
    long.sendall((4097).to_bytes(4, "big") + b"x" * 100)
    descriptors.wait(30.0)
    assert is_hung_up_on(long)
    deadline = visitors.next_deadline()
    assert deadline is not None
    visitors.dismiss_late(deadline - 0.1)
    assert len(visitors._waiting) == 1
    visitors.dismiss_late(deadline)
    assert deadline <= monotonic() + SILENT_S
    assert b"no hello within 5 s" in silent.recv(1000)
    assert said == [
        (os.getpid(), "sent no hello: frame of 4097 bytes announced, limit 4096"),
        (os.getpid(), "was cut off: no hello within 5 s"),
    ]
    for caller in (silent, long):
        caller.close()
    visitors._acceptor.close()
    descriptors.epoll.close()


@pytest.mark.parametrize("by_steps", [True, False], ids=["steps", "client"])
def test_a_step_does_not_wait_for_the_seat_of_another_process(
    tmp_path: Path, by_steps: bool
) -> None:
    """A shell may start several Pythons for one rank. A client of the script's own does wait."""
    path, descriptors = f"{tmp_path}/s", Descriptors()
    visitors = Visitors(endpoint.listen(path), descriptors, Quiet())
    visitors.open()
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as first:
        visitors.take(Seat(0, Process(first.pid), None))
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
        visitors.vacate("is over")
    visitors._acceptor.close()
    descriptors.epoll.close()


def test_a_flood_pushes_out_silent_callers_and_no_rank_that_has_spoken(tmp_path: Path) -> None:
    """64 wait at the most; a hello that was not read yet counts. The oldest goes first."""
    path, descriptors = f"{tmp_path}/s", Descriptors()
    visitors = Visitors(endpoint.listen(path), descriptors, Quiet())
    callers = [socket.socket(socket.AF_UNIX) for _ in range(70)]
    for caller in callers:
        caller.settimeout(30.0)
        caller.connect(path)
        visitors._on_listener()
        if caller is callers[1]:
            caller.sendall(encode({"op": "hello", "rank": 0, "pid": os.getpid()}))
    assert len(visitors._waiting) == 64
    assert b"too many connections wait here" in callers[0].recv(1000)
    assert b"welcome" in callers[1].recv(1000)
    assert visitors.seat is not None
    assert [b"too many" in caller.recv(1000) for caller in callers[2:6]] == [True] * 4

    visitors.dismiss_late(monotonic() + SILENT_S + 60.0)
    assert len(visitors._waiting) == 64, "we were late, so they are heard first"
    deadline = visitors.next_deadline()
    assert deadline is not None
    assert deadline >= monotonic() + SILENT_S + 50.0 + EXCUSED_S
    visitors.dismiss_all("over")
    assert visitors.next_deadline() is None
    visitors.vacate("is over")
    for caller in callers:
        caller.close()
    visitors._acceptor.close()
    descriptors.epoll.close()
