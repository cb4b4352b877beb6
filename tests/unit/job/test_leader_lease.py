"""The lease of a leader: who has to answer, and for how long that is enough."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.job.pure.leader_lease import LeaderLease
from holdfast.job.pure.timing import Pace

PACE = Pace()
LENGTH_S = PACE.leader_lease_s


def lease(*nodes: str, home: str = "a", at: float = 0.0) -> LeaderLease:
    """Of the first leader of a job."""
    one = LeaderLease(PACE, home)
    one.formed(frozenset(nodes), at, can_move=True)
    settle(one, nodes)
    return one


def settle(one: LeaderLease, nodes: Iterable[str]) -> None:
    """All of these have the last round."""
    for node in nodes:
        one.received(node)
    assert one.is_settled


def elected(*nodes: str, home: str = "b", leases_until: float = 0.0) -> LeaderLease:
    one = LeaderLease(PACE, home)
    one.inherit([frozenset(nodes)], leases_until)
    return one


def test_it_ends_so_long_after_the_beat_that_half_have_answered_was_sent() -> None:
    """However late the answer comes; the leader itself is one of them."""
    one = lease("a", "b", "c")
    first, second = one.beat(1.0), one.beat(4.0)
    assert one.until() == 0.0 + LENGTH_S, "of the round"
    one.answered("b", first, 5.0)
    assert one.until() == 1.0 + LENGTH_S
    one.answered("c", second, 6.0)
    assert one.until() == 4.0 + LENGTH_S
    assert one.is_held(4.0 + LENGTH_S - 0.001)
    assert not one.is_held(4.0 + LENGTH_S)
    assert one.left_s(10.0) == 4.0 + LENGTH_S - 10.0
    assert one.left_s(100.0) == 0.0


def test_a_beat_that_grants_little_is_followed_by_another_when_it_is_answered() -> None:
    """That of a leader that has stood still; it may do so again before the next one is due."""
    one = lease("a", "b", "c")
    assert not one.answered("b", one.beat(1.0), 1.1)
    after_a_stall = one.beat(8.0)
    assert one.left_s(8.0) < PACE.fence_s
    assert one.answered("b", after_a_stall, 8.1)
    at_once = one.beat(8.1)
    assert not one.answered("c", after_a_stall, 8.2)
    assert not one.answered("b", at_once, 8.2)


@pytest.mark.parametrize(("others", "needed"), [(1, 0), (2, 1), (3, 1), (4, 2), (8, 4)])
def test_the_leader_in_office_breaks_a_tie(others: int, needed: int) -> None:
    """So a job of two survives its follower."""
    nodes = [f"n{k}" for k in range(others)]
    one = lease("a", *nodes)
    number = one.beat(50.0)
    for node in nodes[: needed - 1] if needed else []:
        one.answered(node, number, 0.0)
    assert one.is_held(51.0) == (needed == 0)
    for node in nodes[:needed]:
        one.answered(node, number, 0.0)
    assert one.is_held(51.0)


def test_an_elected_leader_needs_the_answers_of_more_than_half_first() -> None:
    """Half of four might be with another one; after that half are enough."""
    one = elected("a", "b", "c", "d")
    number = one.beat(20.0)
    one.answered("c", number, 0.0)
    assert one.until() == -math.inf
    one.answered("d", number, 0.0)
    assert one.until() == 20.0 + LENGTH_S
    later = one.beat(23.0)
    one.answered("c", later, 0.0)
    assert one.until() == 23.0 + LENGTH_S


def test_it_decides_nothing_while_the_leader_before_may_have_a_lease() -> None:
    one = elected("a", "b", "c", leases_until=25.0)
    one.answered("c", one.beat(20.0), 20.0)
    assert not one.is_held(24.9)
    assert one.is_held(25.0)


def test_a_launcher_that_dies_while_it_follows_counts_for_ever() -> None:
    """It votes for no other; one that was silent for long may have voted before it died."""
    one = lease("a", "b", "c", "d", "e")
    number = one.beat(10.0)
    for node in "bc":
        one.answered(node, number, 0.0)
    one.died("b", 12.0)
    one.left("c")
    assert one.until() == math.inf
    one = lease("a", "b", "c", "d", "e")
    one.answered("b", one.beat(10.0), 10.0)
    one.died("b", 10.0 + PACE.fence_s)
    one.died("c", PACE.fence_s)
    assert one.until() == 0.0 + LENGTH_S


def test_a_round_that_is_not_settled_needs_the_electorate_before_as_well() -> None:
    """A launcher that has not received it may lead by that."""
    one = lease("a", "b", "c")
    one.answered("b", one.beat(10.0), 10.0)
    one.formed(frozenset("axy"), 20.0, can_move=True)
    assert one.until() == 10.0 + LENGTH_S
    settle(one, "abxy")
    assert one.until() == 20.0 + LENGTH_S


def test_in_a_cycle_that_no_other_follows_it_has_no_end() -> None:
    one = LeaderLease(PACE, "a")
    one.formed(frozenset("abc"), 0.0, can_move=False)
    assert one.is_held(1e9)


def test_a_launcher_that_comes_back_as_another_node_is_the_same_elector() -> None:
    one = lease("a", "host-1-x", "host-2-y")
    one.answered("host-1-x.2", one.beat(30.0), 30.0)
    assert one.until() == 30.0 + LENGTH_S


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 7), st.integers(0, 2**32))
def test_no_two_leaders_have_a_lease_at_a_time(launchers: int, seed: int) -> None:
    """L-2, of launchers that follow one leader at a time, of terms that never fall.

    Each one that joins a leader brings how long the one before may have had a lease, by the beats
    that it has answered. Answers are late, lost, or counted twice; leaders are elected whenever.
    """
    rng = random.Random(seed)
    names = [f"n{k}" for k in range(launchers)]
    electorate = frozenset(names)
    leaders = {0: lease(*names, home="n0")}
    follows = dict.fromkeys(names, 0)
    heard_at = dict.fromkeys(names, 0.0)
    answers: list[tuple[int, str, int]] = []
    now = 0.0
    for _ in range(80):
        now += rng.choice((0.0, 0.1, 1.0, 6.0))
        what = rng.choice(("beat", "beat", "answer", "answer", "answer", "elect", "move"))
        term = rng.choice([*leaders])
        if what == "beat" and follows[leaders[term].home] == term:
            number = leaders[term].beat(now)
            for name in names:
                if follows[name] == term and rng.random() < 0.8:
                    heard_at[name] = now
                    answers.append((term, name, number))
        elif what == "answer" and answers:
            to, name, number = rng.choice(answers)
            leaders[to].answered(name, number, now)
        elif what in ("elect", "move"):
            name = rng.choice(names)
            own = follows[name]
            if leaders[own].home == name and leaders[own].is_held(now):
                continue  # it steps down when it has none
            until = heard_at[name] + LENGTH_S
            if what == "elect":
                own = max(leaders) + 1
                leaders[own] = elected(*electorate, home=name, leases_until=until)
                follows[name] = own
            elif term > own and follows[leaders[term].home] == term:
                follows[name] = term
                leaders[term].wait_until(until)
        leads = (it for it, one in leaders.items() if follows[one.home] == it)
        held = [it for it in leads if leaders[it].is_held(now)]
        assert len(held) <= 1, f"terms {held}"


def test_a_round_is_settled_when_half_of_each_electorate_since_the_last_settled_one_has_it() -> (
    None
):
    one = elected("a", "b", "c", "d", "e", home="a")
    one.formed(frozenset("abxy"), 1.0, can_move=True)
    assert one.since() == (("a", "b", "c", "d", "e"), ("a", "b", "x", "y"))
    assert not one.received("a")
    assert not one.received("x")
    assert not one.received("x")
    assert not one.received("b")
    assert one.received("c")
    assert one.since() == (("a", "b", "x", "y"),)
    one.formed(frozenset("ab"), 2.0, can_move=True)
    assert not one.received("a")  # half of two, and one of the four before
    assert not one.is_settled
