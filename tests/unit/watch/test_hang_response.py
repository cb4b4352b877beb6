"""What is done about one verdict: said to the launcher, and written down."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base import clock
from holdfast.base.processes import proc
from holdfast.base.pure import kill_ladder
from holdfast.evidence import collector, sources
from holdfast.evidence.proc_sample import APART_S
from holdfast.evidence.pure import incident
from holdfast.evidence.pure.evidence import Verdict
from holdfast.evidence.staging import reserve
from holdfast.page.pure.clocks import SECTION, RunningClock, Timeouts
from holdfast.watch.monitor import hang_response
from holdfast.watch.monitor.hang_response import HangResponse
from holdfast.watch.monitor.looks import Looks
from holdfast.watch.monitor.rank_sessions import RankSession
from holdfast.watch.pure import monitor
from holdfast.watch.pure import monitor_messages as messages
from holdfast.watch.pure.learned import TrippedLimits
from holdfast.watch.pure.monitor_messages import Closed, Cycle, Evidence, Signalled, Unkillable

OVERDUE = RunningClock(SECTION, "step", 5.0, 10.0)
BOUND_S = 60.0
"""For the evidence: no test is so slow that it is over."""


class Said:
    """Reports, kept."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.logged: list[tuple[str, str]] = []

    def send(self, message: Any) -> None:
        self.told.append(message)

    def log(self, level: str, text: str) -> None:
        self.logged.append((level, text))

    def event(self, kind: str, fields: Any) -> None:
        """Not looked at."""


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def cycle(tmp_path: Path) -> Cycle:
    staged, run_dir = tmp_path / "staged", tmp_path / "run"
    return Cycle(
        2,
        page=None,
        incidents=f"{staged}/incidents",
        staged=str(staged),
        run_dir=str(run_dir),
        room=str(tmp_path / "r1.room"),
    )


@contextmanager
def verdict(said: Said, cycle: Cycle, overdue: RunningClock, **page: Any) -> Iterator[HangResponse]:
    """About ourselves: a process that is there."""
    shown = {"snapshot": lambda: None, "dump_signal": 0, "iteration": 7, "limits": Timeouts}
    view = SimpleNamespace(**{**shown, **page})
    watch = monitor.Watch(9, 15.0, TrippedLimits())
    process = proc.Process(os.getpid())
    config = messages.ConfigureMonitor({}, 1, None, 15.0, "n0")
    reports: Any = said
    now, every_look = clock.monotonic(), Looks(reports)
    arguments: Any = (
        overdue,
        RankSession(3, process, None),
        view,
        config,
        cycle,
        watch,
        said,
    )
    yield HangResponse(*arguments, every_look, now, now + BOUND_S)
    process.close()


@pytest.fixture
def case(said: Said, cycle: Cycle) -> Iterator[HangResponse]:
    """A section that is overdue, and room for the evidence."""
    reserve(cycle.room)
    with verdict(said, cycle, OVERDUE) as case:
        yield case


def test_the_launcher_is_told_that_sigkill_does_not_end_a_rank(
    case: HangResponse, said: Said
) -> None:
    """With where in the kernel it is; the launcher knows what follows."""
    case.report_stuck()

    stuck = said.told[-1]
    assert stuck.place.startswith("state ")
    assert stuck == Unkillable(2, 3, os.getpid(), kill_ladder.UNKILLABLE_S, stuck.place)
    assert said.logged[-1][0] == "error"
    assert "does not die of SIGKILL: state " in said.logged[-1][1]


def test_a_verdict_begins_by_making_room_for_its_evidence(case: HangResponse, cycle: Cycle) -> None:
    """Ranks may have filled the memory since the cycle began."""
    assert not Path(cycle.room).exists()

    case.conclude(clock.monotonic())

    assert (Path(cycle.incidents) / "cycle2_rank3.json").exists()


def carry_out(case: HangResponse) -> None:
    """All of a verdict that ends well."""
    case.conclude(clock.monotonic())
    for signum in (kill_ladder.SIGCONT, kill_ladder.SIGKILL):
        case.note_signal(monitor.SendSignal(signum, monitor.HUNG), was_sent=True)
    case.close("died", clock.monotonic())


@pytest.mark.parametrize("lost", ["", "the verdict", "the file"])
def test_a_monitor_whose_launcher_names_the_culprit_does_not_name_the_victims(
    said: Said, cycle: Cycle, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Its warning is for people who have no incident to read, or no file with the stacks."""
    if lost == "the file":
        Path(cycle.incidents or "").parent.write_text("no folder")
    monkeypatch.setattr(sources, "StackDump", Dump().ask)
    verdict_on_all = messages.Proceed(1, 2, Verdict((0,), reason="rank 0 waits for a lock"))
    with verdict(said, cycle, OVERDUE) as case:
        if lost != "the verdict":
            case._looks.go_on(verdict_on_all, clock.monotonic())
        case.step(clock.monotonic() + APART_S)
        carry_out(case)

    is_what = "is hung" if lost == "the verdict" else "waits for rank 0"
    [level] = [level for level, text in said.logged if is_what in text]
    assert level == ("warning" if lost else "debug")
    assert any(isinstance(message, Signalled) for message in said.told), "the launcher knows"


def test_a_section_whose_name_is_not_utf8_has_its_evidence(said: Said, cycle: Cycle) -> None:
    """Bytes on a command line come as lone surrogates; both files show them escaped."""
    overdue = RunningClock(SECTION, "st\udcffep", 5.0, 10.0)
    with verdict(said, Cycle(**{**vars(cycle), "run_dir": "/runs/\udcfe"}), overdue) as case:
        carry_out(case)

    assert [text for level, text in said.logged if level == "error"] == []
    written = Path(cycle.incidents) / "cycle2_rank3.json"
    assert json.loads(written.read_text())["name"] == "st\udcffep"
    assert "Section 'st\\udcffep' has been open" in written.with_suffix(".txt").read_text()
    assert said.told[-1] == Closed(2)


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("not foreseen")


class Dump:
    """Stacks that are about to come, unless something else is said."""

    next_step_at = 0.0
    is_done = False
    state = why_not = None
    was_stopped = False
    path = "/stacks.txt"

    def __init__(self, **changes: Any) -> None:
        self.closed = 0
        vars(self).update(changes)

    def ask(self, process: proc.Process, *_: Any, **__: Any) -> Any:
        self.process = process
        return self

    def step(self, now: float) -> bool:
        return False

    def text(self) -> str:
        return "Thread 1"

    def close(self) -> None:
        self.closed += 1
        self.is_done = True


@pytest.mark.parametrize("name", ["step", "text", "close", "told"])
def test_stacks_that_fail_on_their_way_keep_nobody_waiting(
    said: Said, cycle: Cycle, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whatever their file, or a full disk, comes up with."""
    dump = Dump(**{name: fail})
    monkeypatch.setattr(sources, "StackDump", dump.ask)
    if name == "told":
        monkeypatch.setattr(messages, "Evidence", fail)

    with verdict(said, cycle, OVERDUE) as case:
        case.step(clock.monotonic() + APART_S)
        assert case.has_all_evidence == (name == "step"), "there is nothing more to wait for"
        carry_out(case)

    assert "not foreseen" in next(text for level, text in said.logged if level == "error")
    assert [type(message) for message in said.told[-2:]] == [Signalled, Closed]
    assert dump.closed or name == "close"


def test_a_second_verdict_on_a_rank_has_evidence_of_its_own(
    said: Said, cycle: Cycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one was dropped: a layer inside the rank restarted it in place."""
    shown = iter(["Thread 1: before", "Thread 1: now"])
    monkeypatch.setattr(sources, "StackDump", Dump(text=lambda: next(shown)).ask)
    with verdict(said, cycle, OVERDUE) as case:
        for _ in range(2):
            case.step(clock.monotonic() + APART_S)
            case.conclude(clock.monotonic())
            case.close(monitor.ARMED_ANEW, clock.monotonic())
            looks = case._looks
            again: Any = (
                OVERDUE,
                case._session,
                case._view,
                case._config,
                cycle,
                case._watch,
                said,
            )
            now = clock.monotonic()
            case = HangResponse(*again, looks, now, now + BOUND_S)  # noqa: PLW2901

    written = [Path(cycle.incidents) / f"cycle2_rank3{which}.json" for which in ("", "_2")]
    stacks = [json.loads(path.read_text())["stacks_text"] for path in written]
    assert stacks == ["Thread 1: before", "Thread 1: now"]


def test_a_verdict_without_stacks_says_why(
    said: Said, cycle: Cycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason that is known is the one that is reported."""
    monkeypatch.setattr(sources, "StackDump", fail)

    with verdict(said, cycle, OVERDUE) as case:
        case.step(clock.monotonic() + APART_S)
        carry_out(case)

    assert said.told[1].why_not.endswith("its stacks: RuntimeError: not foreseen")


@pytest.mark.parametrize(
    ("page", "module", "name", "part"),
    [
        ({"snapshot": fail}, None, "", "cannot read what the rank shows of itself"),
        ({"limits": fail}, None, "", "cannot read what the rank shows of itself"),
        ({}, collector, "RankCollector", "cannot ask the rank for its stacks"),
        ({}, sources, "StackDump", "cannot look for its stacks"),
        ({}, hang_response, "write_incident", "cannot write the incident"),
        ({}, hang_response, "_fresh_path", "cannot write the incident"),
        ({}, incident, "report", "cannot write the incident"),
        ({}, incident, "advice", "cannot report the signal"),
    ],
)
def test_whatever_fails_leaves_the_rest_of_a_verdict_as_it_is(
    said: Said,
    cycle: Cycle,
    monkeypatch: pytest.MonkeyPatch,
    page: dict[str, Any],
    module: Any,
    name: str,
    part: str,
) -> None:
    """K-2, the other half: a reason is stated, and the monitor lives to send the signals."""
    if module is not None:
        monkeypatch.setattr(module, name, fail)

    with verdict(said, cycle, OVERDUE, **page) as case:
        case.step(clock.monotonic() + APART_S)
        carry_out(case)

    assert any(part in text for level, text in said.logged if level == "error")
    kinds = [messages.Overdue, Evidence, Signalled, Closed]
    assert [type(message) for message in said.told] == kinds
    assert said.told[1].why_not
