"""README's own example, watched for a week on a virtual clock, by the monitor's machine.

The command line and the training loop are those of README.md, word for word. The client, its
page, the configuration's way to the monitor and back, and the machine are the real ones.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast.fault_tolerance as ft
from holdfast.base.pure.kill_ladder import SIGKILL
from holdfast.fault_tolerance.config import FaultToleranceConfig, resolve
from holdfast.options.arguments import parse_args
from holdfast.page.page import Page
from holdfast.page.pure.clocks import INITIAL_HEARTBEAT, OUTSIDE_SECTIONS
from holdfast.page.pure.page_view import PageView
from holdfast.watch.monitor.monitor_main import sleep_s
from holdfast.watch.pure import monitor as machine
from holdfast.watch.pure.learned import LimitsInForce, TrippedLimits
from holdfast.watch.rank import rank_progress
from tests.unit.fake_monitor import FakeMonitor, rank_environment

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
WEEK_S = 7 * 86400.0
STEP_S = 30.0
UPTIMES_S = {"just booted": 1.0, "up for a year": 3e7, "up for 30 years": 1e9}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def readmes_arguments() -> list[str]:
    """Of the one ``ft_launcher`` command in README.md."""
    [command] = [block for block in blocks("sh") if block.startswith("ft_launcher ")]
    return shlex.split(command.replace("\\\n", " "))[1:]


def readmes_loop() -> str:
    [code] = [block for block in blocks("python") if "ft.client()" in block]
    return code


class Hung(Exception):  # noqa: N818 - a verdict
    """The machine wants evidence of a clock that ran out."""


class Watched:
    """One rank under one monitor; time passes where the rank says so.

    Attributes:
        now: Of the virtual clock, which is the rank's and the monitor's.
    """

    def __init__(self, monitor: FakeMonitor, cfg: dict[str, Any], booted_at: float) -> None:
        self.now = booted_at
        self.limits = LimitsInForce(tripped := TrippedLimits())
        self.limits.configure(cfg)
        monitor.cfg = self.limits.welcome(cfg)[0]
        self._path = monitor
        self._page: Page | None = None
        self._watch = machine.Watch(SIGKILL, 15.0, tripped)
        self.looks = 0

    def pass_time(self, seconds: float) -> None:
        """The monitor wakes when it wants to, and once more at the end."""
        until = self.now + seconds
        if self._page is None:
            self._page = self._path.page()
            self._view = PageView(self._page.words, self._page.names)
            self._look()
        while (wake_at := self._watch.next_deadline()) is not None and wake_at < until:
            slept = sleep_s(wake_at, self.now)
            assert slept is not None
            self.now = min(until, max(self.now + slept, wake_at) + 1e-4)
            self._look()
        self.now = until

    def _look(self) -> None:
        self.looks += 1
        for _ in range(3):
            looked = machine.PageRead(self._view.snapshot(), self._view.limits())
            effects = self._watch.handle(looked, self.now)
            for effect in effects:
                if isinstance(effect, machine.TakeEvidence):
                    overdue = effect.overdue
                    raise Hung(overdue.clock, overdue.name, round(overdue.age_s(self.now)))
            if machine.LookAgain() not in effects:
                return

    def close(self) -> None:
        if self._page is not None:
            self._page.close()


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watched]]:
    made: list[tuple[FakeMonitor, Watched]] = []

    def watch(cfg: FaultToleranceConfig, booted_at: float = 1e5) -> Watched:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        monitor = FakeMonitor(folder)
        watched = Watched(monitor, cfg.to_wire(), booted_at)
        made.append((monitor, watched))
        for name, value in rank_environment(monitor).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(rank_progress, "monotonic", lambda: watched.now)
        return watched

    yield watch
    for monitor, watched in made:
        watched.close()
        monitor.close()


def configured(*options: str) -> FaultToleranceConfig:
    return resolve(parse_args([*options, "train.py"], {})).config


def readmes_config() -> FaultToleranceConfig:
    return resolve(parse_args(readmes_arguments(), {})).config


def run_the_loop(watched: Watched, seconds: float) -> None:
    """README's python example, with batches for so long."""

    def train_one_step(_: object) -> None:
        watched.pass_time(STEP_S)

    names: dict[str, Any] = {
        "batches": range(int(seconds / STEP_S)),
        "train_one_step": train_one_step,
    }
    try:
        exec(compile(readmes_loop(), "README.md", "exec"), names)
    except Hung:
        with contextlib.suppress(ft.RankMonitorClientError):
            names["client"].shutdown_workload_monitoring()
        raise


@pytest.mark.parametrize("booted_at", UPTIMES_S.values(), ids=UPTIMES_S)
def test_readmes_example_lives_for_a_week(watch: Callable[..., Watched], booted_at: float) -> None:
    """It uses sections only. After an hour, the default limit of the first heartbeat killed it."""
    watched = watch(readmes_config(), booted_at)

    run_the_loop(watched, WEEK_S)

    assert watched.now == pytest.approx(booted_at + WEEK_S)
    assert watched.looks > WEEK_S / 3600, "nobody looked"


def test_readmes_example_is_still_watched_after_a_week(watch: Callable[..., Watched]) -> None:
    """Or the test above would show nothing."""
    watched = watch(readmes_config())
    client = ft.RankMonitorClient()
    client.init_workload_monitoring()
    client.start_section("step")
    client.end_section("step")
    watched.pass_time(WEEK_S)
    client.start_section("step")
    with pytest.raises(Hung) as caught:
        watched.pass_time(1000.0)

    assert caught.value.args == ("section", "step", 60)
    client.shutdown_workload_monitoring()


@pytest.mark.parametrize("given", ["command line", "file", "constructor"])
def test_an_initial_limit_that_was_given_always_applies(
    watch: Callable[..., Watched], tmp_path: Path, given: str
) -> None:
    """Also one that is what the default is; whoever gives it asks for heartbeats."""
    if given == "command line":
        words = readmes_arguments()
        config = resolve(
            parse_args(["--ft-initial-rank-heartbeat-timeout", "3600", *words], {})
        ).config
    elif given == "file":
        (tmp_path / "ft.yaml").write_text(
            "fault_tolerance: {initial_rank_heartbeat_timeout: 3600}", encoding="utf-8"
        )
        config = resolve(
            parse_args(["--ft-cfg-path", str(tmp_path / "ft.yaml"), *readmes_arguments()], {})
        ).config
    else:
        config = FaultToleranceConfig(
            initial_rank_heartbeat_timeout=3600.0, rank_section_timeouts={"step": 60.0}
        )
    watched = watch(config)

    with pytest.raises(Hung) as caught:
        run_the_loop(watched, WEEK_S)

    assert caught.value.args == (INITIAL_HEARTBEAT, None, 3600)


def heartbeats(client: Any, watched: Watched) -> None:
    client.send_heartbeat()
    watched.pass_time(STEP_S)


def sections(client: Any, watched: Watched) -> None:
    with client.section("step"):
        watched.pass_time(STEP_S)


def both(client: Any, watched: Watched) -> None:
    heartbeats(client, watched)
    sections(client, watched)


def unknown_sections(client: Any, watched: Watched) -> None:
    with client.section("not configured"):
        watched.pass_time(STEP_S)


def neither(_: Any, watched: Watched) -> None:
    watched.pass_time(STEP_S)


def restarts_in_place(client: Any, watched: Watched) -> None:
    """As the Wrapper does when it calls its function again."""
    client.shutdown_workload_monitoring()
    client.init_workload_monitoring()
    sections(client, watched)


@pytest.mark.parametrize(
    ("options", "does", "found"),
    [
        ([], heartbeats, None),
        ([], unknown_sections, None),
        ([], neither, (INITIAL_HEARTBEAT, None, 3600)),
        (["--ft-rank-section-timeouts=step:60"], both, None),
        (["--ft-rank-section-timeouts=step:60"], restarts_in_place, None),
        (["--ft-rank-section-timeouts=step:60"], heartbeats, None),
        (["--ft-rank-section-timeouts=step:null"], sections, None),
        (
            ["--ft-rank-section-timeouts=step:60", "--ft-rank-out-of-section-timeout=90"],
            sections,
            None,
        ),
        (
            ["--ft-rank-section-timeouts=step:60", "--ft-rank-out-of-section-timeout=90"],
            heartbeats,
            (OUTSIDE_SECTIONS, None, 90),
        ),
        (["--ft-rank-heartbeat-timeout=60", "--ft-rank-section-timeouts=step:60"], sections, None),
        (
            [
                "--ft-initial-rank-heartbeat-timeout=600",
                "--ft-section-ends-initial-timeout=true",
                "--ft-rank-section-timeouts=step:60",
            ],
            sections,
            None,
        ),
    ],
)
def test_who_is_killed_in_a_week(
    watch: Callable[..., Watched],
    options: list[str],
    does: types.FunctionType,
    found: tuple[Any, ...] | None,
) -> None:
    """Nobody who does what the options ask for; and what is asked for is said."""
    watched = watch(configured(*options))
    client = ft.RankMonitorClient()
    client.init_workload_monitoring()
    try:
        ends_at = watched.now + (WEEK_S / 50 if does is restarts_in_place else WEEK_S)
        verdict = None
        try:
            while watched.now < ends_at:
                does(client, watched)
        except Hung as hung:
            verdict = hung.args
        assert verdict == found
    finally:
        client.shutdown_workload_monitoring()
