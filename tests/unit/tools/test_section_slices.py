"""What a timeline shows of sections is what ranks did, whenever their pages were looked at."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.page.pure.page_view import ClosedSection, RankProgress
from holdfast.tools.report.section_slices import RankSections, SectionSlice

PUBLISH_S = 0.001
Look = tuple[float, float, RankProgress]
"""A page was read between these two instants, and showed this."""


def section_slices(began: float, looks: list[Look], ended: float) -> list[SectionSlice]:
    """All of one rank in one cycle."""
    rank = RankSections(began, ended)
    return [*(one for look in looks for one in rank.look(*look)), *rank.over()]


class Rank:
    """One section of a rank, with the words of its page (``fault_tolerance/rank``)."""

    def __init__(self) -> None:
        self.done: list[tuple[float, float]] = []
        self.open_since: float | None = None
        self.shown: ClosedSection | None = None
        self._unpublished, self._unpublished_s, self._longest_s = 0, 0.0, -1.0

    def close(self, now: float) -> None:
        took_s = now - self.open_since
        self.done.append((self.open_since, now))
        self.open_since = None
        self._unpublished, self._unpublished_s = self._unpublished + 1, self._unpublished_s + took_s
        if self._unpublished_s <= min(self._longest_s, PUBLISH_S):
            return
        self._longest_s = max(self._longest_s, took_s)
        old = self.shown or ClosedSection(0, 0.0, 0.0, now - took_s, 0.0)
        totals = old.times + self._unpublished, old.total_s + self._unpublished_s
        self.shown = ClosedSection(*totals, self._longest_s, old.first_at, now)
        self._unpublished, self._unpublished_s = 0, 0.0

    def look(self) -> RankProgress:
        return RankProgress(
            0,
            open={} if self.open_since is None else {"step": self.open_since},
            sections={} if self.shown is None else {"step": self.shown},
        )


DURATIONS = st.sampled_from((0.0001, 0.0004, 0.003, 0.2, 1.0, 7.0, 12.0, 31.0))


@given(
    st.lists(st.tuples(DURATIONS, DURATIONS), max_size=60),
    st.sampled_from((2.0, 10.0)),
    st.booleans(),
)
def test_slices_are_the_sections_that_there_were(done, every_s, dies_inside) -> None:
    """Those of one time exactly; of many, their number and seconds; the long ones all of one."""
    rank, now, looks = Rank(), 100.0, []
    next_look = now + every_s

    def until(then: float) -> None:
        nonlocal now, next_look
        while next_look <= then:
            looks.append((next_look, next_look, rank.look()))
            next_look += every_s
        now = then

    for outside_s, inside_s in done:
        until(now + outside_s)
        rank.open_since = now
        until(now + inside_s)
        rank.close(now)
    if dies_inside:
        rank.open_since = now
        until(now + 3.0)
    looks.append((now + 0.5, now + 0.5, rank.look()))
    slices = section_slices(100.0, looks, now)

    near = lambda a, b: abs(a - b) < 2e-6  # noqa: E731
    assert all(one.end <= after.start + 1e-9 for one, after in pairwise(slices))
    shown = 0
    for one in slices:
        if one.is_open:
            assert dies_inside
            assert (one.start, one.end) == (rank.open_since, now)
        elif one.times == 1:
            assert any(near(one.start, a) and near(one.end, b) for a, b in rank.done), one
            shown += 1
        else:
            # Times below a thousandth of a second are told of up to as much section time later.
            inside = [b - a for a, b in rank.done if one.start - 1e-6 <= a and b <= one.end + 1e-6]
            late = 11
            assert len(inside) - late <= one.times <= len(inside) + late
            assert one.total_s == pytest.approx(sum(inside), abs=2 * PUBLISH_S + 1e-6)
            shown += one.times
    ended = rank.shown or ClosedSection(0, 0.0, 0.0, 0.0, 0.0)
    assert shown <= ended.times
    total_s = sum(one.total_s for one in slices if not one.is_open)
    assert total_s == pytest.approx(ended.total_s, abs=len(looks) * PUBLISH_S)
    exact = [one for one in slices if one.times == 1]
    for a, b in rank.done:
        # A shorter one of the same name may end in the same interval; not two that are longer.
        if b - a > every_s + 0.1 and b - a > max((d - c for c, d in rank.done if c < a), default=0):
            assert any(near(one.start, a) and near(one.end, b) for one in exact), (a, b)


def looks(*shown: tuple[float, float | None, list[float] | None]) -> list[Look]:
    return [
        (
            at,
            at,
            RankProgress(
                0,
                open={} if opened is None else {"step": opened},
                sections={}
                if ended is None
                else {"step": ClosedSection(int(ended[0]), *ended[1:])},
            ),
        )
        for at, opened, ended in shown
    ]


def test_a_slow_first_step_is_told_from_the_many_that_follow_in_the_same_interval() -> None:
    """It is longer than any of them can have been."""
    shown = looks(
        (10.0, 4.0, None),
        (20.0, 4.0, None),
        (30.0, 29.9, [81, 26.0, 18.0, 4.0, 29.8]),
    )
    assert section_slices(3.0, shown, 30.5) == [
        SectionSlice("step", 4.0, 22.0, 1, 18.0),
        SectionSlice("step", 22.0, 29.8, 80, pytest.approx(7.8)),
        SectionSlice("step", 29.9, 30.5, 1, pytest.approx(0.6), is_open=True),
    ]


def test_a_page_that_makes_no_sense_gives_slices_one_after_the_other() -> None:
    """Within the life of the rank."""
    shown = looks(
        (10.0, 90.0, [3, 1e9, 2.0, -5.0, 1e300]),
        (20.0, 1.0, [2, 4.0, 5.0, 1.0, 3.0]),
        (30.0, None, [9, 1.0, 0.0, 40.0, 50.0]),
    )
    slices = section_slices(3.0, shown, 25.0)
    for one, following in pairwise(slices):
        assert one.start < one.end <= following.start
    assert all(3.0 <= one.start < one.end <= 25.0 for one in slices)
    assert all(0.0 <= one.total_s <= one.end - one.start for one in slices)
