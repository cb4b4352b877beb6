"""What is done about one verdict: said to the launcher, and written down."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core import monitor
from holdfast.core.hang import SECTION, Limits, Overdue
from holdfast.core.learned import TrippedLimits
from holdfast.fault_tolerance.incident_case import Case
from holdfast.host import clock, proc
from holdfast.host.staging import reserve

OVERDUE = Overdue(SECTION, "step", 5.0, 10.0)


class Said:
    """Reports, kept."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.logged: list[tuple[str, str]] = []

    def tell(self, message: Any) -> None:
        self.told.append(message)

    def log(self, level: str, text: str) -> None:
        self.logged.append((level, text))

    def event(self, kind: str, fields: Any) -> None:
        """Not looked at."""


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def cycle(tmp_path: Path) -> dict[str, Any]:
    staged, run_dir = tmp_path / "staged", tmp_path / "run"
    return {
        "cycle": 2,
        "room": str(tmp_path / "r1.room"),
        "dump": None,
        "incidents": f"{staged}/incidents",
        "staged": str(staged),
        "run_dir": str(run_dir),
    }


@pytest.fixture
def case(said: Said, cycle: dict[str, Any]) -> Iterator[Case]:
    """About ourselves: a process that is there."""
    reserve(cycle["room"])
    view = SimpleNamespace(snapshot=lambda: None, dump_signal=0, iteration=7, limits=Limits)
    watch = monitor.Watch(9, 15.0, TrippedLimits())
    process = proc.Process(os.getpid())
    with select.epoll() as epoll:
        identity = {"rank": 3, "local_rank": 1, "node": "n0"}
        arguments: Any = (OVERDUE, process, view, identity, cycle, watch, said, epoll)
        yield Case(*arguments, clock.monotonic())
    process.close()


def test_the_launcher_is_told_that_sigkill_does_not_end_a_rank(case: Case, said: Said) -> None:
    """With where in the kernel it is; the launcher knows what follows."""
    case.report_stuck()

    stuck = said.told[-1]
    assert stuck["place"].startswith("state ")
    assert {key: stuck[key] for key in ("op", "cycle", "rank", "pid", "since_s")} == {
        "op": "stuck", "cycle": 2, "rank": 3, "pid": os.getpid(), "since_s": monitor.UNKILLABLE_S,
    }  # fmt: skip
    assert said.logged[-1][0] == "error"
    assert "does not die of SIGKILL: state " in said.logged[-1][1]


def test_a_verdict_begins_by_making_room_for_its_evidence(
    case: Case, cycle: dict[str, Any]
) -> None:
    """Ranks may have filled the memory since the cycle began."""
    assert not Path(cycle["room"]).exists()

    case.conclude(clock.monotonic())

    assert (Path(cycle["incidents"]) / "cycle2_rank3.json").exists()
