"""What a monitor makes of a page, whatever the rank was doing or has done to it."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.page.page import Page, private_page
from holdfast.page.pure import page as layout
from holdfast.page.pure.clocks import (
    HEARTBEAT,
    INITIAL_HEARTBEAT,
    OUTSIDE_SECTIONS,
    SECTION,
    Learned,
    Timeouts,
)
from holdfast.page.pure.page_view import PageView
from holdfast.watch.pure.hang import next_deadline, overdue


def armed_page() -> Page:
    """One rank with two sections, as the client leaves it."""
    page = private_page()
    words = page.words
    page.store_names(["step", "checkpoint"])
    words[layout.LIMIT_INITIAL] = 10.0
    words[layout.LIMIT_HEARTBEAT] = 5.0
    words[layout.LIMIT_OUTSIDE] = math.inf
    words[layout.slot(0) + layout.LIMIT] = 3.0
    words[layout.slot(1) + layout.LIMIT] = math.inf
    words[layout.LIMITS_VERSION] = 2.0
    words[layout.ITERATION] = -1.0
    words[layout.OUTSIDE_SINCE] = 100.0
    words[layout.ARMED_AT] = 100.0
    return page


def view(page: Page) -> PageView:
    """As the monitor reads it."""
    return PageView(page.words, page.names)


def test_an_unarmed_page_shows_nobody() -> None:
    """Not even a rank with everything else in place."""
    page = armed_page()
    page.words[layout.ARMED_AT] = 0.0

    assert view(page).snapshot() is None
    assert view(private_page()).snapshot() is None
    assert view(private_page()).limits() == Timeouts()


def test_the_steps_of_a_rank_are_shown_whether_it_reports_by_itself_or_not() -> None:
    """Its heartbeats are its steps where it sends none."""
    page = armed_page()
    page.words[layout.HEARTBEAT_AT], page.words[layout.LONGEST_GAP] = 104.0, 3.0
    page.words[layout.STEPS] = 7.0
    alone = view(page).snapshot()
    assert alone is not None
    assert (alone.steps, alone.stepped_at, alone.longest_s) == (7.0, 104.0, 3.0)
    assert alone.heartbeat_at is None

    page.words[layout.STEPS], page.words[layout.STEPS_BESIDE] = 0.0, 9.0
    page.words[layout.STEPPED_AT], page.words[layout.LONGEST_STEP] = 105.0, 4.0
    page.words[layout.slot(0) + layout.CLOSED_AT] = 106.0
    beside = view(page).snapshot()
    assert beside is not None
    assert (beside.steps, beside.stepped_at, beside.heartbeat_at) == (9.0, 105.0, 104.0)
    assert (beside.closed_at, beside.last_sign_at) == (106.0, 106.0)


@pytest.mark.parametrize(
    ("open_section", "outside_s", "outside_since", "longest_s"),
    [
        (None, 2.0, 103.0, 2.0),  # between two steps there was a section
        (None, 2.0, 80.0, 25.0),  # the last step was outside as well
        (None, 2.0, 10.0, 40.0),
        ("step", 2.0, 0.0, 2.0),
        ("checkpoint", 2.0, 0.0, 40.0),  # without a timeout: it may have paused inside
    ],
)
def test_no_pause_is_longer_than_the_time_between_steps_or_outside_sections(
    open_section, outside_s, outside_since, longest_s
) -> None:
    page = armed_page()
    words = page.words
    words[layout.STEPS_BESIDE], words[layout.STEPPED_AT] = 9.0, 105.0
    words[layout.LONGEST_STEP], words[layout.LONGEST_OUTSIDE] = 40.0, outside_s
    words[layout.OUTSIDE_SINCE] = outside_since
    if open_section:
        words[layout.slot(page.names().index(open_section)) + layout.OPENED_AT] = 106.0
    shown = view(page).snapshot()
    assert shown is not None
    assert shown.longest_s == longest_s


def test_an_armed_page_shows_clocks_and_limits() -> None:
    """Infinity is "no limit", zero is "not running"."""
    page = armed_page()
    page.words[layout.slot(1) + layout.OPENED_AT] = 104.0
    page.words[layout.OUTSIDE_SINCE] = 0.0
    shown = view(page)
    snapshot = shown.snapshot()

    assert snapshot is not None
    assert (snapshot.armed_at, snapshot.heartbeat_at, snapshot.outside_since) == (100.0, None, None)
    assert snapshot.sections == {"checkpoint": 104.0}
    assert shown.limits() == Timeouts(10.0, 5.0, None, {"step": 3.0, "checkpoint": None})
    assert shown.iteration is None


def test_learned_limits_are_marked() -> None:
    """The guard applies to these alone."""
    page = armed_page()
    page.words[layout.LEARNED_HEARTBEAT] = 1.0
    page.words[layout.LEARNED_OUTSIDE] = 1.0
    page.words[layout.slot(0) + layout.LEARNED] = 1.0

    learned = view(page).limits().learned
    assert learned == Learned(heartbeat=True, out_of_section=True, sections=("step",))
    for clock in (INITIAL_HEARTBEAT, HEARTBEAT, OUTSIDE_SECTIONS):
        assert learned.has(clock, None)
    assert learned.has(SECTION, "step")
    assert not learned.has(SECTION, "checkpoint")


def test_half_written_limits_leave_the_old_ones_in_force() -> None:
    """A rank that was stopped in the middle of the change included."""
    page = armed_page()
    shown = view(page)
    assert shown.limits().sections["step"] == 3.0

    page.words[layout.LIMITS_VERSION] = 3.0
    page.words[layout.slot(0) + layout.LIMIT] = 99.0
    assert shown.limits().sections["step"] == 3.0

    page.words[layout.LIMITS_VERSION] = 4.0
    assert shown.limits().sections["step"] == 99.0


def test_warm_up_lasts_until_its_iteration() -> None:
    """And is no excuse for a rank that reports no iterations."""
    page = armed_page()
    page.words[layout.WARM_UNTIL] = 5.0
    warm = []
    for iteration in (-1.0, 0.0, 4.0, 5.0):
        page.words[layout.ITERATION] = iteration
        snapshot = view(page).snapshot()
        assert snapshot is not None
        warm.append(snapshot.warming_up)

    assert warm == [False, True, True, False]


@pytest.mark.parametrize("table", [b"[[], {}]", b"[1, 2]", b"[" * 20000, b"[null, NaN]"])
def test_a_table_of_names_without_sense_is_none(table: bytes) -> None:
    """The rank scribbled over it, too: its other limits are read, and nothing is raised."""
    page = armed_page()
    page._map[layout.NAMES_OFFSET : layout.NAMES_OFFSET + len(table)] = table
    page.words[layout.NAMES_BYTES] = float(len(table))
    shown = view(page)

    snapshot = shown.snapshot()

    assert snapshot is not None
    assert snapshot.sections == {}
    assert shown.limits() == Timeouts(10.0, 5.0, None, {})


WILD = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 1.0, 2.0, 100.0])


@given(seed=st.integers(0, 2**32), words=st.lists(WILD, min_size=60, max_size=60))
def test_no_page_upsets_the_reader(seed: int, words: list[float]) -> None:
    """A rank that scribbled over its memory cannot take its monitor down."""
    page = armed_page()
    for index, word in enumerate(words):
        if random.Random(seed + index).random() < 0.3:
            page.words[index] = word
    shown = view(page)
    snapshot = shown.snapshot()
    limits = shown.limits()

    assert isinstance(shown.pid + shown.start_ticks + shown.dump_signal + shown.global_rank, int)
    assert shown.iteration is None or shown.iteration >= 0
    if snapshot is not None:
        deadline = next_deadline(snapshot, limits)
        assert deadline is None or math.isfinite(deadline) or deadline == math.inf
        overdue(snapshot, limits, now=1e6)
