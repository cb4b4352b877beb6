"""The health process of a node, as its launcher treats it."""

from __future__ import annotations

import socket

import pytest

from holdfast.base.processes.child import Reaped
from holdfast.health.messages import HealthConfig
from holdfast.net.loop import Loop
from holdfast.net.pure.frames import encode
from holdfast.node import health_process
from holdfast.node.processes.controlled_process import ControlledProcess

FIRST = 2**22 + 1
"""Above the largest pid that Linux gives."""


def test_last_words_that_cannot_be_handled_lead_to_one_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is watched, and nothing is sent to a pid that may be another process's by now."""
    others: list[socket.socket] = []

    def process(*_: object) -> ControlledProcess:
        ours, theirs = socket.socketpair()
        others.append(theirs)
        return ControlledProcess(FIRST + len(others) - 1, ours)

    signalled: list[int] = []
    monkeypatch.setattr(health_process.child, "send_signal", lambda pid, _: signalled.append(pid))
    monkeypatch.setattr(health_process, "start_health_process", process)
    with Loop() as loop:
        care = health_process.HealthProcess(
            HealthConfig(),
            loop=loop,
            job="job",
            started=None,
            on_checked=lambda _: None,
            on_unhealthy=lambda _: None,
            write_down=lambda _: None,
        )
        others[0].sendall(encode({"op": "nonsense"}))

        assert care.died(Reaped(FIRST, 1, 0))

        assert care.pids() == {FIRST + 1}
        assert signalled == []
        others[1].sendall(encode({"op": "nonsense"}))
        loop.wait(1.0)
        assert signalled == [FIRST + 1], "it is heard"
        care.end()
    for each in others:
        each.close()
