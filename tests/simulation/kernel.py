"""The kernel of both simulated worlds: jobs of many launchers, and calls of a wrapped function.

A world is the machines of production on a virtual clock, with links that can be cut, processes that
can be stopped, faults, and promises that are checked at each step. The same scenario and seed give
the same history, to the last step. A seed that breaks a promise is shown with the shortest history
that still breaks one, and with the command that repeats it.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from holdfast.base import clock as real_clock
from holdfast.testing.clock import VirtualClock

_TAIL = 400
"""Lines of a transcript that are shown at most; the cause is near its end."""


_INSTANT_S = 1e-6
"""Less than that is left of a time only as numbers are rounded."""


class Violation(AssertionError):  # noqa: N818 - reads as what it is
    """The machines broke a promise; the text says which, when and where."""


class World:
    """One history.

    Args:
        seed: Of everything that is left to chance.
        trace: Keep a transcript; costs time.
        rng: In the place of one from the seed.

    Attributes:
        clock: Virtual.
        steps: Events handed to machines, and effects where they are steps of their own.
        transcript: One line for each effect that is worth one.
    """

    def __init__(self, seed: int, *, trace: bool = False, rng: random.Random | None = None) -> None:
        self.seed = seed
        self.clock = VirtualClock()
        self.steps = 0
        self.transcript: list[str] = []
        self._trace = trace
        self._rng = rng or random.Random(seed)

    def run(self) -> object:
        """Run to the end.

        Raises:
            Violation: A promise was broken.
        """
        raise NotImplementedError

    def describe(self, effect: Any) -> str:
        """An effect in the words of a transcript; empty: it is worth no line."""
        raise NotImplementedError

    def outcome(self) -> str:
        """The end of a history, as seeds are counted by it; empty: they are not."""
        return ""

    def say(self, who: str, what: Any) -> None:
        """Add a line, or an effect, to the transcript."""
        if self._trace and (text := what if isinstance(what, str) else self.describe(what)):
            self.transcript.append(f"{self.clock.now:10.4f}  {who}: {text}")

    def check(self, holds: bool, otherwise: str) -> None:
        """Raise a violation if a promise does not hold."""
        if not holds:
            self.fail(otherwise)

    def fail(self, why: str) -> NoReturn:
        """A promise does not hold."""
        self.say("violation", why)
        at = f"at {self.clock.now:.4f} s, step {self.steps}, seed {self.seed}"
        raise Violation(f"{why}, {at}")


# ---------------------------------------------------------------- time
class ProcessClock:
    """Of processes that can be stopped: what is due meanwhile happens when they go on."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.asleep_until = 0.0
        self._slept_s = 0.0
        """Of all sleeps so far, and of the one that they are in."""

    @property
    def now(self) -> float:
        """Of the world."""
        return self._clock.now

    @property
    def is_asleep(self) -> bool:
        """The processes do not get the processor."""
        return self._clock.now < self.asleep_until

    def call_at(self, at: float, action: Callable[[], None]) -> None:
        """See :meth:`.VirtualClock.call_at`."""
        self._clock.call_at(at, partial(self.act, action))

    def call_in(self, delay_s: float, action: Callable[[], None]) -> None:
        """See :meth:`.VirtualClock.call_in`."""
        self._clock.call_in(delay_s, partial(self.act, action))

    def work(self, for_s: float, action: Callable[[], None]) -> None:
        """Do ``action`` when the processes have had the processor for so long."""
        self._work_until(self.now - self._slept_s + for_s, action)

    def _work_until(self, awake_at: float, action: Callable[[], None]) -> None:
        left_s = awake_at - (self.now - self._slept_s)
        if left_s > _INSTANT_S:
            self.call_in(left_s, partial(self._work_until, awake_at, action))
        else:
            action()

    def sleep_until(self, at: float) -> None:
        """The processes do not get the processor until then, or longer, if they sleep already."""
        self._slept_s += max(0.0, at - max(self.now, self.asleep_until))
        self.asleep_until = max(at, self.asleep_until)

    def act(self, action: Callable[[], None]) -> None:
        """Now, or when the processes go on."""
        if self.is_asleep:
            self.call_at(self.asleep_until, action)
        else:
            action()


class _Clock(Protocol):
    @property
    def now(self) -> float: ...

    def call_at(self, at: float, action: Callable[[], None]) -> None: ...


@dataclass
class Alarm:
    """Wakes machines at their deadline, once, wherever that has moved to meanwhile."""

    clock: _Clock
    next_deadline: Callable[[], float | None]
    wake: Callable[[], None]
    _armed: float | None = None

    def set(self) -> None:
        """After each event."""
        deadline = self.next_deadline()
        if deadline is None:
            return
        deadline = max(deadline, self.clock.now)
        # A later deadline than the armed one is set when that one rings.
        if self._armed is None or deadline < self._armed:
            self._armed = deadline
            self.clock.call_at(deadline, partial(self._ring, deadline))

    def _ring(self, at: float) -> None:
        if self._armed != at:
            return
        self._armed = None
        deadline = self.next_deadline()
        if deadline is not None and self.clock.now >= deadline:
            self.wake()
        else:
            self.set()


# ---------------------------------------------------------------- links
@dataclass
class Link:
    """One direction between two processes. Nothing is lost: a cut holds back what is under way.

    Attributes:
        cuts: From when to when; may be shared with other links.
        last_at: When the last thing arrives that must not be overtaken.
    """

    cuts: list[tuple[float, float]] = field(default_factory=list)
    last_at: float = 0.0

    def arrives_at(
        self,
        sent_at: float,
        way_s: Callable[[], float],
        after_cut_s: Callable[[], float] | None = None,
    ) -> float:
        """``way_s`` is drawn for the way, and ``after_cut_s`` (the same) after each cut."""
        at = sent_at + way_s()
        for since, until in self.cuts:
            if since <= at < until:
                at = until + (after_cut_s or way_s)()
        return at

    def in_order(self, at: float) -> float:
        """The same for something that arrives after all before it."""
        self.last_at = max(at, self.last_at)
        return self.last_at

    def is_cut(self, now: float) -> bool:
        """Whether nothing gets through."""
        return any(since <= now < until for since, until in self.cuts)


# ---------------------------------------------------------------- seeds
S = TypeVar("S")
W = TypeVar("W", bound=World)


@dataclass(frozen=True)
class Kind(Generic[S, W]):
    """A kind of world.

    Attributes:
        option: Of the command line; empty: it needs none.
        unit: The thing that ``--nodes`` counts.
        draw: A scenario from a seed, of so many.
        make: A world from a scenario, its seed, and whether to keep a transcript.
        without: The scenario without each one of its faults.
        cost: A line on the cost of one restart of so many.
    """

    option: str
    unit: str
    draw: Callable[[int, int], S]
    make: Callable[[S, int, bool], W]
    without: Callable[[S], Iterator[S]]
    cost: Callable[[int], str]

    def run(self, scenario: S, seed: int, *, trace: bool = False) -> tuple[W, Violation | None]:
        """One history; and the promise that it broke."""
        world = self.make(scenario, seed, trace)
        try:
            world.run()
        except Violation as violation:
            return world, violation
        return world, None

    def simulate(
        self, seed: int, size: int = 8, *, trace: bool = False
    ) -> tuple[W, Violation | None]:
        """The random scenario of a seed."""
        return self.run(self.draw(seed, size), seed, trace=trace)

    def shrink(self, scenario: S, seed: int) -> S:
        """The same with as few faults as still break a promise."""
        for smaller in self.without(scenario):
            if self.run(smaller, seed)[1] is not None:
                return self.shrink(smaller, seed)
        return scenario


def replay(kind: Kind[Any, Any], seed: int, size: int) -> int:
    """Show one seed with its transcript; 1 if it breaks a promise."""
    scenario = kind.draw(seed, size)
    world, violation = kind.run(scenario, seed, trace=True)
    if violation is not None:
        _print(f"VIOLATION: {violation}; the shortest history that breaks a promise:")
        scenario = kind.shrink(scenario, seed)
        world, violation = kind.run(scenario, seed, trace=True)
    _print(f"{scenario}\n----")
    for line in world.transcript[-_TAIL:]:
        _print(line)
    _print("----")
    if violation is None:
        _print(f"seed {seed}: {world.steps} steps, 0 violations")
        return 0
    _print(f"VIOLATION: {violation}")
    words = ["python -m tests.simulation.simulate", kind.option, f"--nodes {size} --seed {seed}"]
    _print(f"again: {' '.join(word for word in words if word)}")
    return 1


def explore(kind: Kind[Any, Any], first: int, seeds: int, size: int) -> int:
    """Run many seeds in a row; 1, and the history of the first that breaks a promise, if any."""
    began_at, steps = real_clock.monotonic(), 0
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + seeds):
        world, violation = kind.simulate(seed, size)
        steps += world.steps
        if violation is not None:
            return replay(kind, seed, size)
        outcomes[world.outcome()] += 1
    took_s = real_clock.monotonic() - began_at
    ends = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common() if outcome)
    _print(
        f"{seeds} seeds from {first}, {size} {kind.unit}, {steps} steps: 0 violations in "
        f"{took_s:.1f} s{f' ({ends})' if ends else ''}"
    )
    return 0


def command(
    kinds: Sequence[Kind[Any, Any]], prog: str, description: str, argv: Sequence[str] | None
) -> int:
    """The command line; the first kind is the default."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories (1000)")
    parser.add_argument("--nodes", type=int, default=8, help=f"{kinds[0].unit} (8)")
    parser.add_argument("--seed", type=int, help="only this one, with its transcript")
    parser.add_argument("--cost", action="store_true", help="of one restart")
    for kind in kinds[1:]:
        text = f"--nodes is a number of {kind.unit}"
        parser.add_argument(kind.option, action="store_const", const=kind, dest="kind", help=text)
    args = parser.parse_args(argv)
    kind = args.kind or kinds[0]
    if args.cost:
        began_at = real_clock.monotonic()
        line = kind.cost(args.nodes)
        _print(f"{line}, {real_clock.monotonic() - began_at:.1f} s")
        return 0
    if args.seed is not None:
        return replay(kind, args.seed, args.nodes)
    return explore(kind, random.SystemRandom().randrange(2**31), args.seeds, args.nodes)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
