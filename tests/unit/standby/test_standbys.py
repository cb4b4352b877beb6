"""Parked interpreters, as their launcher treats them."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.processes.child import Reaped
from holdfast.base.pure.codec import encode
from holdfast.net.loop import Loop
from holdfast.net.pure import frames
from holdfast.node.part import CycleStarted
from holdfast.options.plan import WarmStandby
from holdfast.standby import standbys
from holdfast.standby.pure.parked_interpreters import FAILURES_MAX
from holdfast.standby.pure.parked_messages import ParkedReady, ParkedUnfit
from holdfast.standby.standby_process import StandbyProcess
from tests.waiting import until

RANKS: Any = SimpleNamespace(formed=SimpleNamespace(restarts_left=1))
PID = 2**22 + 1
"""Above the largest pid that Linux gives."""


def test_no_process_is_parked_once_that_was_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where it is given up while those of all ranks are started: nobody would end it."""
    theirs: list[socket.socket] = []
    tries: list[None] = []

    def park(*_: object, **_options: object) -> StandbyProcess:
        tries.append(None)
        if len(tries) <= FAILURES_MAX:
            raise OSError(11, "Resource temporarily unavailable")
        ours, other = socket.socketpair()
        theirs.append(other)
        return StandbyProcess(PID, ours)

    monkeypatch.setattr(standbys, "park", park)
    monkeypatch.setattr(standbys.child, "send_signal", lambda *_: True)
    plan = WarmStandby(memory_mib_max=100, delay_s=0.0)
    with Loop() as loop:
        nobody = ["python"], {}, None
        node = standbys.Standbys(
            plan,
            FAILURES_MAX + 2,
            loop,
            [],
            "job",
            str(tmp_path),
            lambda _: nobody,
            start_hook=None,
        )
        node.on_event(CycleStarted(RANKS))
        node.on_time()

        assert node.machine.given_up is not None
        assert len(tries) == FAILURES_MAX
        assert node.pids() == frozenset()
        node.end()
    for each in theirs:
        each.close()


@pytest.mark.parametrize(
    "words", [ParkedUnfit("it changes", None), ParkedReady(1024, {})], ids=["unfit", "ready"]
)
def test_a_process_that_is_gone_is_neither_signalled_nor_given_a_priority(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: ParkedReady | ParkedUnfit
) -> None:
    """Its last words come with its end, and its pid may be another process's by now."""
    ours, theirs = socket.socketpair()
    signalled: list[int] = []
    monkeypatch.setattr(standbys, "park", lambda *_, **_options: StandbyProcess(PID, ours))
    monkeypatch.setattr(standbys.child, "send_signal", lambda pid, _: signalled.append(pid))
    monkeypatch.setattr(standbys.idle_priority, "can_return", lambda: True)
    monkeypatch.setattr(standbys.idle_priority, "does_return", lambda _: True)
    plan = WarmStandby(memory_mib_max=100, delay_s=0.0)
    with Loop() as loop, theirs:
        nobody = ["python"], {}, None
        node = standbys.Standbys(
            plan, 1, loop, [], "job", str(tmp_path), lambda _: nobody, start_hook=None
        )
        node.on_event(CycleStarted(RANKS))
        node.on_time()
        assert node.pids() == {PID}
        theirs.sendall(frames.encode(encode(words)))

        assert node.died(Reaped(PID, 0, 0))

        assert node.pids() == frozenset()
        assert signalled == []
        assert node.machine.is_idle, "others can still be prepared with the lowest priority"
        node.end()


@pytest.mark.parametrize(
    ("left", "gets_restarts_back", "is_parked"),
    [(1, False, True), (0, False, False), (0, True, True)],
)
def test_a_process_is_parked_where_a_restart_may_follow(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    left: int,
    gets_restarts_back: bool,
    is_parked: bool,
) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(standbys, "park", lambda *_, **_options: StandbyProcess(PID, ours))
    monkeypatch.setattr(standbys.child, "send_signal", lambda *_: True)
    plan = WarmStandby(memory_mib_max=100, delay_s=0.0)
    ranks: Any = SimpleNamespace(formed=SimpleNamespace(restarts_left=left))
    with Loop() as loop, ours, theirs:
        node = standbys.Standbys(
            plan,
            1,
            loop,
            [],
            "job",
            str(tmp_path),
            lambda _: (["python"], {}, None),
            start_hook=None,
            gets_restarts_back=gets_restarts_back,
        )
        node.on_event(CycleStarted(ranks))
        node.on_time()

        assert node.pids() == ({PID} if is_parked else frozenset())
        node.end()


def test_a_restart_closes_no_trigger_for_memory_pressure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel takes 11 to 16 ms to close one, in which a launcher can't start a rank."""
    pairs = [socket.socketpair(), socket.socketpair()]
    trigger, other_end = os.pipe()
    opened: list[int] = []
    left = iter(pairs)

    def open_triggers() -> list[int]:
        opened.append(trigger)
        return [trigger]

    monkeypatch.setattr(standbys, "park", lambda *_, **_options: StandbyProcess(PID, next(left)[0]))
    monkeypatch.setattr(standbys.StandbyProcess, "go_on", lambda *_, **_options: True)
    monkeypatch.setattr(standbys.memory_left, "pressure_triggers", open_triggers)
    monkeypatch.setattr(standbys.memory, "available_kib", lambda: None)
    monkeypatch.setattr(standbys.idle_priority, "can_return", lambda: False)
    plan = WarmStandby(memory_mib_max=100, delay_s=0.0)
    with Loop() as loop:
        shape = ["python"], {}, None
        node = standbys.Standbys(
            plan, 1, loop, [], "job", str(tmp_path), lambda _: shape, start_hook=None
        )
        for _, theirs in pairs:
            node.on_event(CycleStarted(RANKS))
            node.on_time()
            theirs.sendall(frames.encode(encode(ParkedReady(1024, {}))))
            until(lambda: loop.wait(0.1) or node.machine.is_settled, "it is parked")

            assert node.take(0, *shape[:2], [1, 2]) == PID

            os.fstat(trigger)
            assert node.pids() == frozenset()
        assert opened == [trigger]
        node.end()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(trigger)
    os.close(other_end)
    for _, theirs in pairs:
        theirs.close()


@pytest.mark.parametrize("scope", ["cgroup", "host"])
def test_a_job_that_met_an_out_of_memory_kill_parks_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: str
) -> None:
    """The kernel ended a parked process for a rank: the next would meet the same."""
    ours, theirs = socket.socketpair()
    kills = {"host": 5, scope: 0}
    monkeypatch.setattr(standbys, "park", lambda *_, **_options: StandbyProcess(PID, ours))
    monkeypatch.setattr(standbys.child, "send_signal", lambda *_: True)
    monkeypatch.setattr(standbys.memory, "oom_kills", kills.copy)
    plan = WarmStandby(memory_mib_max=100, delay_s=0.0)
    with Loop() as loop, theirs:
        nobody = ["python"], {}, None
        node = standbys.Standbys(
            plan, 1, loop, [], "job", str(tmp_path), lambda _: nobody, start_hook=None
        )
        node.on_event(CycleStarted(RANKS))
        node.on_time()
        kills[scope] += 1

        assert node.died(Reaped(PID, -9, 0))

        assert "for lack of memory" in str(node.machine.given_up)
        node.end()
