"""Decide in which order the numbers of the launchers' mailbox are looked at. Pure.

    up/count   how many numbers have been given out       up/<n>   message n, or nothing yet

A healthy message costs three operations: one wait that the message ends, one read, one deletion.
The count is asked for every 5 s.

A number may be without its message: the sender was stopped or died between taking the number and
writing, or another program took it. A slot may hold a value that no launcher has signed, also ahead
of the numbers that were given out. Neither may hold up the messages behind it, nor cost for ever:

    number given out, no message of a launcher ──► passed over; its followers are read
        └─ looked at every 50 ms ──message──► taken, late
                                 ──10 s, or 64 others are late──► lost
    number not given out, yet a value there ──► looked at again after 50 ms, 100 ms ... 500 ms
    10,000 numbers in a row without a value ──► all but the newest 10,000 are lost at once
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator
from typing import NoReturn, TypeVar

from holdfast.base.pure.value import Value
from holdfast.job.pure.timing import HOLE_S, LATE_S, LOOK_AGAIN_S, LOOK_AGAIN_S_MAX

LATE_MOST = 64
"""So many numbers are looked at beside the next one."""
NEWEST = 8
"""So many of them are looked at before each message that follows: its sender may have written an
earlier one meanwhile."""
FAR = 10_000
"""A run of so many numbers without a value was not made by launchers."""

_T = TypeVar("_T")


class WaitFor(Value):
    """Wait until there is a value for this number; answered by whether there is one."""

    number: int
    timeout_s: float


class Check(Value):
    """Look whether there is a value for this number; answered by that."""

    number: int


class Read(Value):
    """Read the value of this number; answered by whether it is a launcher's message."""

    number: int


class Take(Value):
    """Delete the message that was read, and pass it on."""

    number: int


class AskCount(Value):
    """Ask how many numbers were given out; answered by that."""


class Pause(Value):
    """Do nothing for so long."""

    seconds: float


class Abandoned(Value):
    """These numbers are not looked at any more, the last one included: report that."""

    first: int
    last: int


Operation = WaitFor | Check | Read | Take | AskCount | Pause | Abandoned
Answer = bool | int | None
"""None: the operation has none, or it is the first step."""
_Steps = Generator[Operation, Answer, _T]


def look_again_pauses() -> Iterator[float]:
    """Seconds between looks at a slot whose value is to be replaced; without end."""
    pause_s = LOOK_AGAIN_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LOOK_AGAIN_S_MAX)


class MailboxReader:
    """Reads one mailbox from number 1.

    The machine is a coroutine: each :meth:`step` takes the answer to the last operation and the
    time, and gives the next operation, for ever.
    """

    def __init__(self) -> None:
        self._next = 1
        self._given_out = 0
        self._ask_at = 0.0
        """When to ask for the count even if messages come: holes that are filled late, one after
        another, must not delay those behind them by 5 s each."""
        self._late: OrderedDict[int, float] = OrderedDict()
        """Numbers that were passed over, and until when they are looked at."""
        self._look_again_at = 0.0
        self._empty = 0
        """Numbers in a row that had no value."""
        self._now = 0.0
        self._steps = self._run()

    def step(self, answer: Answer, now: float) -> Operation:
        """The next operation; ``answer`` is to the last one, ``now`` is monotonic."""
        self._now = now
        return self._steps.send(answer)

    def _run(self) -> _Steps[NoReturn]:
        pauses = look_again_pauses()
        while True:
            is_taken = yield from self._try_late_ones()
            is_taken = is_taken or (yield from self._try_next(pauses))
            if is_taken:
                pauses = look_again_pauses()

    def _try_next(self, pauses: Iterator[float]) -> _Steps[bool]:
        """Take the message of the next number, pass the number over, or wait for it a while."""
        number = self._next
        if self._now >= self._ask_at:
            yield from self._was_given_out(number)
        if not (yield self._see(number)):
            if (yield from self._was_given_out(number)):
                self._empty += 1
                yield from self._pass_over()
            elif self._late:
                yield Pause(LOOK_AGAIN_S)
            return False
        self._empty = 0
        if self._late and (yield from self._try(list(self._late)[-NEWEST:])):
            return True  # perhaps of the same sender, and written before
        if (yield Read(number)):
            self._next += 1
            yield Take(number)
            return True
        if (yield from self._was_given_out(number)):
            yield from self._pass_over()
        else:  # another program wrote it in advance
            yield Pause(next(pauses))
        return False

    def _see(self, number: int) -> WaitFor | Check:
        """A wait is good only where no other number has to be looked at."""
        is_due = self._late or number <= self._given_out
        return Check(number) if is_due else WaitFor(number, HOLE_S)

    def _was_given_out(self, number: int) -> _Steps[bool]:
        if number > self._given_out:
            self._given_out = int((yield AskCount()) or 0)
            self._ask_at = self._now + HOLE_S
        return number <= self._given_out

    def _pass_over(self) -> _Steps[None]:
        self._late[self._next] = self._now + LATE_S
        self._next += 1
        if len(self._late) > LATE_MOST:
            number, _ = self._late.popitem(last=False)
            yield Abandoned(number, number)
        if self._empty >= FAR and self._given_out - self._next > FAR:
            first, self._next = self._next, self._given_out - FAR
            yield Abandoned(first, self._next - 1)

    def _try_late_ones(self) -> _Steps[bool]:
        if not self._late or self._now < self._look_again_at:
            return False
        self._look_again_at = self._now + LOOK_AGAIN_S
        return (yield from self._try(list(self._late)))

    def _try(self, numbers: list[int]) -> _Steps[bool]:
        """Take the first message that has come of these numbers; the overdue ones are lost."""
        now = self._now
        for number in numbers:
            until = self._late[number]
            if (yield Check(number)) and (yield Read(number)):
                del self._late[number]
                yield Take(number)
                return True
            if now >= until:
                del self._late[number]
                yield Abandoned(number, number)
        return False
