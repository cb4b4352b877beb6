"""Which look at a rank serves an incident: one that was begun for it, at the process that is there.

The looks themselves: ``tests/unit/evidence/test_rank_collector.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.processes import proc
from holdfast.evidence.collector import RankCollector
from holdfast.evidence.pure.evidence import Verdict
from holdfast.page.pure.clocks import PAUSE, STEP, RunningClock
from holdfast.watch.monitor.looks import Looks
from holdfast.watch.monitor.rank_sessions import RankSession
from holdfast.watch.pure.monitor_messages import JOINS_S, CollectEvidence, Cycle, Proceed
from tests.processes import bystander

SEEN: Any = SimpleNamespace(dump_signal=0)


@pytest.fixture
def looks() -> Looks:
    reports: Any = SimpleNamespace(send=lambda _: None, log=lambda *_: None)
    return Looks(reports)


@pytest.fixture
def seats() -> Iterator[tuple[RankSession, RankSession]]:
    """Of the rank, and of a process that has its place later."""
    with bystander() as other:
        both = (
            RankSession(3, proc.Process(os.getpid()), None),
            RankSession(3, proc.Process(other.pid), None),
        )
        yield both
        for session in both:
            session.process.close()


def begin(looks: Looks, session: RankSession, at: float, *, is_gentle: bool = False) -> Any:
    """For a verdict of the rank's own monitor."""
    how: Any = {"wakes_stopped": False, "is_gentle": is_gentle}
    return looks.begin(session, SEEN, None, at, 1.0, **how)


def ask(
    looks: Looks, incident: int, session: RankSession | None, at: float, *, is_gentle: bool = False
) -> Any:
    """For an incident of the job; the look that serves it."""
    asked = CollectEvidence(incident, 0, 3, os.getpid(), 0.5, is_gentle)
    looks.ask(asked, session, SEEN, None, at)
    return looks.look


def test_one_look_serves_a_verdict_and_the_incident_that_it_opens(
    looks: Looks, seats: tuple[RankSession, RankSession]
) -> None:
    """Also where the rank is gone when the launcher asks, and for what follows within seconds."""
    first = begin(looks, seats[0], 100.0)
    looks.case_over(100.1)

    assert ask(looks, 1, seats[0], 100.2) is first
    assert ask(looks, 1, None, 100.3) is first
    looks.go_on(Proceed(1, 0, Verdict()), 100.4)
    assert begin(looks, seats[0], 100.4 + JOINS_S - 0.1) is first


@pytest.mark.parametrize("way", ["begin", "ask"])
def test_a_look_at_a_process_says_nothing_of_the_one_in_its_place(
    looks: Looks, seats: tuple[RankSession, RankSession], way: str
) -> None:
    """A rank may be a shell that runs one program after the other."""
    first = begin(looks, seats[0], 100.0)

    second = begin(looks, seats[1], 100.1) if way == "begin" else ask(looks, 1, seats[1], 100.1)

    assert second is not first
    assert second.is_at(seats[1].process)


@pytest.mark.parametrize("way", ["begin", "ask"])
def test_a_look_of_a_verdict_that_is_over_does_not_serve_a_later_incident(
    looks: Looks, seats: tuple[RankSession, RankSession], way: str
) -> None:
    """The launcher did not ask: the rank was armed anew before it could."""
    first = begin(looks, seats[0], 100.0)
    looks.case_over(100.1)

    later = 100.1 + JOINS_S
    second = begin(looks, seats[0], later) if way == "begin" else ask(looks, 1, seats[0], later)

    assert second is not first


@pytest.mark.parametrize("has_reported", [False, True])
def test_a_look_for_a_line_of_the_log_is_begun_again_when_a_timeout_runs_out(
    looks: Looks, seats: tuple[RankSession, RankSession], has_reported: bool
) -> None:
    """For the same incident, unless that has its digest; the next one is served by it, too."""
    gentle = ask(looks, 1, seats[0], 100.0, is_gentle=True)
    looks._has_reported = has_reported

    second = begin(looks, seats[0], 100.1)

    assert second is not gentle
    assert (looks.asked is None) == has_reported
    looks.asked = None  # the verdict of the first was not for this rank
    assert ask(looks, 2, seats[0], 100.2) is second
    assert begin(looks, seats[0], 100.3, is_gentle=True) is second
    assert not looks.is_gentle


def test_a_pause_that_begins_just_before_an_incident_does_not_hide_stacks_from_it(
    looks: Looks, seats: tuple[RankSession, RankSession]
) -> None:
    first = begin(looks, seats[0], 100.0, is_gentle=True)
    assert ask(looks, 1, seats[0], 100.1, is_gentle=True) is first
    looks.forget()
    first = begin(looks, seats[0], 100.0, is_gentle=True)
    second = ask(looks, 1, seats[0], 100.1)
    assert second is not first
    assert not looks.is_gentle


@pytest.mark.parametrize(
    ("clock", "is_gentle", "is_written"),
    [("", False, True), ("", True, False), (PAUSE, False, True), (STEP, False, False)],
)
def test_a_rank_that_goes_on_has_its_text_in_the_incident_unless_that_is_of_a_pause(
    looks: Looks,
    seats: tuple[RankSession, RankSession],
    monkeypatch: pytest.MonkeyPatch,
    clock: str,
    is_gentle: bool,
    is_written: bool,
) -> None:
    """Between two sections it may begin to pause at the very moment when others time out."""
    written: list[Any] = []
    monkeypatch.setattr(looks, "_write", lambda *of: written.append(of))
    monkeypatch.setattr(RankCollector, "is_done", True)
    ask(looks, 1, seats[0], 100.0, is_gentle=is_gentle)
    overdue = RunningClock(clock, None, 40.0, 60.0) if clock else None
    looks.report({"node": "n", "local_rank": 0, "pid": 1}, None, overdue, Cycle(0, None), 100.1)
    assert bool(written) == is_written


def test_a_rank_that_was_stopped_has_a_share_of_the_time_of_evidence_for_its_stacks(
    looks: Looks, seats: tuple[RankSession, RankSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the verdict on: a busy machine takes longer, and whoever knows it allows for that."""
    woken: list[tuple[float, float]] = []
    monkeypatch.setattr(RankCollector, "wake", lambda _, *times: woken.append(times))
    begin(looks, seats[0], 100.0)
    looks.wake_s = 4.0

    looks.go_on(Proceed(1, 0, Verdict()), 110.0)

    assert woken == [(110.0, 114.0)]


def test_a_rank_that_never_called_is_held_until_its_look_is_forgotten(looks: Looks) -> None:
    """Its pid may be another's before the stacks of it are asked for."""
    ask(looks, 1, None, 100.0)
    held = looks._process
    assert held is not None
    assert held.fileno() >= 0

    looks.forget()

    assert held.fileno() < 0
