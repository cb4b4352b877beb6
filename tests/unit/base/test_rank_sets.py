"""Sets of ranks as short texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.pure.rank_sets import ranks_of, text_of


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([7], "7"),
        ([0, 1], "0,1"),
        ([3, 2, 1, 0], "0-3"),
        ([0, 1, 2, 3, 8, 14, 20], "0-3,8-20/6"),
        (range(5, 16384, 8), "5-16381/8"),
    ],
)
def test_a_regular_set_is_a_few_characters(ranks: list[int], text: str) -> None:
    assert text_of(ranks) == text


@given(st.sets(st.integers(0, 60)))
def test_a_set_comes_out_as_it_went_in(ranks: set[int]) -> None:
    assert ranks_of(text_of(ranks)) == sorted(ranks)
