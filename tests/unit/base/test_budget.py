"""How often something may be started again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.pure.budget import Budget

gaps_s = st.lists(st.floats(0, 100), max_size=60)


def test_a_count_without_a_period_is_for_ever() -> None:
    """Two are two, whenever they are asked for."""
    budget = Budget(2)

    assert [budget.take(now) for now in (0.0, 1e3, 1e9)] == [True, True, False]
    assert (budget.spent, budget.left) == (2, 0)


def test_a_period_forgets() -> None:
    """What was spent a period ago may be spent again."""
    budget = Budget(1, period_s=60.0)

    assert [budget.take(now) for now in (0.0, 59.9, 60.0)] == [True, False, True]


@given(count=st.integers(0, 5), period_s=st.floats(1, 200), gaps=gaps_s)
def test_no_window_ever_holds_more_than_the_count(
    count: int, period_s: float, gaps: list[float]
) -> None:
    """B-1, for a budget with a period."""
    budget = Budget(count, period_s)
    now, granted = 0.0, []
    for gap in gaps:
        now += gap
        if budget.take(now):
            granted.append(now)

    for start in granted:
        assert sum(start <= at < start + period_s for at in granted) <= count
