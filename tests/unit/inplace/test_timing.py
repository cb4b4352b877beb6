"""The order of all waits, and when a rank whose guard is stopped leaves or ends itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.inplace.pure.timing import (
    BEATS_IN_SILENCE,
    STILL_SHARE,
    RankLease,
    Step,
    guard_fence_s,
    guard_lease_until,
    moment_s,
    rank_fence_s,
    rank_lease_until,
)

SECONDS = st.floats(1e-3, 1e6)


@given(SECONDS, SECONDS, SECONDS)
def test_everybody_has_gone_in_this_order_before_the_others_go_on(
    answered_at: float, silence_s: float, grace_s: float
) -> None:
    """The guard tells, the rank notices by itself, the guard kills, the rank ends itself."""
    told = guard_lease_until(answered_at, silence_s)
    noticed = rank_lease_until(answered_at, silence_s)
    killed_at_last = told + guard_fence_s(silence_s, 1e9)
    ended = noticed + rank_fence_s(silence_s)
    next_beat = answered_at + silence_s / BEATS_IN_SILENCE
    assert answered_at < next_beat < told < noticed < killed_at_last < ended
    assert ended < answered_at + silence_s
    assert guard_fence_s(silence_s, grace_s) <= grace_s


@given(SECONDS)
def test_a_victim_is_named_before_it_counts_as_standing_still_once_more(soft_s: float) -> None:
    """The moment that it is given, and the one that it is looked at for, are short."""
    assert 0.0 < 2 * moment_s(soft_s) <= STILL_SHARE * soft_s < soft_s


N, L, E = Step.NOTHING, Step.LEAVE, Step.END


@pytest.mark.parametrize(
    ("looks", "why"),
    [
        ([(10.0, 9.9, N), (10.0, 10.0, L), (10.0, 14.9, N), (10.0, 15.0, E)], "leave, then end"),
        ([(10.0, 9.9, N), (20.0, 10.0, N), (20.0, 20.0, L)], "it was renewed"),
        ([(10.0, 15.0, E)], "the rank was stopped, too, and wakes up late"),
        ([(10.0, 12.0, L), (10.0, 15.0, E)], "or a little late: the end is not put off"),
        ([(10.0, 10.0, L), (30.0, 12.0, N), (30.0, 15.0, E)], "what was over stays over"),
        ([(None, 1e9, N)], "nobody needs one any more"),
        ([(10.0, 10.0, L), (None, 12.0, N), (None, 15.0, E)], "which comes too late here"),
    ],
)
def test_what_a_rank_does_about_its_lease(
    looks: list[tuple[float | None, float, Step]], why: str
) -> None:
    lease = RankLease(5.0)
    for until, now, step in looks:
        assert lease.look(until, now) is step, why


@given(st.lists(st.tuples(st.none() | st.floats(0, 100), st.floats(0, 10)), max_size=20))
def test_looking_when_it_says_is_as_good_as_looking_all_the_time(
    words: list[tuple[float | None, float]],
) -> None:
    """Nothing follows from a look before the next one is due."""
    lease, now = RankLease(5.0), 0.0
    for until, later_s in words:
        now += later_s
        lease.look(until, now)
        due = lease.next_look(until)
        if due is None or due > now:
            assert lease.look(until, now) is Step.NOTHING
        else:
            assert lease.look(until, now) is Step.END
