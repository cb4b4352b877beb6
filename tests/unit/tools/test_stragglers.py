"""Which rank is slower than its peers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.tools.report.stragglers import Stragglers, slow

EVEN = {0: 1.0, 1: 1.01, 2: 0.99, 3: 1.0}


@pytest.mark.parametrize(
    ("means", "named"),
    [
        (EVEN, []),
        ({**EVEN, 2: 1.6}, [2]),
        ({**EVEN, 2: 1.2}, []),
        ({0: 1.0, 1: 3.0}, []),
        ({0: 1.0, 1: 1.0, 2: 9.0}, [2]),
        ({0: 0.2, 1: 1.7, 2: 0.9, 3: 1.4, 4: 2.6}, []),
        ({0: 0.0001, 1: 0.0001, 2: 0.0009}, []),
        (dict.fromkeys(range(64), 1.0) | {7: 1.5, 9: 2.0}, [9, 7]),
    ],
    ids=["even", "one", "within 1.25", "two", "three", "noisy", "too short", "two of 64"],
)
def test_a_rank_is_named_that_stands_out_of_its_peers(means, named) -> None:
    assert [each.rank for each in slow({"data": means})] == named


@given(st.dictionaries(st.integers(0, 99), st.floats(0, 1e6), min_size=3))
def test_never_half_of_the_ranks_or_the_fastest_are_slow(means) -> None:
    named = {each.rank for each in slow({"data": means})}
    assert len(named) <= len(means) / 2
    assert min(means, key=means.get) not in named


def totals(times: int, **seconds: float):
    return {int(rank[1:]): {"data": (times, s)} for rank, s in seconds.items()}


def test_only_the_window_counts_so_that_a_slow_start_is_forgiven() -> None:
    stragglers = Stragglers(window_s=60)
    assert [s.rank for s in stragglers.look(totals(10, r0=10, r1=10, r2=90), 0)] == [2]
    assert [s.rank for s in stragglers.look(totals(20, r0=20, r1=20, r2=100), 61)] == []
    assert [s.rank for s in stragglers.look(totals(30, r0=30, r1=60, r2=110), 122)] == [1]


def test_a_rank_that_was_started_anew_is_compared_from_its_start() -> None:
    stragglers = Stragglers(window_s=60)
    stragglers.look(totals(100, r0=100, r1=100, r2=100), 0)
    assert stragglers.look(totals(10, r0=10, r1=10, r2=10), 60) == []


def test_a_section_that_has_ended_a_few_times_only_says_nothing() -> None:
    assert Stragglers().look(totals(4, r0=1, r1=1, r2=9), 0) == []
