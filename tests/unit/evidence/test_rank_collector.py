"""One look at a rank, step by step."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.base.processes import proc
from holdfast.evidence import proc_sample, sources
from holdfast.evidence.collector import RankCollector
from holdfast.evidence.proc_sample import APART_S
from holdfast.evidence.pure.evidence import Operations
from holdfast.evidence.pure.rank_digest import Sight, state_of
from holdfast.evidence.sources import LOCK_SWITCHES, SILENT_S, STACKS_S
from holdfast.evidence.stack_dump import StackDump
from tests.processes import bystander


@pytest.fixture
def look() -> Iterator[RankCollector]:
    """At ourselves, from 100.0 to 110.0; there are no stacks to be had."""
    asked: list[str] = []
    process = proc.Process(os.getpid())
    one = RankCollector(
        process,
        0,
        None,
        100.0,
        110.0,
        wakes_stopped=True,
        ask_helper=lambda: asked.append("where"),
        ask_stacks=lambda: asked.append("stacks"),
    )
    assert asked == ["where"]
    yield one
    process.close()


def test_an_answer_ends_the_look(look: RankCollector) -> None:
    assert not look.step(100.0)
    assert not look.step(100.0 + APART_S)
    look.helper.answered()
    look.helper.answered(Operations(recent=("0 gloo 1 barrier",)))

    assert look.step(100.1)
    assert (look.seen().is_asked, look.seen().is_alive) == (True, True)
    assert look.helper.operations.recent == ("0 gloo 1 barrier",)


def test_silence_is_waited_for_and_then_told(look: RankCollector) -> None:
    """A thread that sleeps for the interpreter's lock is not on a CPU."""
    look.step(100.0 + APART_S)
    assert not look.step(100.0 + SILENT_S - 0.01)

    assert look.step(100.0 + SILENT_S)
    assert (look.seen().is_asked, look.seen().is_alive) == (True, False)


def test_an_answer_after_the_stacks_were_asked_for_proves_nothing(look: RankCollector) -> None:
    """The signal may have ended what held the lock; the collectives are still of use."""
    look.step(100.0 + APART_S)
    look.step(100.0 + SILENT_S)
    look.helper.answered()
    look.helper.answered(Operations(recent=("0 gloo 1 barrier",)))

    assert not look.seen().is_alive
    assert look.helper.operations.recent == ("0 gloo 1 barrier",)


def test_a_helper_that_has_no_cpu_is_not_called_silent(
    look: RankCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for as long as there is time."""
    monkeypatch.setattr(proc_sample, "look_at_thread", lambda *_: Sight("R", "", 0, 7))
    at = 100.0 + APART_S
    while not look.step(at):
        assert look.next_step_at is not None
        assert look.next_step_at > at
        at = look.next_step_at

    assert at == 110.0 - STACKS_S
    assert not look.seen().is_asked
    assert "its helper thread had no CPU to answer" in look.seen().lacks


@pytest.mark.parametrize(
    ("thread", "lack"),
    [
        (None, "its helper thread has ended"),
        (Sight("S", "", 0, 7), "its helper thread sleeps and cannot be reached"),
    ],
)
def test_a_helper_that_cannot_be_reached_proves_no_held_lock(
    look: RankCollector, monkeypatch: pytest.MonkeyPatch, thread: Sight | None, lack: str
) -> None:
    """The program has closed its connection, or the thread is gone: the stacks say the rest."""
    monkeypatch.setattr(proc_sample, "look_at_thread", lambda *_: thread)
    look.step(100.0 + APART_S)
    look.step(100.0 + SILENT_S)
    look.stacks.take('Thread 0x1 (most recent call first):\n  File "/x.py", line 3 in f\n')

    assert not look.seen().is_asked
    assert lack in look.seen().lacks


def test_a_helper_that_wakes_for_the_lock_is_silent_though_it_is_on_a_cpu(
    look: RankCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every 5 ms it asks the holder to let go."""
    switches = itertools.count(0, LOCK_SWITCHES)
    sights = lambda *_: Sight("R", "", 0, next(switches))  # noqa: E731
    monkeypatch.setattr(proc_sample, "look_at_thread", sights)
    look.step(100.0 + APART_S)

    assert not look.step(100.0 + SILENT_S)
    assert look.step(100.0 + SILENT_S + APART_S)
    assert (look.seen().is_asked, look.seen().is_alive) == (True, False)


@pytest.mark.parametrize(
    ("states", "state"),
    [("SS", "S"), ("SR", "R"), ("ST", "T"), ("tt", "t"), ("St", "S"), ("tS", "S"), ("RS", "R")],
)
def test_a_rank_that_a_profiler_stops_for_moments_is_not_stopped(states: str, state: str) -> None:
    """Else it would be named, and not the rank that all wait for."""
    first, second = (Sight(each, "", 0, 7) for each in states)

    assert state_of(first, second) == state
    assert state_of(Sight("t", "", 0, 7), Sight("t", "", 0, 9)) == "R", "it has run in between"


@pytest.mark.parametrize(
    ("state", "wakes_stopped", "is_decided", "will_end"),
    [
        ("T", True, False, [True]),  # its own clock alone
        ("T", False, False, []),  # it is left stopped
        ("T", False, True, [True]),  # the verdict is there
        ("S", False, True, [False]),  # a profiler may stop it from now on
    ],
)
def test_a_rank_is_stopped_again_only_where_its_end_is_decided(
    monkeypatch: pytest.MonkeyPatch,
    *,
    state: str,
    wakes_stopped: bool,
    is_decided: bool,
    will_end: list[bool],
) -> None:
    """Nobody would continue any other one."""
    made: list[bool] = []

    class Dump(StackDump):
        def __init__(self, *given: Any, will_end: bool = False, **others: Any) -> None:
            made.append(will_end)
            super().__init__(*given, **others)

    monkeypatch.setattr(sources, "StackDump", Dump)
    monkeypatch.setattr(proc_sample, "look_at", lambda *_: Sight(state, "", 0, 5))
    process = proc.Process(os.getpid())
    one = RankCollector(process, 0, None, 100.0, 110.0, wakes_stopped=wakes_stopped)
    one.step(100.0 + APART_S)
    if is_decided:
        one.wake(100.1, 101.0)
    one.close()
    process.close()

    assert made == will_end


@pytest.mark.parametrize(
    ("state", "is_asked"),
    [("T", True), ("t", False), ("S", False)],
)
def test_a_stopped_rank_writes_its_stacks_by_its_helper(
    monkeypatch: pytest.MonkeyPatch, *, state: str, is_asked: bool
) -> None:
    """It cannot say before that it is there; and of the signal a rank may die that runs Python."""
    helpers: list[object] = []

    class Dump(StackDump):
        def __init__(self, *given: Any, ask_helper: Any = None, **others: Any) -> None:
            helpers.append(ask_helper)
            super().__init__(*given, ask_helper=ask_helper, **others)

    def ask() -> None:
        return None

    monkeypatch.setattr(sources, "StackDump", Dump)
    monkeypatch.setattr(proc_sample, "look_at", lambda *_: Sight(state, "", 0, 5))
    process = proc.Process(os.getpid())
    one = RankCollector(
        process,
        0,
        None,
        100.0,
        110.0,
        wakes_stopped=True,
        ask_helper=ask,
        ask_stacks=ask,
    )
    one.step(100.0 + APART_S)
    one.step(100.0 + SILENT_S + APART_S)
    one.close()
    process.close()

    assert helpers == [ask if is_asked else None]


def test_the_thread_that_trains_is_looked_at_instead_of_the_main_one(
    look: RankCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as well: the main one waits for it, whatever it does."""
    computes = itertools.count()
    real = proc_sample.look_at
    monkeypatch.setattr(
        proc_sample,
        "look_at",
        lambda pid, thread=None: (
            Sight("R", "", next(computes) * 50_000_000, 0) if thread == 77 else real(pid)
        ),
    )
    look.step(100.0 + APART_S)
    look.helper.answered()
    look.helper.answered(Operations(thread=77))

    assert not look.step(100.1)
    assert look.next_step_at == pytest.approx(100.1 + APART_S)
    assert look.step(100.1 + APART_S)
    look.stacks.take(THREADS)  # of which there are none here
    seen = look.seen()
    assert (seen.first, seen.second) == (Sight("R", "", 0, 0), Sight("R", "", 50_000_000, 0))
    assert seen.apart_s == pytest.approx(APART_S)
    assert (seen.place.line, seen.place.is_main) == ("train train.py:8", False)


@pytest.mark.parametrize(("others_run", "place"), [(True, "match re.py:9"), (False, "main x.py:3")])
def test_a_main_thread_that_sleeps_holds_no_lock_while_another_one_runs(
    look: RankCollector, monkeypatch: pytest.MonkeyPatch, *, others_run: bool, place: str
) -> None:
    """Which runs without a pause: it has the lock. The main one may hold it asleep."""
    monkeypatch.setattr(proc_sample, "look_at", lambda *_: Sight("S", "hrtimer_nanosleep", 0, 5))
    monkeypatch.setattr(proc_sample, "sleeps_of_others", lambda _: {"8": 1})
    seen_with = {"8": 1}, LOCK_SWITCHES
    monkeypatch.setattr(proc_sample, "others_run", lambda *its: its[2:] == seen_with and others_run)
    switches = itertools.count(0, LOCK_SWITCHES)
    waits = lambda *_: Sight("S", "", 0, next(switches))  # noqa: E731
    monkeypatch.setattr(proc_sample, "look_at_thread", waits)
    look.samples.first = proc_sample.look_at(0)
    look.step(100.0 + APART_S)
    look.step(100.0 + SILENT_S)
    look.stacks.take(
        'Thread 0x02 (most recent call first):\n  File "/home/me/re.py", line 9 in match\n\n'
        'Thread 0x01 (most recent call first):\n  File "/home/me/x.py", line 3 in main\n'
    )

    assert look.seen().place.line == place


THREADS = """\
Thread 0x02 (most recent call first):
  File "/x/site-packages/torch/optim/sgd.py", line 9 in step
  File "/home/me/train.py", line 8 in train

Thread 0x01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1112 in join
  File "/home/me/train.py", line 90 in <module>
"""


def test_a_look_that_ends_with_its_rank_holds_no_worker() -> None:
    """It was just being asked for its stacks."""
    process = proc.Process(os.getpid())
    with bystander() as child:
        look = RankCollector(process, 0, None, 100.0, 110.0, wakes_stopped=True)
        worker = proc.Process(child.pid)
        look.stacks.ask(worker, 100.1)

        look.close()

        assert worker.fileno() < 0
    assert process.fileno() >= 0
    process.close()
