"""The kernel of the simulators: seeds, the shortest history, links, alarms, stopped processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from holdfast.testing.clock import VirtualClock
from tests.simulation.kernel import Alarm, Kind, Link, ProcessClock, World, explore, replay

Faults = tuple[int, ...]


class Toy(World):
    """Breaks its promise where faults 3 and 5 meet."""

    def __init__(self, faults: Faults, seed: int, trace: bool) -> None:
        super().__init__(seed, trace=trace)
        self.faults = faults

    def run(self) -> None:
        """Each fault is a step."""
        for fault in self.faults:
            self.steps += 1
            self.say("toy", f"fault {fault}")
        self.check(not {3, 5} <= {*self.faults}, "3 and 5 do not meet")

    def outcome(self) -> str:
        """Always the same."""
        return "done"


def without(faults: Faults) -> Iterator[Faults]:
    """Each one less."""
    return (faults[:k] + faults[k + 1 :] for k in range(len(faults)))


TOYS = Kind("--toys", "toys", lambda seed, size: (*range(seed, seed + size),), Toy, without, str)


def test_a_seed_that_breaks_a_promise_is_shown_with_the_faults_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And with the command that repeats it."""
    assert explore(TOYS, 0, 10, 4) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("VIOLATION: 3 and 5 do not meet, at 0.0000 s, step 4, seed 2;")
    assert shown[1:6] == [
        "(3, 5)",
        "----",
        "    0.0000  toy: fault 3",
        "    0.0000  toy: fault 5",
        "    0.0000  violation: 3 and 5 do not meet",
    ]
    assert shown[-1] == "again: python -m tests.simulation.simulate --toys --nodes 4 --seed 2"


def test_seeds_that_keep_their_promises_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert explore(TOYS, 10, 5, 4) == 0
    line = capsys.readouterr().out
    assert line.startswith("5 seeds from 10, 4 toys, 20 steps: 0 violations in ")
    assert line.endswith("(5 done)\n")
    assert replay(TOYS, 10, 1) == 0
    assert capsys.readouterr().out.endswith("----\nseed 10: 1 steps, 0 violations\n")


def test_a_cut_holds_back_what_is_under_way_and_order_is_kept_where_asked() -> None:
    link = Link([(5.0, 9.0)])
    assert link.arrives_at(3.0, lambda: 1.0) == 4.0
    assert link.arrives_at(4.5, lambda: 1.0) == 10.0
    assert link.arrives_at(4.5, lambda: 1.0, lambda: 0.0) == 9.0
    assert [link.is_cut(now) for now in (4.9, 5.0, 9.0)] == [False, True, False]
    assert [link.in_order(at) for at in (2.0, 1.0, 3.0)] == [2.0, 2.0, 3.0]


def test_an_alarm_rings_once_at_the_deadline_wherever_that_has_moved() -> None:
    clock, rang = VirtualClock(), list[float]()
    deadlines: list[float | None] = [3.0]

    def ring() -> None:
        rang.append(clock.now)
        deadlines[0] = None

    alarm = Alarm(clock, lambda: deadlines[0], ring)
    for at in (3.0, 5.0, 2.0, 4.0):
        deadlines[0] = at
        alarm.set()
    clock.run_until(9.0)
    assert rang == [4.0]


def test_a_stopped_process_does_later_what_was_due() -> None:
    clock, done = VirtualClock(), list[float]()
    process = ProcessClock(clock)
    process.sleep_until(5.0)
    process.call_at(2.0, lambda: done.append(clock.now))
    process.call_in(7.0, lambda: done.append(clock.now))
    clock.run_until(9.0)
    assert done == [5.0, 7.0]


def test_work_stands_still_while_its_process_sleeps() -> None:
    clock, done = VirtualClock(), list[float]()
    process = ProcessClock(clock)
    process.work(3.0, lambda: done.append(clock.now))
    for at, until in ((1.0, 4.0), (2.0, 5.0), (7.5, 9.0)):
        clock.call_at(at, partial(process.sleep_until, until))
    clock.run_until(6.9)
    process.work(1.0, lambda: done.append(clock.now))
    clock.run_until(20.0)
    assert done == [7.0, pytest.approx(9.4)]
