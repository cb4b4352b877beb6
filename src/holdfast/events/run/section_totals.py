"""How long and how often ranks have been in each section, over all cycles: never less than before.

A page counts from the start of its rank, and goes with its cycle; the last event of a cycle has its
totals a second after the next one has begun. So the most that was seen of each cycle is kept. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.events.pure.schema import PagesRead

Totals = dict[tuple[int, str], tuple[float, int]]
"""By rank and section: seconds, and how often it has ended."""


class SectionTotals:
    """Of the ranks of one node."""

    def __init__(self) -> None:
        self._past: Totals = {}
        self._cycles: dict[int, Totals] = {}
        self._over: set[int] = set()

    def see(self, cycle: int, rank: int, name: str, total_s: float, times: int) -> None:
        """What a page shows, or did."""
        if cycle not in self._over:
            of_cycle = self._cycles.setdefault(cycle, {})
            seen_s, seen = of_cycle.get((rank, name), (0.0, 0))
            of_cycle[rank, name] = max(seen_s, total_s), max(seen, times)

    def take(self, look: PagesRead, cycle: int) -> None:
        """Take what a look at all pages has shown."""
        for shown in look.ranks.values():
            for name, ended in shown.sections.items():
                self.see(cycle, shown.rank, name, ended.total_s, ended.times)
        if look.final:
            self._over.add(cycle)
            self._past = _sum(self._past, self._cycles.pop(cycle, {}))

    def all(self) -> Iterator[tuple[int, str, float, int]]:
        """Rank, section, seconds, times."""
        found = self._past
        for of_cycle in self._cycles.values():
            found = _sum(found, of_cycle)
        return ((*key, *value) for key, value in found.items())


def _sum(one: Totals, other: Totals) -> Totals:
    both = dict(one)
    for key, (total_s, times) in other.items():
        before_s, before = both.get(key, (0.0, 0))
        both[key] = before_s + total_s, before + times
    return both
