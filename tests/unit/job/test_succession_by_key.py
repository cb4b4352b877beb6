"""Which launcher leads next where a key of a rendezvous backend has the leader's name."""

from __future__ import annotations

import pytest

from holdfast.base.pure.common_events import TimePassed
from holdfast.job.pure.leader_key import KeyOver, LeaderKey, claim, over, parse_key
from holdfast.job.pure.membership import (
    CyclePlace,
    Descriptor,
    Join,
    Offer,
    Round,
    StopCycle,
    Successor,
)
from holdfast.job.pure.succession import Allegiance
from holdfast.job.pure.succession_by_key import SuccessionByKey
from holdfast.job.pure.succession_messages import (
    Approach,
    ClaimKey,
    Give,
    KeyHeld,
    KeyTaken,
    LeaderDied,
    Leads,
    NotReached,
    PeerDied,
    Reached,
    Ready,
    Release,
)
from holdfast.job.pure.timing import Pace

PACE = Pace()


def formed(*nodes: str, is_last: bool = False) -> Round:
    """A round that the first of the nodes leads."""
    places = tuple(CyclePlace(node, k, 1, k, node) for k, node in enumerate(nodes))
    at = tuple(Successor(node, node, 1) for node in nodes)
    return Round(
        0, places, leader=nodes[0], leads_at=at[0], successors=at[1:], is_last=is_last, term=0
    )


def leaderless(node: str, last: Round) -> tuple[SuccessionByKey, list[object]]:
    """Its leader died at 1.0, and its ranks are gone."""
    one = SuccessionByKey(PACE)
    one.handle(last, 0.0)
    one.handle(LeaderDied("its launcher has ended"), 1.0)
    return one, [*one.handle(Ready(Join(node, Descriptor(node, node, 1, 1, serves=1), 0)), 1.2)]


def offer(node: str, last: Round, term: int = 1, *ended: str) -> Offer:
    join = Join(node, Descriptor(node, node, 1, 1), 0)
    return Offer(node, term, join, last.version, is_sure=True, ended=ended or ("a",))


TWO, FOUR = formed("a", "b"), formed("a", "b", "c", "d")


# ---------------------------------------------------------------- when the key is claimed
def test_one_launcher_of_two_can_lead_but_not_after_a_last_cycle() -> None:
    assert leaderless("b", TWO)[0].can_move
    assert not leaderless("b", formed("a", "b", is_last=True))[0].can_move


def test_the_one_that_is_left_claims_the_key_at_once_and_leads_with_it() -> None:
    one, effects = leaderless("b", TWO)
    assert effects == [ClaimKey(1, ("a",))]
    [leads] = one.handle(KeyTaken("a", 1), 1.3)
    assert isinstance(leads, Leads)
    assert (leads.term, leads.ended, leads.round) == (1, {"a"}, TWO)
    assert [it.is_sure for it in leads.offers] == [True]
    assert one.allegiance is Allegiance.LEADING


def test_votes_that_would_be_a_majority_are_enough_for_a_claim_and_no_more() -> None:
    one, effects = leaderless("b", FOUR)
    assert effects == []
    assert one.handle(offer("c", FOUR), 1.3) == []
    assert one.handle(offer("d", FOUR), 1.4) == [ClaimKey(1, ("a",))]


def test_without_the_others_it_claims_the_key_when_their_ranks_have_ended() -> None:
    """A candidate that has more of them is faster."""
    one, _ = leaderless("b", FOUR)
    effects, now = [], 1.2
    while not any(isinstance(it, ClaimKey) for it in effects):
        now = one.next_deadline() or 0.0
        effects = [*one.handle(TimePassed(), now)]
        for effect in effects:
            if isinstance(effect, Approach):
                effects += one.handle(NotReached(effect.successor.node), now)
    assert 1.0 + PACE.silence_s <= now <= 1.0 + PACE.silence_s + PACE.beat_s
    assert effects[-1] == ClaimKey(effects[-1].term, ("a",))


def test_where_a_stop_is_known_it_waits_for_the_later_cycle_that_there_may_be() -> None:
    one = SuccessionByKey(PACE)
    one.handle(TWO, 0.0)
    one.handle(StopCycle(0, "a rank failed"), 0.5)
    one.handle(LeaderDied("its launcher has ended"), 1.0)
    assert one.handle(Ready(Join("b", Descriptor("b", "b", 1, 1, serves=1), 0)), 1.2) == []
    assert one.handle(TimePassed(), 1.0 + PACE.silence_s) == [ClaimKey(1, ("a",))]


def test_each_proof_of_a_death_puts_the_claim_off() -> None:
    """That one may have led, and ranks of its cycle have as long to end."""
    one, _ = leaderless("b", FOUR)
    one.handle(PeerDied("c"), 9.0)
    one.handle(PeerDied("c"), 10.0)
    assert one.next_deadline() is not None
    effects = one.handle(TimePassed(), 1.0 + PACE.silence_s)
    assert not any(isinstance(it, ClaimKey) for it in effects)


# ---------------------------------------------------------------- the answer
def test_a_key_that_names_a_living_launcher_is_followed_and_the_votes_go_back() -> None:
    one, _ = leaderless("b", FOUR)
    one.handle(offer("c", FOUR), 1.3)
    one.handle(offer("d", FOUR), 1.4)
    holder = Successor("x", "x", 7)
    assert one.handle(KeyHeld(holder), 1.5) == [Release(("c", "d"), 2, False), Approach(holder)]
    [give] = one.handle(Reached("x"), 1.6)
    assert isinstance(give, Give)
    assert not give.offer.is_sure


def test_a_key_whose_launcher_has_died_meanwhile_is_claimed_again() -> None:
    one, _ = leaderless("b", TWO)
    one.handle(PeerDied("x"), 1.3)
    assert one.handle(KeyHeld(Successor("x", "x", 7)), 1.0 + PACE.silence_s) == []
    later = 1.3 + PACE.silence_s
    assert ClaimKey(1, ("a", "x")) in one.handle(TimePassed(), later)


def test_a_key_of_another_launcher_than_the_last_leader_is_a_sign_of_a_cycle_in_between() -> None:
    one, _ = leaderless("b", TWO)
    [leads] = one.handle(KeyTaken("x", 3), 1.3)
    assert isinstance(leads, Leads)
    assert leads.term == 3
    assert [it.is_sure for it in leads.offers] == [False]


def test_nothing_else_is_decided_while_the_answer_is_not_there() -> None:
    one, _ = leaderless("b", FOUR)
    one.handle(offer("c", FOUR), 1.3)
    one.handle(offer("d", FOUR), 1.4)
    assert one.next_deadline() is None
    assert one.handle(offer("e", FOUR, 5), 1.5) == []
    assert one.handle(TimePassed(), 100.0) == []
    [leads] = one.handle(KeyTaken("a", 1), 101.0)
    assert isinstance(leads, Leads)
    assert {it.node for it in leads.offers} == {"b", "c", "d", "e"}


def test_a_launcher_that_leaves_does_not_lead_by_a_claim_that_is_answered_then() -> None:
    one, _ = leaderless("b", TWO)
    one.quit()
    assert one.handle(KeyTaken("a", 1), 1.3) == []


# ---------------------------------------------------------------- the key
OWN = LeaderKey("10.0.0.2", 2, 1, "b")


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        (["10.0.0.1:1 0 a", str(OWN)], KeyTaken("a", 1)),
        ([str(OWN)], KeyTaken("", 1)),  # it was lost, or an answer was
        (["10.0.0.3:3 4 c"], KeyHeld(Successor("c", "10.0.0.3", 3))),
        (["10.0.0.1:1 0 a", "10.0.0.3:3 1 c"], KeyHeld(Successor("c", "10.0.0.3", 3))),
        (["10.0.0.1:1 7 a", "10.0.0.2:2 8 b"], KeyTaken("a", 8)),
        (["10.0.0.2:2 5 b"], KeyTaken("", 5)),  # by an attempt of which no answer came
        ([over("all ranks succeeded")], KeyOver("all ranks succeeded")),
        (["host:5"], KeyHeld(Successor("host:5", "host", 5))),  # of an older version
    ],
)
def test_a_claim_takes_the_key_from_the_dead_alone(found: list[str], answer: object) -> None:
    steps = claim(OWN, ("a",))
    expected, value = next(steps)
    assert (expected, value) == ("", OWN)
    for k, each in enumerate(found):
        try:
            expected, value = steps.send(each)
        except StopIteration as end:
            assert end.value == answer  # noqa: PT017 - the value of a generator
            assert k == len(found) - 1
            return
        assert expected == each
    pytest.fail("no answer")


@pytest.mark.parametrize("key", [OWN, LeaderKey("fd00::1", 9, 12, "n-1-ab"), LeaderKey("h", 1)])
def test_a_value_of_the_key_is_read_as_it_was_written(key: LeaderKey) -> None:
    assert parse_key(str(key)) == key


@pytest.mark.parametrize("text", ["", "host", "host:x 1 n", "host:1 one n"])
def test_a_value_of_another_form_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_key(text)
