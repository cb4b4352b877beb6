"""Which rank hangs by itself, and how often it may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.inplace.pure.escalation import MOST, Blocked, Hangs, is_looked_at, look_for_s
from holdfast.inplace.pure.job_calls import Cause, FaultKind

SOFT_S = 60.0
HUNG = Blocked(worked_s=1.0, silent_s=60.0, is_freed=False)
FREED = Blocked(worked_s=1.0, silent_s=60.0, is_freed=True)
WORKED = Blocked(worked_s=60.0, silent_s=60.0, is_freed=False)


@pytest.mark.parametrize(
    ("story", "ended", "why"),
    [
        ([HUNG, HUNG, HUNG], [0, 0, 1], "the third in a row"),
        ([HUNG, HUNG, HUNG, HUNG], [0, 0, 1, 1], "and every one after"),
        ([FREED] * 10, [0] * 10, "who waits for others is never ended"),
        ([HUNG, HUNG, FREED, HUNG, HUNG], [0] * 5, "it got as far as a collective"),
        ([HUNG, HUNG, None, HUNG, HUNG], [0] * 5, "an iteration ended in another way"),
        ([WORKED] * 10, [0] * 10, "it worked for as long as it hung"),
        ([HUNG, HUNG, WORKED, HUNG, HUNG], [0, 0, 0, 0, 1], "its work begins a new row"),
    ],
)
def test_when_a_rank_is_ended(story: list[Blocked | None], ended: list[int], why: str) -> None:
    hangs = Hangs(SOFT_S)
    seen = []
    for one in story:
        if one is None:
            hangs.did_not_hang()
            seen.append(0)
        else:
            seen.append(int(hangs.looked(one) is not None))
    assert seen == ended, why


def test_the_reason_has_the_numbers() -> None:
    hangs = Hangs(SOFT_S)
    texts = [hangs.looked(HUNG) for _ in range(MOST)]
    assert texts[:-1] == [None] * (MOST - 1)
    assert str(texts[-1]).startswith("hung by itself in 3 iterations in a row, now for 60.0 s")


@pytest.mark.parametrize(
    ("kinds", "silent_s", "looked_at"),
    [
        ([FaultKind.SOFT_TIMEOUT], 60.0, True),
        ([FaultKind.SOFT_TIMEOUT], 30.0, True),
        ([FaultKind.SOFT_TIMEOUT], 29.9, False),
        ([FaultKind.EXCEPTION], 60.0, False),
        ([FaultKind.EXCEPTION, FaultKind.SOFT_TIMEOUT], 60.0, True),
        ([], 60.0, False),
    ],
)
def test_a_rank_is_looked_at_that_stood_still_when_a_hang_ended_the_iteration(
    kinds: list[FaultKind], silent_s: float, looked_at: bool
) -> None:
    causes = tuple(Cause(1, kind) for kind in kinds)
    assert is_looked_at(causes, silent_s, SOFT_S) is looked_at


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 200))))
def test_a_rank_is_ended_only_after_so_many_hangs_in_a_row_without_work(
    story: list[tuple[bool, float]],
) -> None:
    """Against the plain reading of the rule."""
    hangs = Hangs(SOFT_S)
    for number, (is_freed, worked_s) in enumerate(story, 1):
        ended = hangs.looked(Blocked(worked_s, SOFT_S, is_freed)) is not None
        row = story[max(0, number - MOST) : number]
        hung_throughout = len(row) == MOST and not any(freed for freed, _ in row)
        worked = [worked_s >= SOFT_S for _, worked_s in row[1:]]
        assert ended == (hung_throughout and not any(worked))


@given(st.floats(1e-3, 1e6))
def test_looking_takes_little_of_the_timeout(soft_s: float) -> None:
    assert look_for_s(soft_s, 1) <= min(0.25, soft_s / 4)


def test_the_first_hang_costs_a_restart_no_look() -> None:
    """Only what follows from several hangs needs to be sure."""
    assert look_for_s(60.0, 0) == 0.0
    assert look_for_s(60.0, 1) == 0.25
    assert look_for_s(0.4, 2) == 0.1
