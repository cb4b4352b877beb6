"""The launcher's side of its rank monitors."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.monitor.monitor_messages import Closed, Configure
from holdfast.fault_tolerance.launch import monitors
from holdfast.host.controlled_process import ControlledProcess
from holdfast.host.loop import Loop
from holdfast.wire.frames import encode

PID = 2**22 + 1
"""Larger than any."""


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
    node.open(3, os.fspath(tmp_path / "s"), Configure({}, 3, None, 15.0, "n0"))
    node.start(3)
    theirs.sendall(encode({"op": "closed", "cycle": 0}))
    theirs.close()

    assert node.died(PID) == 3

    assert heard == [(3, Closed(0))]
    assert node.died(PID) is None
    node.close()
