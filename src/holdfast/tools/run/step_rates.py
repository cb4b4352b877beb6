"""Steps per second over time, from the looks at ranks' pages. Pure.

A look has how many steps a rank has made in its cycle, and when the last of them ended. So between
two looks the mean rate is known, without the time of a hang after the last step::

    first step begins .... 28th ends ......... 90th ends        (hangs)
                      28 in 0.7 s     62 in 2.1 s
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from holdfast.base.pure.value import Value
from holdfast.events.run.accounts import account_of

_RANKS = 4
"""Ranks of a node make their steps together: so many of them are enough."""


_RATES = 300
"""More stretches of a launcher become half as many, each twice as long."""


class StepRate(Value):
    """So many steps were made between two instants of one cycle."""

    cycle: int
    start: float
    end: float
    steps: int

    @property
    def per_s(self) -> float:
        """Steps per second."""
        return self.steps / (self.end - self.start)

    @property
    def ends(self) -> tuple[float, float]:
        """Its first and its last instant."""
        return self.start, self.end

    def moved(self, at: Callable[[float], float]) -> StepRate:
        """The same on another axis."""
        return self.but(start=at(self.start), end=at(self.end))


class StepCounts:
    """Takes all looks of a launcher, as JSON objects whose values may be anything."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, int]] = {}
        self._rates: list[StepRate] = []
        self._rates_max = _RATES

    def take(self, look: Mapping[str, Any]) -> None:
        """Take the next look."""
        ranks, cycle, t = look.get("ranks"), look.get("cycle"), _instant(look.get("t"))
        if not isinstance(ranks, dict) or type(cycle) is not int or t is None:
            return
        found = filter(None, (_counted(each, t) for each in islice(ranks.values(), _RANKS)))
        counted = max(found, key=lambda each: each[0], default=None)
        if counted is None:
            return
        steps, first_at, end = counted
        start, before = self._last.get(cycle, (first_at, 0))
        if start is not None and steps > before and end > start:
            self._rates.append(StepRate(cycle, start, end, steps - before))
            if len(self._rates) >= self._rates_max:
                self._rates = [*thinned(self._rates, _RATES // 2)]
                self._rates_max = max(_RATES, 2 * len(self._rates))  # there may be more cycles
        if start is None or steps > before:  # nothing says when the first step began
            self._last[cycle] = end, steps

    def rates(self) -> list[StepRate]:
        """In order of time."""
        return sorted(self._rates, key=lambda each: each.start)


def _counted(shown: object, t: float) -> tuple[int, float | None, float] | None:
    """Steps of a rank, when the first began, if that is known, and when the last ended."""
    if not isinstance(shown, dict):
        return None
    sections = shown.get("sections")
    found: list[tuple[int, float | None, float]] = []
    for name, ended in sections.items() if isinstance(sections, dict) else ():
        match ended:
            case [int() as times, _, _, first_at, closed_at] if _is_step(name):
                if (end := _instant(closed_at)) is not None:
                    found.append((times, _instant(first_at), end))
    if found:
        return max(found, key=lambda each: each[0])
    beat_at = _instant(shown.get("heartbeat_at"))
    end = t if beat_at is None else beat_at
    if type(steps := shown.get("steps")) is int:
        return steps, _instant(shown.get("first_heartbeat_at")), end
    if type(iteration := shown.get("iteration")) is int:  # it counts on from a checkpoint
        return iteration, None, end
    return None


@lru_cache(maxsize=1024)
def _is_step(section: str) -> bool:
    return account_of(section) == "steps"


def _instant(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value if 0.0 <= value < float("inf") else None
    return None


def mean(rates: Iterable[StepRate]) -> float | None:
    """Steps per second over all of these; None: there are none."""
    listed = [each for each in rates if each.steps]
    total_s = sum(each.end - each.start for each in listed)
    return sum(each.steps for each in listed) / total_s if total_s > 0.0 else None


def thinned(rates: Sequence[StepRate], most: int) -> Sequence[StepRate]:
    """No more than about ``most``: neighbours of one cycle become one."""
    if len(rates) <= most:
        return rates
    longest_s = (rates[-1].end - rates[0].start) / most
    found: list[StepRate] = []
    for each in rates:
        last = found[-1] if found else None
        if last is not None and last.cycle == each.cycle and each.end - last.start <= longest_s:
            found[-1] = last.but(end=each.end, steps=last.steps + each.steps)
        else:
            found.append(each)
    return found
