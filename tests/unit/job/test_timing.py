"""The order of all times of the protocol between launchers: one property instead of many limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.job.pure import timing
from holdfast.job.pure.timing import Pace

SECONDS = st.floats(1e-2, 1e5)
SHARES = st.floats(0.01, 0.99)


@given(SECONDS, SHARES, SHARES)
def test_a_node_that_is_cut_off_has_ended_its_ranks_before_the_others_go_on(
    silence_s: float, of_beat: float, of_fence: float
) -> None:
    """It asks if it slept, fences itself, its monitors do, and only then its place is free."""
    beat_s = of_beat * silence_s / 2
    fence_s = beat_s + of_fence * (silence_s - 2 * beat_s)
    pace = Pace(silence_s, beat_s, fence_s)
    goes_on = silence_s - beat_s  # on the node's clock: the leader's starts a beat later, at most

    assert 0 < pace.beat_s < pace.ask_s <= pace.fence_s
    assert pace.fence_s < pace.fence_s + pace.lease_s < pace.fence_s + pace.killing_lease_s
    assert pace.fence_s + pace.killing_lease_s <= goes_on * (1 + 1e-9)
    assert goes_on < pace.silence_s < pace.return_s


@given(SECONDS, SHARES, SHARES)
def test_no_two_leaders_have_ranks_at_a_time(
    silence_s: float, of_beat: float, of_fence: float
) -> None:
    """Counted from the last beat of the leader that a voter of the next one has received.

    A lease that is renewed in time grants no less than a follower waits for by itself; no node that
    the leader needs is given up before the lease is over; and the next leader starts ranks when the
    last ones that the lease allowed have been ended by their monitors.
    """
    beat_s = of_beat * silence_s / 2
    fence_s = beat_s + of_fence * (silence_s - 2 * beat_s)
    pace = Pace(silence_s, beat_s, fence_s)
    last_grant = pace.leader_lease_s + pace.beat_s  # of a beat that was under way for one

    assert pace.fence_s < pace.leader_lease_s <= pace.silence_s
    assert pace.takeover_s >= (last_grant + pace.killing_lease_s) * (1 - 1e-9)
    assert pace.takeover_s > pace.silence_s > pace.fence_s, "the next leader is found meanwhile"
    assert pace.step_down_s >= pace.beat_s
    assert pace.takeover_s < pace.fence_s + pace.return_s, "a launcher without a leader waits"


@given(SECONDS)
def test_a_stall_that_costs_no_follower_its_ranks_costs_the_leader_no_lease(
    silence_s: float,
) -> None:
    """With the pace of a timeout: beats that are answered grant ``fence_s``, and half a beat."""
    pace = Pace.of(silence_s)
    assert pace.leader_lease_s - pace.beat_s >= pace.fence_s
    assert pace.takeover_s == pytest.approx((1.15 if silence_s < 15 else 1.3) * silence_s)


@given(SECONDS)
def test_the_pace_of_a_timeout_keeps_that_order_with_five_beats_or_ten(silence_s: float) -> None:
    """What ``keep_alive_timeout`` says decides all of it."""
    pace = Pace.of(silence_s)
    assert pace.silence_s == pytest.approx((10 if silence_s < 15 else 5) * pace.beat_s)
    assert pace.ask_s == pytest.approx(1.5 * pace.beat_s)
    assert 2 * pace.ask_s <= 0.9 * pace.fence_s * (1 + 1e-9), "votes are back before they lapse"
    assert pace.lease_s >= silence_s / 30 * (1 - 1e-9)


def test_a_launcher_may_stand_still_for_three_seconds_with_a_timeout_of_five() -> None:
    """Just after it could have sent its next beat: no follower's silence is over before."""
    pace = Pace.of(5.0)
    assert pace.beat_s + 3.0 < pace.fence_s
    assert Pace().beat_s + 6.5 < Pace().fence_s


def test_the_leader_before_is_called_each_second_while_others_would_wait_and_then_rarely() -> None:
    """As long as a launcher that slept finds a leader; then in pauses that double, for ever."""
    pace, at, calls = Pace(), 0.0, []
    while at < 1000.0:
        calls.append(at)
        at += pace.call_pause_s(at)
    assert calls[:121] == [float(second) for second in range(121)]
    assert calls[121:] == [121, 122, 124, 128, 136, 152, *range(182, 1000, 30)]


def test_the_default_is_the_pace_of_fifteen_seconds() -> None:
    assert Pace() == Pace.of(15.0)


def test_each_step_of_an_incident_leaves_time_for_the_next() -> None:
    """Look, answer, verdict, and a launcher on its own just before the monitors act."""
    shares = [
        timing.ALONE_SHARE,
        timing.LOOK_SHARE,
        timing.ANSWER_SHARE,
        timing.VERDICT_SHARE,
        timing.JUDGE_SHARE,
    ]
    assert shares[0] > 0
    assert shares == sorted({*shares})
    assert shares[-1] < 1


def test_a_leader_that_does_not_answer_is_given_up_before_a_launcher_that_waits_for_it() -> None:
    """Attempts, last words, then the way to the leader."""
    assert timing.TRY_AGAIN_S < timing.LAST_WORDS_S < timing.WELCOME_S
    assert Pace().beat_s > timing.NEWS_S
    assert Pace().silence_s > timing.READ_LIMIT_S
