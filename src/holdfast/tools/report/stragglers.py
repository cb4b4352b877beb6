"""Find ranks that are slower than their peers in a section. Pure; seconds everywhere.

In a job that works in step, a slow rank makes the others wait, in the section that holds the
collective. So a section says something only where ranks differ *before* they meet: ``data``, or a
forward pass. There the slow rank stands out; in the section of the collective, none does.

A rank is named where the mean of a section, over a window, is more than ``FACTOR`` times the median
of all ranks, and further from it than ``DEVIATIONS`` times the median absolute deviation (1.4826
times that estimates a standard deviation of normal values: P. Rousseeuw and C. Croux, Alternatives
to the Median Absolute Deviation, 1993), which keeps noisy sections quiet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import TypeAlias

from holdfast.base.pure.value import Value
from holdfast.base.pure.wording import duration

FACTOR = 1.25
DEVIATIONS = 5.0
_LEAST_RANKS = 3
"""With two, either could be the slow one."""
LEAST_TIMES = 5
"""A section that has ended fewer times says nothing."""
_LEAST_S = 0.001
"""Of difference: shorter ones are noise."""
_SIGMA = 1.4826

Totals: TypeAlias = Mapping[int, Mapping[str, tuple[int, float]]]
"""By rank and section: how often it has ended, and the seconds of all of these together."""


class Slow(Value):
    """One rank, slow in one section."""

    rank: int
    section: str
    mean_s: float
    median_s: float

    @property
    def factor(self) -> float:
        """How many times as long as the median."""
        return self.mean_s / self.median_s if self.median_s else float("inf")


def slow(means: Mapping[str, Mapping[int, float]]) -> list[Slow]:
    """Ranks that are slower than their peers, the slowest first."""
    found = []
    for section, by_rank in means.items():
        if len(by_rank) < _LEAST_RANKS:
            continue
        middle = median(by_rank.values())
        spread = _SIGMA * median(abs(mean - middle) for mean in by_rank.values())
        bound = max(FACTOR * middle, middle + DEVIATIONS * spread, middle + _LEAST_S)
        found += [Slow(r, section, mean, middle) for r, mean in by_rank.items() if mean > bound]
    return sorted(found, key=lambda each: each.median_s - each.mean_s)


def slow_words(cycle: int, one: Slow) -> str:
    """``cycle 0: rank 2 in data, 31.0 ms on average, 2.9x the median of all ranks``."""
    return (
        f"cycle {cycle}: rank {one.rank} in {one.section}, {duration(one.mean_s)} on average, "
        f"{one.factor:.1f}x the median of all ranks"
    )


class Stragglers:
    """Compares sections of ranks within the last ``window_s`` seconds."""

    def __init__(self, window_s: float = 60.0) -> None:
        self._window_s = window_s
        self._past: deque[tuple[float, Totals]] = deque()

    def look(self, totals: Totals, now: float) -> list[Slow]:
        """Take the totals of now; gives the slow ranks."""
        while len(self._past) > 1 and self._past[1][0] <= now - self._window_s:
            self._past.popleft()
        before = self._past[0][1] if self._past else {}
        self._past.append((now, totals))
        means: dict[str, dict[int, float]] = {}
        for rank, sections in totals.items():
            for name, (times, total_s) in sections.items():
                times_then, total_then_s = before.get(rank, {}).get(name, (0, 0.0))
                if times < times_then:  # the rank was started anew
                    times_then, total_then_s = 0, 0.0
                if (n := times - times_then) >= LEAST_TIMES:
                    means.setdefault(name, {})[rank] = (total_s - total_then_s) / n
        return slow(means)
