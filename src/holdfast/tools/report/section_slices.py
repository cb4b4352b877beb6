"""When a rank was in which section, for the timeline of a run. Pure.

To write down each section would cost as much as a profiler. The launcher reads the page of a rank
now and then, and once after its end. Between two looks this is known of a section that is

    still open         since when it is open
    ended once         both its instants
    ended more often   how often, seconds in all, and the instants between which that was

So sections that are rare, or longer than the time between two looks, are known exactly; of short
ones that come often, their share.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.base.pure.value import Value
from holdfast.page.pure.page_view import ClosedSection, RankProgress


class SectionSlice(Value):
    """A section was open from ``start`` to ``end``; or, where it has ended often, now and then.

    Attributes:
        start: Instant.
        end: Instant.
        times: How often it has ended. 1: the instants are those of that one time.
        total_s: Seconds in it, of all these times.
        is_open: It had not ended at ``end``, when the rank did, or was last looked at.
    """

    name: str
    start: float
    end: float
    times: int
    total_s: float
    is_open: bool = False


class _Section:
    def __init__(self, name: str, began: float) -> None:
        self.name = name
        self.looked_at = began
        self.shown: ClosedSection | None = None
        self.open_since: float | None = None
        self.end = began

    def look(
        self, begun: float, at: float, shown: ClosedSection | None, open_since: float | None
    ) -> Iterator[SectionSlice]:
        """Slices between the last look and this one."""
        before = self.shown
        if shown is not None:
            n = shown.times - (before.times if before else 0)
            total_s = shown.total_s - (before.total_s if before else 0.0)
            if n > 0 and total_s >= 0.0:
                longest_s = (
                    shown.longest_s if not before or shown.longest_s > before.longest_s else None
                )
                yield from self._ended(at, n, total_s, longest_s, shown)
            self.shown = shown
        self.looked_at, self.open_since = begun, open_since

    def _ended(
        self, at: float, n: int, total_s: float, longest_s: float | None, shown: ClosedSection
    ) -> Iterator[SectionSlice]:
        since = self.open_since
        begin = self.looked_at
        if self.shown is None:
            begin = max(begin, shown.first_at)
        if since is not None:
            begin = since
            # It is the longest of these if none of the others can have been: they came after it.
            others_s = min(at - self.looked_at, total_s - max(0.0, self.looked_at - since))
            if n > 1 and longest_s is not None and longest_s > others_s:
                yield from self._slice(since, since + longest_s, 1, longest_s)
                begin, n, total_s = since + longest_s, n - 1, max(0.0, total_s - longest_s)
        if n == 1:
            begin = max(begin, shown.closed_at - total_s)
        yield from self._slice(begin, min(shown.closed_at, at), n, total_s)

    def last(self, at: float) -> Iterator[SectionSlice]:
        """No look follows."""
        if self.open_since is not None:
            yield from self._slice(self.open_since, at, 1, at - self.open_since, is_open=True)

    def _slice(
        self, start: float, end: float, n: int, total_s: float, *, is_open: bool = False
    ) -> Iterator[SectionSlice]:
        """One after the other, whatever the page said."""
        start = max(start, self.end)
        if end > start:
            self.end = end
            total_s = min(total_s, end - start)
            yield SectionSlice(self.name, start, end, n, total_s, is_open)


class RankSections:
    """The sections of one rank in one cycle, from look to look."""

    def __init__(self, began: float, ended: float) -> None:
        self._began = began
        self._ended = ended
        self._sections: dict[str, _Section] = {}

    def look(self, begun: float, at: float, progress: RankProgress) -> Iterator[SectionSlice]:
        """Slices since the look before, section by section.

        Args:
            begun: The page was read after this instant,
            at: and before this one.
            progress: Its content.
        """
        sections = self._sections
        when = min(begun, self._ended), min(at, self._ended)
        for name in {**progress.sections, **progress.open}:
            section = sections.setdefault(name, _Section(name, self._began))
            yield from section.look(*when, progress.sections.get(name), progress.open.get(name))
        for name in sections.keys() - progress.sections.keys() - progress.open.keys():
            sections[name].open_since = None

    def over(self) -> Iterator[SectionSlice]:
        """No look follows: the sections that are still open."""
        for section in self._sections.values():
            yield from section.last(self._ended)
