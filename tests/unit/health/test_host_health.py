"""What a health process says, and when."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping

import pytest

from holdfast.health.bounded import BoundedProbe
from holdfast.health.host_health_main import HostHealth
from holdfast.health.pure.health import Finding, Fitness
from holdfast.net.pure.frames import Decoder

LOST = Finding("nic", "mlx5_0", Fitness.UNHEALTHY, "lost its link")


class LosesItsLink:
    """Between any two looks; at a check it is there."""

    has_gpus = True

    def while_running(self) -> list[BoundedProbe]:
        return [BoundedProbe("nic losses", 30.0, lambda: [LOST])]

    def before_join(self) -> list[BoundedProbe]:
        return []

    def memory_holders(self) -> list[int]:
        return []

    def used_mib(self) -> Mapping[str, float]:
        return {}


@pytest.fixture
def launcher() -> Iterator[tuple[HostHealth, socket.socket]]:
    """A health process without a process, and the launcher's end of its connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        health = HostHealth(theirs)
        health._checks = LosesItsLink()  # type: ignore[assignment]
        ours.setblocking(False)
        yield health, ours


class HangsInItsDriver(LosesItsLink):
    """Until the end of the test; who asks it for memory would wait as long."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.asked_for_memory = False

    def while_running(self) -> list[BoundedProbe]:
        return [BoundedProbe("gpu", 0.01, self._hang)]

    def _hang(self) -> list[Finding]:
        self.is_over.wait(60.0)
        return []

    def used_mib(self) -> Mapping[str, float]:
        self.asked_for_memory = True
        return {}


def said(launcher: socket.socket) -> list[object]:
    try:
        return [message["op"] for message in Decoder().feed(launcher.recv(1 << 16))]
    except BlockingIOError:
        return []


def test_what_breaks_is_told_once_until_the_launcher_has_asked(
    launcher: tuple[HostHealth, socket.socket],
) -> None:
    """Under the ranks of the next cycle it is news again, though nobody saw it well meanwhile."""
    health, ours = launcher
    health._look()
    assert said(ours) == ["noticed"]
    health._look()
    assert said(ours) == []
    health._check(1, after_ranks=True)
    assert said(ours) == ["answered"]
    health._look()
    assert said(ours) == ["noticed"]


def test_a_driver_that_hangs_is_not_asked_for_memory(
    launcher: tuple[HostHealth, socket.socket],
) -> None:
    """A restart would wait for it as long as for memory that is not freed."""
    health, _ = launcher
    health._checks = driver = HangsInItsDriver()  # type: ignore[assignment]
    health._look()
    health._check(1, after_ranks=True)
    assert not driver.asked_for_memory
    looking = [thread for thread in threading.enumerate() if thread.name == "gpu"]
    driver.is_over.set()
    for thread in looking:
        thread.join(30.0)
    health._check(2, after_ranks=True)
    assert driver.asked_for_memory
