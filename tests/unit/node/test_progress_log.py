"""What the launcher writes down of its ranks' progress, and when it looks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.base.pure.numbering import Cycle, LocalRank
from holdfast.events.pure import schema
from holdfast.events.pure.schema import Event
from holdfast.evidence.pure.evidence import Verdict
from holdfast.node.part import CycleStarted
from holdfast.node.processes.pages import Pages
from holdfast.node.processes.worker_env import unplaced
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.node.pure.rank_life import MonitorSaid
from holdfast.node.records import progress_log
from holdfast.node.records.progress_log import ProgressLog
from holdfast.page.page import map_page
from holdfast.page.pure import page as layout
from holdfast.page.pure.page_view import ClosedSection
from holdfast.testing import VirtualClock
from holdfast.watch.pure.learned import NEVER
from holdfast.watch.pure.monitor_messages import WatchBegan


class Log:
    """An events file in memory, on a virtual clock."""

    def __init__(self, folder: Path, clock: VirtualClock) -> None:
        self.events = []
        self.on_event = None
        self._clock = clock
        self.pages = Pages(str(folder), lambda: "", lambda _: None)
        self.progress = ProgressLog(self, self.pages)

    def write(self, body: schema.Body, cycle: int) -> None:
        event = Event(self._clock.now, cycle, body)
        self.events.append(event)
        self.on_event(event)

    def start(self, cycle: int, *, by_steps: bool = False) -> None:
        """A cycle of one rank, up to its report."""
        self.write(schema.CycleJoined(), cycle)
        self.write(schema.RankStarted(0, 0), cycle)
        self.ranks_started(cycle)
        path = self.pages.make(Cycle(cycle), LocalRank(0))
        page = map_page(path, writable=True)
        page.store_names(["step", "checkpoint"])
        page.words[layout.LIMITS_VERSION] = 2.0
        page.words[layout.LONGEST_INITIAL] = -1.0
        page.words[layout.ARMED_AT] = self._clock.now
        self.page = page
        self.progress.on_event(MonitorSaid(0, WatchBegan(cycle, by_steps)))

    def ranks_started(self, cycle: int) -> None:
        place = unplaced(0, 1)
        rank = SimpleNamespace(place=type(place)(**{**vars(place), "cycle": Cycle(cycle)}))
        self.progress.on_event(CycleStarted(SimpleNamespace(cycle=cycle, ranks={0: rank})))

    def step(self, seconds: float) -> None:
        """The rank has closed the section."""
        slot = layout.slot(0)
        self.page.words[slot + layout.FIRST_AT] = self._clock.now - seconds
        self.page.words[slot + layout.TOTAL_S] = seconds
        self.page.words[slot + layout.TIMES] = 3.0
        self.page.words[slot + layout.LONGEST] = seconds
        self.page.words[slot + layout.CLOSED_AT] = self._clock.now

    def of(self, kind: type[schema.Body]) -> list[Event]:
        return [event for event in self.events if isinstance(event.body, kind)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    clock = VirtualClock()
    monkeypatch.setattr(progress_log.clock, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def log(tmp_path: Path, clock: VirtualClock) -> Log:
    log = Log(tmp_path, clock)
    log.write(schema.LauncherStarted(nproc=1), 0)
    return log


def test_a_rank_that_reports_in_is_written_down(log: Log, clock: VirtualClock) -> None:
    """With the sections that it may open."""
    clock.now = 5.0
    log.start(0)
    (armed,) = log.of(schema.RankArmed)
    assert armed.body == schema.RankArmed(0, 0, 5.0, ("step", "checkpoint"))


def test_a_job_says_once_that_steps_count_as_heartbeats(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """In the launcher's log: the loggers and the stderr of such a script are its own."""
    caplog.set_level("INFO", "holdfast")
    log.start(0)
    assert caplog.text == ""
    log.start(1, by_steps=True)
    log.start(2, by_steps=True)
    assert caplog.text.count("the steps of its optimizer count as heartbeats") == 1


def test_looks_become_rarer_with_the_age_of_the_cycle(log: Log, clock: VirtualClock) -> None:
    """A month of training makes less than a thousand lines."""
    clock.now = 1.0
    log.start(0)
    looks = 0
    while (at := log.progress.next_deadline()) < 30 * 86400.0:
        clock.now = at
        log.progress.on_time()
        looks += 1
    assert log.of(schema.PagesRead)[1].t == 21.0
    assert 500 < looks == len(log.of(schema.PagesRead)) < 1000


def test_a_cycle_that_is_over_is_looked_at_once_more_later(log: Log, clock: VirtualClock) -> None:
    """Not while the next one starts; its page's file is gone by then."""
    log.start(0)
    clock.now = 4.0
    log.step(3.0)
    log.pages.remove(Cycle(0), LocalRank(0))
    clock.now = 5.0
    log.write(schema.CycleStopped(), 0)
    log.start(1)
    assert log.of(schema.PagesRead) == []
    clock.now = log.progress.next_deadline()
    assert clock.now == 6.0
    log.progress.on_time()
    last, now = log.of(schema.PagesRead)
    assert (last.cycle, last.body.final, now.cycle, now.body.final) == (0, True, 1, False)
    assert last.body.ranks["0"].sections == {"step": ClosedSection(3, 3.0, 3.0, 1.0, 4.0)}
    log.progress.last_look()
    assert [event.cycle for event in log.of(schema.PagesRead) if event.body.final] == [0, 1]


@pytest.mark.parametrize(("word", "gap_s"), [(NEVER, None), (2.5, 2.5)])
def test_a_look_has_the_longest_pause_between_heartbeats(log: Log, word: float, gap_s) -> None:
    """There is none before the second one."""
    log.start(0)
    log.page.words[layout.LONGEST_GAP] = word
    log.progress.last_look()
    (look,) = log.of(schema.PagesRead)
    assert look.body.ranks["0"].longest_gap_s == gap_s


def test_the_two_lines_are_of_these_events(log: Log, clock: VirtualClock) -> None:
    """The last look is part of them."""
    clock.now = 2.0
    log.start(0)
    clock.now = 10.0
    log.step(8.0)
    log.write(schema.RankExited(0, 0, 0), 0)
    log.write(schema.CycleStopped(), 0)
    log.progress.last_look()
    log.write(schema.JobSucceeded(), 0)
    assert log.progress.two_lines()[0].startswith("goodput 80.0 %: 8 s of 10 s were productive")


def test_a_job_of_which_nothing_is_known_has_no_lines(log: Log, clock: VirtualClock) -> None:
    """It ran once, and no rank has reported progress."""
    log.write(schema.CycleJoined(), 0)
    log.ranks_started(0)
    clock.now = 9.0
    log.write(schema.JobSucceeded(), 0)
    assert log.progress.next_deadline() is None
    assert log.progress.two_lines() == []


def test_a_job_of_which_nothing_is_known_keeps_the_events_of_no_more_than_a_second(
    log: Log, clock: VirtualClock
) -> None:
    """However often it restarts."""
    for cycle in range(50):
        log.write(schema.CycleJoined(), cycle)
        log.ranks_started(cycle)
        clock.now += 2.0
        log.progress.on_time()
        log.write(schema.CycleStopped(), cycle)
        assert len(log.progress._not_folded) <= 4


def test_the_pages_are_read_when_a_verdict_has_come_once(log: Log) -> None:
    """Before a stopped rank is woken for its stacks, and reports more."""
    log.start(0)
    before = len(log.events)
    for verdict in (Verdict(is_stall=True), Verdict((0,)), Verdict((0,))):
        incident = 1 if verdict.is_stall else 2
        log.progress.on_event(IncidentOver(incident, 0, (0,), verdict, {}, ""))

    (look,) = log.events[before:]
    assert (look.body.verdict, look.body.final) == (True, False)
