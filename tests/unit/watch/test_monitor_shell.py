"""The shell of a rank monitor: a hung rank is ended, whatever becomes of its evidence."""

from __future__ import annotations

import math
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.processes import proc
from holdfast.base.pure import codec
from holdfast.base.pure.kill_ladder import EVIDENCE_S
from holdfast.evidence import collector
from holdfast.evidence.pure.evidence import Verdict
from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.net import endpoint
from holdfast.net.pure.frames import encode
from holdfast.page import page, stall_file
from holdfast.page.pure import page as layout
from holdfast.page.pure.clocks import PAUSE
from holdfast.watch.monitor import hang_response
from holdfast.watch.monitor.monitor_main import Monitor
from holdfast.watch.monitor.rank_sessions import RankSession
from holdfast.watch.pure.monitor_messages import (
    CollectEvidence,
    ConfigureMonitor,
    Cycle,
    Proceed,
)
from holdfast.watch.pure.rank_messages import CountCollectives, Hello

BOUND_S = 30.0


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Monitor, subprocess.Popen[bytes]]]:
    """A monitor in this process, and a rank whose first heartbeat is overdue."""
    with (
        endpoint.listen(f"{tmp_path}/s") as listener,
        subprocess.Popen(["/bin/sleep", "1000"]) as rank,
    ):
        launcher, control = socket.socketpair()
        shell = Monitor(listener, control)
        path = f"{tmp_path}/c0_r0.page"
        page.create_page(path, 0)
        shell._configure(
            ConfigureMonitor(
                FaultToleranceConfig(initial_rank_heartbeat_timeout=1.0).to_wire(),
                local_rank=0,
                marker=None,
                grace_s=15.0,
                node="n0",
            )
        )
        shell._begin_cycle(Cycle(0, path))
        words = page.map_page(path, writable=True).words
        words[layout.LIMIT_INITIAL] = 1.0
        words[layout.LIMIT_HEARTBEAT] = words[layout.LIMIT_OUTSIDE] = float("inf")
        words[layout.LIMITS_VERSION] = 2.0
        words[layout.ARMED_AT] = time.monotonic() - 2.0
        shell._sessions.take(RankSession(3, proc.Process(rank.pid), None))
        shell._arm()
        yield shell, rank
        rank.kill()
        shell._sessions.release("died")
        for end in (launcher, control):
            end.close()


def in_the_end(shell: Monitor) -> None:
    """All that happens until the bound of the evidence."""
    now = time.monotonic()
    for at in (now, now + EVIDENCE_S, now + EVIDENCE_S):
        shell._tick(at)


@pytest.mark.parametrize("name", ["__init__", "conclude", "note_signal", "step"])
def test_a_hung_rank_is_ended_even_if_nothing_can_be_done_about_its_evidence(
    watched: tuple[Monitor, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A monitor that dies of it is replaced by one that dies of it, until nobody watches."""
    shell, rank = watched
    said: list[str] = []

    def fail(*_: Any, **__: Any) -> None:
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")

    monkeypatch.setattr(hang_response.HangResponse, name, fail)
    monkeypatch.setattr(shell._reports, "log", lambda level, text: said.append(f"{level}: {text}"))

    in_the_end(shell)

    assert rank.wait(BOUND_S) == -signal.SIGKILL
    assert name == "step" or any("surrogates not allowed" in text for text in said)


@pytest.mark.parametrize("is_over", [True, False])
def test_a_page_that_is_gone_is_an_error_unless_its_cycle_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """Ranks can fail faster than a monitor imports what it needs."""
    launcher, control = socket.socketpair()
    with endpoint.listen(f"{tmp_path}/s") as listener, launcher, control:
        shell = Monitor(listener, control)
        page.create_page(f"{tmp_path}/c1_r0.page", 1)
        said: list[str] = []
        monkeypatch.setattr(shell._reports, "log", lambda _, text: said.append(text))
        configure = shell._configure

        def configure_slowly(config: ConfigureMonitor) -> None:
            configure(config)
            if is_over:
                launcher.sendall(encode(codec.encode(Cycle(1, f"{tmp_path}/c1_r0.page"))))

        monkeypatch.setattr(shell, "_configure", configure_slowly)
        timeouts = FaultToleranceConfig().to_wire()
        for message in (
            ConfigureMonitor(timeouts, 0, None, 15.0, "n0"),
            Cycle(0, f"{tmp_path}/c0_r0.page"),
        ):
            launcher.sendall(encode(codec.encode(message)))

        shell.catch_up()

        assert shell._cycle is not None
        assert shell._cycle.cycle == is_over
        assert any("cannot watch local rank 0" in text for text in said) != is_over


@pytest.mark.parametrize("name", ["__init__", "step", "close"])
def test_a_look_that_cannot_be_had_ends_no_monitor(
    watched: tuple[Monitor, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The launcher asks each successor again, so all of them would die of it."""
    shell, rank = watched
    said: list[str] = []
    monkeypatch.setattr(shell._reports, "log", lambda level, text: said.append(text))
    monkeypatch.setattr(collector.RankCollector, name, fail)

    shell._look_now(CollectEvidence(1, 0, 3, rank.pid, 0.5))
    shell._step_evidence(time.monotonic() + 1.0)
    shell._sessions.release("died")

    assert all("the evidence of a rank is incomplete: RuntimeError" in text for text in said)
    assert said


def fail(*_: Any, **__: Any) -> None:
    """As nobody has foreseen."""
    raise RuntimeError("not foreseen")


def test_each_process_in_the_seat_is_asked_for_its_collectives(
    watched: tuple[Monitor, subprocess.Popen[bytes]],
) -> None:
    """The one before may have ended before it answered."""
    shell, _ = watched
    session = shell._sessions.session
    asked: list[Any] = []
    assert session is not None
    helper: Any = SimpleNamespace(send=asked.append)
    caller: Any = SimpleNamespace(send=lambda _: None, hello=Hello(3, 1))
    session.helper = helper

    for is_new in (False, False, True):
        if is_new:
            shell.accept(caller, session, is_new=True)
        shell._look_at_state(time.monotonic(), asks=True)
    session.helper = None

    assert asked == [CountCollectives()] * 2


def test_the_verdict_on_a_pause_is_none_on_a_rank_whose_timeout_has_run_out_meanwhile(
    watched: tuple[Monitor, subprocess.Popen[bytes]],
) -> None:
    """Its own comes next."""
    shell, _ = watched
    shell._config = shell._config.but(awaits_verdict=True)
    shell._look_now(CollectEvidence(1, 0, 3, 1, 0.5, is_gentle=True))
    assert shell._looks.is_gentle
    shell._tick(time.monotonic())
    assert shell._case is not None
    assert not shell._looks.is_gentle
    proceeds = [Proceed(1, 0, Verdict(is_pause=True)), Proceed(2, 0, Verdict())]
    for message, verdict in zip(proceeds, (None, proceeds[1]), strict=True):
        shell._from_launcher.append(codec.encode(message))
        shell._handle_messages()
        assert shell._looks.verdict == verdict


def test_an_incident_has_evidence_of_a_rank_that_began_to_pause_just_before(
    watched: tuple[Monitor, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """The look for a line of the log gives way to one with stacks."""
    shell, rank = watched
    shell._config = shell._config.but(awaits_verdict=True)
    words, now = page.map_page(f"{tmp_path}/c0_r0.page", writable=True).words, time.monotonic()
    words[layout.LIMIT_INITIAL] = math.inf
    words[layout.LIMITS_VERSION] = 4.0
    words[layout.STEPS], words[layout.HEARTBEAT_AT] = 5.0, now - 70.0
    words[layout.ARMED_AT] = now - 100.0
    shell._tick(now)
    assert shell._case is not None
    assert shell._case.overdue.clock == PAUSE
    assert shell._looks.is_gentle
    shell._look_now(CollectEvidence(1, 0, 3, rank.pid, 0.5))
    assert not shell._looks.is_gentle
    for at in (now, now + 0.2, now + 0.6):
        shell._tick(at)
    assert shell._looks._has_reported


def test_live_views_read_the_stall_timeout_that_is_in_force(
    watched: tuple[Monitor, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Of a rank that is watched by its optimizer's steps; not the one between heartbeats."""
    shell, _ = watched
    words, now = page.map_page(f"{tmp_path}/c0_r0.page", writable=True).words, time.monotonic()
    path = stall_file.path_beside(f"{tmp_path}/c0_r0.page", 0)
    words[layout.LIMIT_INITIAL] = words[layout.LIMIT_OUTSIDE] = math.inf
    words[layout.LIMIT_HEARTBEAT] = 2700.0
    words[layout.ARMED_AT] = words[layout.HEARTBEAT_AT] = now
    words[layout.LIMITS_VERSION] = 4.0
    shell._tick(now)
    assert stall_file.read(path, 0) is None
    words[layout.STEPS] = 5.0
    shell._tick(now)
    assert stall_file.read(path, 0) == (now, FaultToleranceConfig().auto_heartbeat_floor)
    assert stall_file.read(path, 1) is None, "of the cycle before"


@pytest.mark.parametrize("text", ["", "0 1", "a b c", "0 1 2 3", "\xff"])
def test_a_stall_file_with_other_contents_says_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r0.stall"
    path.write_text(text, encoding="latin-1")
    assert stall_file.read(str(path), 0) is None
    stall_file.write(str(tmp_path / "absent" / "r0.stall"), 0, 1.0, 2.0)
    stall_file.write(str(path), 0, 1.5, 600.0)
    assert stall_file.read(str(path), 0) == (1.5, 600.0)
