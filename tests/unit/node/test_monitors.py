"""The launcher's side of its rank monitors."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.net import endpoint
from holdfast.net.loop import Loop
from holdfast.net.pure.frames import encode
from holdfast.node import monitors
from holdfast.node.processes.controlled_process import ControlledProcess
from holdfast.watch.pure.monitor_messages import (
    Closed,
    ConfigureMonitor,
    Cycle,
    MonitorLog,
    Stopping,
)

PID = 2**22 + 1
"""Larger than any."""
BOUND_S = 60.0
CLOSED = {"op": "closed", "cycle": 0}


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop() as loop:
        yield loop


def test_a_monitor_that_died_is_heard_out(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said in time must not come late: the next cycle may have begun by then."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(monitors, "start_monitor", lambda *_: ControlledProcess(PID, ours))
    heard: list[tuple[int, Any]] = []
    node = monitors.Monitors(loop, lambda rank, message: heard.append((rank, message)))
    node.open(3, os.fspath(tmp_path / "s"), ConfigureMonitor({}, 3, None, 15.0, "n0"))
    node.start(3)
    theirs.sendall(encode(CLOSED))
    theirs.close()

    assert node.died(PID) == 3

    assert heard == [(3, Closed(0))]
    assert node.died(PID) is None
    node.close()


def test_what_a_monitor_says_after_it_ended_its_rank_is_last_byte_at_the_end_of_the_job(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends the signal first: its rank and the job may be over before its words are there."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(monitors, "start_monitor", lambda *_: ControlledProcess(PID, ours))
    heard: list[Any] = []
    node = monitors.Monitors(loop, lambda _rank, message: heard.append(message))
    node.open(3, os.fspath(tmp_path / "s"), ConfigureMonitor({}, 3, None, 15.0, "n0"))
    node.start(3)
    log = {"op": "monitorlog", "level": "warning", "text": "rank 3 is hung"}
    last_words = threading.Timer(0.05, theirs.sendall, [encode(log) + encode(CLOSED)])
    last_words.start()

    node.drain_until_closed([3], BOUND_S)

    assert heard == [MonitorLog("warning", "rank 3 is hung"), Closed(0)]
    node.drain_until_closed([3], BOUND_S)  # nothing more will come, so nothing is waited for
    last_words.join()
    node.close()
    theirs.close()


def test_a_monitor_that_replaces_another_leaves_a_rank_that_is_being_stopped_alone(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the next cycle: the page of the rank shows its clocks, and not that it was asked."""
    told: list[Any] = []
    for _ in range(3):
        ours, theirs = socket.socketpair()
        monkeypatch.setattr(monitors, "start_monitor", lambda *_, ours=ours: _at(ours))
        if not told:
            node = monitors.Monitors(loop, lambda *_: None)
            node.open(3, os.fspath(tmp_path / "s"), ConfigureMonitor({}, 3, None, 15.0, "n0"))
            node.start(3)
            node.begin_cycle(3, Cycle(0, None))
            node.send(3, Stopping(0, 5.0))
        else:
            node.died(PID)
            node.start(3)
        told.append(theirs.recv(4096))
        theirs.close()
        if len(told) == 2:
            node.begin_cycle(3, Cycle(1, None))

    assert [b'"stopping"' in each for each in told] == [True, True, False]
    node.close()


def _at(ours: socket.socket) -> ControlledProcess:
    return ControlledProcess(PID, ours)


def test_the_end_of_a_job_does_not_wait_for_a_monitor_that_says_nothing(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(monitors, "start_monitor", lambda *_: ControlledProcess(PID, ours))
    node = monitors.Monitors(loop, lambda *_: None)
    node.open(3, os.fspath(tmp_path / "s"), ConfigureMonitor({}, 3, None, 15.0, "n0"))
    node.start(3)
    node.drain_until_closed([3], 0.01)
    theirs.close()
    node.drain_until_closed([3], BOUND_S)
    node.close()


def test_a_rank_whose_monitor_cannot_be_started_is_refused_until_one_is(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that has connected before: it would wait for an answer that never comes."""

    def no_process(*_: object) -> ControlledProcess:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    path = os.fspath(tmp_path / "s")
    node = monitors.Monitors(loop, lambda *_: None)
    node.open(3, path, ConfigureMonitor({}, 3, None, 15.0, "n0"))
    monkeypatch.setattr(monitors, "start_monitor", no_process)
    early = endpoint.connect(path, BOUND_S)

    with pytest.raises(OSError, match="temporarily"):
        node.start(3)

    with pytest.raises(endpoint.EndpointClosedError):
        early.request({"op": "hello"}, BOUND_S)
    with pytest.raises(endpoint.UnixSocketError, match="no process listens there any more"):
        endpoint.connect(path, BOUND_S)
    assert node.missing() == [3]
    node.begin_cycle(3, Cycle(1, None))  # a rank of the next cycle comes before its monitor
    endpoint.connect(path, BOUND_S).close()
    with pytest.raises(OSError, match="temporarily"):
        node.start(3)
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(monitors, "start_monitor", lambda *_: ControlledProcess(PID, ours))
    node.start(3)
    endpoint.connect(path, BOUND_S).close()
    node.close()
    theirs.close()
