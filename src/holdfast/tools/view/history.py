"""Steps per second over time, in few points, and as a line of small bars. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from holdfast.events.pure.schema import Event, PagesRead
from holdfast.page.pure.page_view import RankProgress

POINTS_MAX = 60
_BARS = "▁▂▃▄▅▆▇█"


class History:
    """Averages of equally long spans of time; the spans become twice as long when there are many.

    Args:
        span_s: Length of the first spans, seconds.
    """

    def __init__(self, span_s: float = 2.0) -> None:
        self._span_s = span_s
        self._sums: dict[int, tuple[float, int]] = {}

    def add(self, at: float, value: float) -> None:
        """Add a value of an instant, seconds; a value before all spans is left out."""
        if self._sums and at < min(self._sums) * self._span_s:
            return
        total, n = self._sums.get(index := int(at // self._span_s), (0.0, 0))
        self._sums[index] = total + value, n + 1
        while max(self._sums) - min(self._sums) >= POINTS_MAX:
            self._merge()

    def _merge(self) -> None:
        self._span_s *= 2.0
        spans, self._sums = self._sums, {}
        for index, (total, n) in spans.items():
            before, m = self._sums.get(index // 2, (0.0, 0))
            self._sums[index // 2] = before + total, m + n

    def points(self) -> list[tuple[float, float | None]]:
        """Begin and average of each span, in order; None: nothing is known of it."""
        if not self._sums:
            return []
        spans = range(min(self._sums), max(self._sums) + 1)
        found = ((index * self._span_s, self._sums.get(index)) for index in spans)
        return [(at, None if one is None else one[0] / one[1]) for at, one in found]


class Rates:
    """Iterations per second of one node, between two looks at the pages of its ranks."""

    def __init__(self) -> None:
        self._cycle = -1
        self._before: tuple[float, dict[int, int]] | None = None

    def take(self, event: Event) -> tuple[float, float] | None:
        """The instant of a look, and the median of its ranks since the look before."""
        if not isinstance(look := event.body, PagesRead):
            return None
        at = event.t if look.at is None else look.at
        counts = {rank.rank: n for rank in look.ranks.values() if (n := _iterations(rank))}
        before = self._before if event.cycle == self._cycle else None
        self._cycle, self._before = event.cycle, (at, counts)
        if before is None or at <= before[0]:
            return None
        rates = [
            (n - before[1][rank]) / (at - before[0])
            for rank, n in counts.items()
            if rank in before[1]
        ]
        return (at, max(0.0, median(rates))) if rates else None


def _iterations(progress: RankProgress) -> int | None:
    """As the rank counts them, or its optimizer's steps, else of its most frequent section."""
    if (n := progress.steps if progress.iteration is None else progress.iteration) is not None:
        return n
    return max((each.times for each in progress.sections.values()), default=None)


def sparkline(values: Sequence[float | None], width: int = 16) -> str:
    """The last ``width`` values as bars, from 0 to the largest; a dot for one that is unknown."""
    shown = values[-width:]
    largest = max((value for value in shown if value is not None), default=0.0)
    return "".join(
        "·" if value is None else _BARS[int(value / largest * 7.999) if largest > 0 else 0]
        for value in shown
    )
