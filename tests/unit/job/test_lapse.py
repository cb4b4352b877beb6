"""How long a leader without a lease waits for it, on a virtual clock."""

from __future__ import annotations

import math

from holdfast.job.pure.lapse import Lapse
from holdfast.job.pure.leader_lease import LeaderLease
from holdfast.job.pure.timing import Pace

PACE = Pace()
LENGTH_S = PACE.leader_lease_s
NEVER = -math.inf


def lapse() -> Lapse:
    """Of the first leader; its lease lasts from 0 s on, as b and c have the round."""
    lease = LeaderLease(PACE, "a")
    lease.formed(frozenset("abc"), 0.0, can_move=True)
    return Lapse(lease)


def test_a_leader_steps_down_so_long_after_its_lease_has_ended() -> None:
    one = lapse()
    assert not one.note(LENGTH_S - 0.1, NEVER, is_needed=True)
    assert one.since is None
    assert one.next_at() == math.inf
    assert not one.note(LENGTH_S + 1.0, NEVER, is_needed=True)
    assert one.since == LENGTH_S
    assert one.next_at() == LENGTH_S + PACE.step_down_s
    assert one.ranks_s(LENGTH_S + 1.0, is_superseded=False) == PACE.step_down_s - 1.0
    assert one.ranks_s(one.next_at(), is_superseded=False) == 0.0


def test_a_lease_that_is_back_is_noted_once() -> None:
    one = lapse()
    number = one.lease.beat(LENGTH_S)
    one.note(LENGTH_S, NEVER, is_needed=True)
    one.lease.answered("b", number, 0.0)
    assert one.note(LENGTH_S + 1.0, NEVER, is_needed=True)
    assert not one.note(LENGTH_S + 2.0, NEVER, is_needed=True)
    assert one.since is None


def test_a_leader_that_slept_asks_first() -> None:
    one = lapse()
    one.woke(40.0)
    one.note(40.0, 40.0, is_needed=True)
    assert one.since == 40.0 + PACE.ask_s
    one.woke(60.0)
    assert one.since == 60.0 + PACE.ask_s


def test_when_nothing_is_left_to_decide_no_lease_is_missed() -> None:
    one = lapse()
    one.note(LENGTH_S, NEVER, is_needed=True)
    assert not one.note(LENGTH_S + 1.0, NEVER, is_needed=False)
    assert one.since is None


def test_a_leader_that_was_elected_waits_for_the_leases_before_it() -> None:
    lease = LeaderLease(PACE, "b")
    lease.inherit([frozenset("abc")], 9.0)
    one = Lapse(lease)
    one.begin(2.0)
    assert one.since == 9.0
    number = lease.beat(2.0)
    for node in "ac":
        lease.answered(node, number, 0.0)
    one.note(3.0, NEVER, is_needed=True)
    assert one.next_at() == 9.0, "then it has its own"
    lease.wait_until(11.0)
    one.others_until()
    assert one.since == 11.0
    assert one.note(11.0, NEVER, is_needed=True)
