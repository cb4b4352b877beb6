"""In which order a mailbox is read, on a virtual clock: its store is a dictionary."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.job.pure import mailbox
from holdfast.job.pure.mailbox import (
    LATE_MOST,
    NEWEST,
    Abandoned,
    Answer,
    AskCount,
    Check,
    MailboxReader,
    Operation,
    Pause,
    Read,
    Take,
    WaitFor,
)
from holdfast.job.pure.timing import HOLE_S, LATE_S, LOOK_AGAIN_S, LOOK_AGAIN_S_MAX

STEP_S = 1e-4
"""What each operation takes here."""


class World:
    """A reader, the store that it reads, and all that is going to happen to that store."""

    def __init__(self) -> None:
        self.now = 0.0
        self.given_out = 0
        self.values: dict[int, bool] = {}
        """By number: whether a launcher has signed it."""
        self.done: list[Operation] = []
        self.taken: list[tuple[int, float]] = []
        self.lost: dict[int, float] = {}
        self._reader = MailboxReader()
        self._answer: Answer = None
        self._order = itertools.count()
        self._to_come: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._to_come, (when, next(self._order), happens))

    def number(self) -> int:
        """Take one, as every sender does first."""
        self.given_out += 1
        return self.given_out

    def write(self, number: int, *, is_ours: bool = True) -> None:
        self.values[number] = is_ours

    def post(self) -> int:
        number = self.number()
        self.write(number)
        return number

    def step(self) -> Operation:
        """Let the reader do one operation."""
        operation = self._reader.step(self._answer, self.now)
        self.done.append(operation)
        self._pass(STEP_S)
        self._answer = None
        match operation:
            case WaitFor(number, timeout_s):
                until = self.now + timeout_s
                while number not in self.values and self.now < until:
                    self._pass(min([until, *(when for when, _, _ in self._to_come)]) - self.now)
                self._answer = number in self.values
            case Check(number):
                self._answer = number in self.values
            case Read(number):
                self._answer = self.values[number]
            case Take(number):
                assert self.values.pop(number)
                self.taken.append((number, self.now))
            case AskCount():
                self._answer = self.given_out
            case Pause(seconds):
                self._pass(seconds)
            case Abandoned(first, last):
                assert first <= last
                for number in range(first, last + 1):
                    assert number not in self.lost
                    self.lost[number] = self.now
        return operation

    def _pass(self, seconds: float) -> None:
        until = self.now + max(0.0, seconds)
        while self._to_come and self._to_come[0][0] <= until:
            when, _, happens = heapq.heappop(self._to_come)
            self.now = max(self.now, when)
            happens()
        self.now = until

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.step()

    def run_until_taken(self, count: int = 1) -> list[int]:
        """The numbers of the next messages."""
        before = len(self.taken)
        until = self.now + 3600
        while len(self.taken) < before + count:
            assert self.now < until, self.done[-50:]
            self.step()
        return [number for number, _ in self.taken[before:]]


@pytest.fixture
def world() -> World:
    return World()


def test_a_healthy_message_costs_three_operations(world: World) -> None:
    """Wherever the reader waits for it; and one each five seconds."""
    world.at(1.0, lambda: world.write(world.number()))
    world.at(3.0, lambda: world.write(world.number()))

    assert world.run_until_taken(2) == [1, 2]
    assert world.done == [
        *(AskCount(), WaitFor(1, HOLE_S), Read(1), Take(1)),
        *(WaitFor(2, HOLE_S), Read(2), Take(2)),
    ]
    assert world.now == pytest.approx(3.0, abs=0.01)


def test_where_nobody_sends_the_reader_only_waits(world: World) -> None:
    """And asks now and then whether a number was given out."""
    for _ in range(20):
        world.step()
    assert world.done == [AskCount(), WaitFor(1, HOLE_S)] * 10
    assert world.now >= 10 * HOLE_S


def test_a_hole_is_waited_for_once_and_its_followers_are_read(world: World) -> None:
    """The sender of number 1 died; those behind it wait for it no longer than 5 s, all together."""
    world.step()  # no number was given out
    world.number()
    for _ in range(5):
        world.post()

    assert world.run_until_taken(5) == [2, 3, 4, 5, 6]
    assert world.now == pytest.approx(HOLE_S, abs=0.01)


def test_a_reader_that_begins_does_not_wait_for_a_hole(world: World) -> None:
    """The numbers before it came are known to be given out."""
    world.number()
    world.post()

    assert world.run_until_taken() == [2]
    assert world.now < 0.01


def test_holes_that_are_filled_one_after_another_delay_a_message_once(world: World) -> None:
    """Its ten predecessors come 4 s apart: by senders that were stopped and go on."""
    world.step()
    for _ in range(10):
        number = world.number()
        world.at(4.0 * number, lambda number=number: world.write(number))  # type: ignore[misc]
    last = world.post()

    while last not in [number for number, _ in world.taken]:
        world.step()
    assert world.now < 2 * HOLE_S


def test_a_late_message_is_taken_soon_after_it_came(world: World) -> None:
    """While nothing else happens, and while others follow."""
    late = world.number()
    world.post()
    world.run_until_taken()
    came_at = world.now + 4.33
    world.at(came_at, lambda: world.write(late))

    assert world.run_until_taken() == [late]
    assert came_at <= world.now <= came_at + 2 * LOOK_AGAIN_S + 0.01


def test_a_number_is_given_up_after_ten_seconds_and_reported_once(world: World) -> None:
    """Its message, if it comes afterwards, is not taken."""
    hole = world.number()
    world.run(LATE_S - 0.1)
    assert world.lost == {}

    world.run(0.3)
    assert list(world.lost) == [hole]

    world.write(hole)
    world.run(60.0)
    assert world.taken == []
    assert list(world.lost) == [hole]


def test_while_a_number_is_late_the_reader_looks_every_fifty_milliseconds(world: World) -> None:
    """At that one and at the next; it does not spin."""
    world.number()
    world.run(0.5)
    before = len(world.done)
    world.run(1.0)
    assert len(world.done) - before <= 4 * 1.0 / LOOK_AGAIN_S + 4
    pauses = {one.seconds for one in world.done if isinstance(one, Pause)}
    assert pauses == {LOOK_AGAIN_S}


def test_of_many_late_numbers_the_oldest_is_given_up(world: World) -> None:
    """So a stranger who takes numbers costs 64 looks at a time, and the followers no wait."""
    world.given_out = LATE_MOST + 10
    newest = world.post()

    assert world.run_until_taken() == [newest]
    assert list(world.lost) == list(range(1, 11))
    assert world.now < 1.0
    assert world.done.count(AskCount()) == 1


@pytest.mark.parametrize("which", [1, NEWEST])
def test_before_a_follower_the_newest_late_numbers_are_looked_at(world: World, which: int) -> None:
    """Of one sender's messages the earlier one is taken first."""
    numbers = [world.number() for _ in range(NEWEST + 1)]
    world.post()
    world.run_until_taken()
    world.write(numbers[which])
    follower = world.post()

    assert world.run_until_taken(2) == [numbers[which], follower]


def test_followers_do_not_wait_for_looks_at_every_late_number(world: World) -> None:
    """All of them are looked at each 50 ms, however many messages come."""
    holes = [world.number() for _ in range(LATE_MOST)]
    for _ in range(20):
        world.post()

    world.run_until_taken(20)
    looks = [one for one in world.done if isinstance(one, Check) and one.number in holes]
    assert len(looks) <= LATE_MOST + 20 * NEWEST + LATE_MOST * (world.now // LOOK_AGAIN_S + 1)


def test_the_pause_before_a_slot_written_in_advance_grows(world: World) -> None:
    """The store cannot tell when a value is replaced. After a message it is short again."""
    world.write(1, is_ours=False)
    world.run(3.0)
    pauses = [one.seconds for one in world.done if isinstance(one, Pause)]
    assert pauses[:5] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.5])
    assert set(pauses[4:]) == {LOOK_AGAIN_S_MAX}

    world.post()
    world.write(2, is_ours=False)
    assert world.run_until_taken() == [1]
    while not isinstance(last := world.step(), Pause):
        pass
    assert last.seconds == LOOK_AGAIN_S


def test_a_forgery_in_a_given_number_is_passed_over_and_may_be_replaced(world: World) -> None:
    """As a hole: nobody waits behind it."""
    forged = world.number()
    world.write(forged, is_ours=False)
    world.post()

    assert world.run_until_taken() == [2]
    assert world.now < 1.0
    world.write(forged)
    assert world.run_until_taken() == [forged]


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> int:
    """A run of so many numbers without a value is jumped over."""
    monkeypatch.setattr(mailbox, "FAR", 200)
    return 200


def test_a_counter_that_was_moved_far_away_is_followed(world: World, far: int) -> None:
    """Its numbers are not looked at one by one; each is reported once, in a range."""
    world.given_out = 100_000
    newest = world.post()

    assert world.run_until_taken() == [newest]
    looked_at = {one.number for one in world.done if isinstance(one, Check | WaitFor)}
    assert len(looked_at) < 2 * far + 50


def test_of_a_long_run_of_numbers_the_newest_are_looked_at(world: World, far: int) -> None:
    """Launchers have taken numbers, too, before and after a stranger; also if he does it again."""
    world.given_out = 1000
    early = world.given_out - far // 2
    while not any(isinstance(one, Abandoned) and one.last > one.first for one in world.done):
        world.step()
    world.write(early)
    world.given_out = 3000

    assert world.run_until_taken() == [early]


def test_a_run_is_over_with_every_message(world: World, far: int) -> None:
    """Senders that die often are no stranger: nothing is jumped over."""
    for _ in range(3 * far):
        world.number()
        world.post()

    world.run_until_taken(3 * far)
    assert all(number % 2 == 1 for number in world.lost)


class Sender(NamedTuple):
    """One message, or what a stranger does in the place of one."""

    after_s: float
    """Since the one before."""
    takes_s: float
    """Between taking the number and writing."""
    kind: str


SENDERS = st.lists(
    st.builds(
        Sender,
        st.sampled_from([0.0, 0.001, 0.06, 1.0, 7.0]),
        st.sampled_from([0.0, 0.0, 0.0, 0.04, 3.0, 9.0, 30.0]),
        st.sampled_from(["message", "message", "message", "died", "forged", "forged ahead"]),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(SENDERS)
def test_every_message_is_taken_once_and_soon_whatever_strangers_do(senders: list[Sender]) -> None:
    """Unless its number was given up before it came, and that happens to no message within 10 s."""
    world = World()
    written_at: dict[int, float] = {}
    given_at: dict[int, float] = {}

    def begin(sender: Sender) -> None:
        if sender.kind == "forged ahead":
            world.values.setdefault(world.given_out + 1, False)
            return
        number = world.number()
        given_at[number] = world.now
        if sender.kind == "forged":
            world.write(number, is_ours=False)
        elif sender.kind == "message":
            world.at(world.now + sender.takes_s, lambda: write(number))

    def write(number: int) -> None:
        world.write(number)
        written_at[number] = world.now

    when = 0.0
    for sender in senders:
        when += sender.after_s
        world.at(when, lambda sender=sender: begin(sender))
    world.run(when + 60.0)

    taken = [number for number, _ in world.taken]
    assert len(set(taken)) == len(taken)
    assert not set(taken) & set(world.lost)
    assert set(taken) | set(world.lost) == set(given_at)
    for number in world.lost:
        assert world.lost[number] - given_at[number] >= LATE_S
        assert number not in written_at or written_at[number] >= world.lost[number] - 1e-6
    for number, taken_at in world.taken:
        assert taken_at - written_at[number] <= 2 * HOLE_S + LOOK_AGAIN_S_MAX
    # 40 numbers are looked at every 50 ms, and nothing is done more often than that.
    assert len(world.done) <= world.now / LOOK_AGAIN_S * (len(senders) + 4) * 2 + 100
