"""One launcher's part in finding the next leader of its job."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast.arena.pure.snapshots import Holdings
from holdfast.base.pure.common_events import TimePassed
from holdfast.job.pure.member_messages import LeaderFound
from holdfast.job.pure.membership import (
    CyclePlace,
    Descriptor,
    Join,
    LeaderBeat,
    Offer,
    Resigned,
    Round,
    StopCycle,
    Successor,
)
from holdfast.job.pure.succession import Allegiance, Succession
from holdfast.job.pure.succession_messages import (
    Approach,
    Follows,
    Give,
    LeaderDied,
    LeaderKnown,
    LeaderSilent,
    Leads,
    LeaveLeader,
    NotReached,
    PeerDied,
    Reached,
    Ready,
    Release,
    Released,
)
from holdfast.job.pure.timing import Pace

PACE = Pace()


def formed(*nodes: str, cycle: int = 0, spares: tuple[str, ...] = (), **more: object) -> Round:
    """A round that the first of the nodes leads."""
    places = tuple(CyclePlace(node, k, 1, k, node) for k, node in enumerate(nodes))
    others = tuple(Successor(node, node, 1) for node in (*nodes, *spares) if node != nodes[0])
    leads_at = Successor(nodes[0], nodes[0], 1)
    return Round(
        cycle, places, spares, leader=nodes[0], leads_at=leads_at, successors=others, **more
    )  # type: ignore[arg-type]


FIVE = formed("a", "b", "c", "d", "e")


def join(node: str) -> Join:
    return Join(node, Descriptor(node, node, 1, 1), 0)


def offer(node: str, term: int, last: Round = FIVE, **more: object) -> Offer:
    return Offer(node, term, join(node), last.version, **more)  # type: ignore[arg-type]


def following(last: Round = FIVE) -> Succession:
    one = Succession(PACE)
    assert one.handle(last, 0.0) == []
    return one


def leaderless(node: str, last: Round = FIVE) -> tuple[Succession, list[object]]:
    """Its leader is dead and its ranks are gone."""
    one = following(last)
    assert one.handle(LeaderDied("its launcher has ended"), 1.0) == []
    return one, [*one.handle(Ready(join(node)), 1.2)]


def test_a_node_that_holds_more_says_so_with_its_next_vote_and_with_its_own() -> None:
    """A copy from a peer has come since it was ready."""
    more = join("c").but(holdings=Holdings(last_step=7))
    one, _ = leaderless("c")
    assert one.handle(Ready(more), 1.3) == []
    [given] = one.handle(Reached("b"), 1.4)
    assert isinstance(given, Give)
    assert given.offer.join == more

    candidate, _ = leaderless("b")
    more = join("b").but(holdings=Holdings(last_step=7))
    assert candidate.handle(Ready(more), 1.3) == []
    candidate.handle(offer("c", 1), 1.4)
    [leads] = candidate.handle(offer("d", 1), 1.5)
    assert isinstance(leads, Leads)
    assert [it.join for it in leads.offers] == [more, join("c"), join("d")]


# ---------------------------------------------------------------- whether it can move at all
@pytest.mark.parametrize(
    ("last", "moves"),
    [
        (formed("a", "b"), False),
        (formed("a", "b", "c"), True),
        (formed("a", "b", spares=("c",)), True),
        (formed("a", "b", "c", is_last=True), False),
        (dataclasses.replace(FIVE, successors=()), False),
    ],
)
def test_it_takes_three_launchers_and_a_cycle_that_another_can_follow(
    last: Round, moves: bool
) -> None:
    assert following(last).can_move == moves


def test_before_the_first_round_a_job_ends_with_its_leader() -> None:
    assert not Succession(PACE).can_move


STAYS = Resigned("no majority of its launchers has answered it", stays=True, ranks_s=9.5)
ALONE = formed("a")
"""The others were lost, or are in no round yet."""


@pytest.mark.parametrize(
    ("last", "event", "moves"),
    [
        (ALONE, LeaderDied("its launcher has ended"), False),
        (ALONE, Resigned("it left"), False),
        (ALONE, STAYS, True),
        (dataclasses.replace(ALONE, leads_at=None), STAYS, False),
        (formed("a", is_last=True), STAYS, False),
        (formed("a", "b"), STAYS, True),
        (formed("a", "b"), Resigned("it left"), False),
        (FIVE, LeaderDied("its launcher has ended"), True),
    ],
)
def test_a_leader_that_steps_down_may_lead_again_so_none_leaves_for_want_of_a_successor(
    last: Round, event: LeaderDied | Resigned, moves: bool
) -> None:
    assert following(last).can_move_after(event) is moves


def test_a_launcher_that_is_in_no_round_yet_looks_for_the_leader_that_has_stepped_down() -> None:
    """Which needs its vote, as it has one in the round before: that is not settled."""
    before = formed("a", "b", spares=("c",))
    last = dataclasses.replace(ALONE, cycle=1, after=before.version, since=(("a", "b", "c"),))
    one = following(last)
    assert one.handle(STAYS, 1.0) == [LeaveLeader()]
    at_a = Approach(Successor("a", "a", 1))
    assert one.handle(Ready(join("b")), 1.2) == [at_a]
    assert one.handle(NotReached("a"), 2.0) == []
    assert one.next_deadline() == 2.0 + PACE.beat_s
    assert one.handle(TimePassed(), 2.0 + PACE.beat_s) == [at_a]
    [give] = one.handle(Reached("a"), 6.0)
    assert isinstance(give, Give)

    former = following(last)
    former.handle(LeaderSilent("no majority of its launchers has answered it", 9.5), 1.0)
    former.handle(Ready(Join("a", Descriptor("a", "a", 1, 1, serves=1), 1)), 1.2)
    assert former.allegiance is Allegiance.BOUND
    effects = former.handle(give.offer, 6.0)
    assert former.allegiance is Allegiance.LEADING
    [leads] = [it for it in effects if isinstance(it, Leads)]
    assert {it.node for it in leads.offers} == {"a", "b"}


@pytest.mark.parametrize("is_leaderless", [False, True])
def test_a_leader_whose_round_names_no_successor_finds_the_next_one_that_has_called_it(
    is_leaderless: bool,
) -> None:
    """It knows no other launcher, and would wait for votes that nobody gives."""
    one = following(dataclasses.replace(ALONE, cycle=1, since=(("a", "b", "w"),)))
    at_b = Successor("b", "b", 2)
    known, stranger = LeaderKnown(5, at_b), LeaderKnown(5, Successor("x", "x", 3))
    told = [LeaderSilent("another launcher leads", 0.0), Ready(join("a"))]
    events = [*told, stranger, known] if is_leaderless else [stranger, known, *told]
    effects = [effect for event in events for effect in one.handle(event, 1.0)]
    assert effects[-1] == Approach(at_b)


# ---------------------------------------------------------------- voting
def test_a_launcher_votes_when_its_ranks_are_gone_and_the_first_successor_answers() -> None:
    one, effects = leaderless("c")
    assert effects == [Approach(FIVE.successors[0])]
    assert one.allegiance is Allegiance.SEEKING
    [give] = one.handle(Reached("b"), 1.3)
    assert isinstance(give, Give)
    assert (give.to, give.offer.term, give.offer.ended) == ("b", 1, ("a",))


def test_a_vote_binds_until_it_is_given_back() -> None:
    one, _ = leaderless("d")
    one.handle(Reached("b"), 1.3)
    assert one.handle(NotReached("b"), 1.4) == []
    assert one.handle(TimePassed(), 11.2) == []
    assert one.handle(Released("b", 2), 11.2) == [Approach(FIVE.successors[1])]


def test_or_until_nothing_came_of_its_launcher_for_as_long_as_of_a_leader() -> None:
    """It may lead, and has no lease by this launcher."""
    one, _ = leaderless("d")
    one.handle(Reached("b"), 1.3)
    assert one.next_deadline() == 1.3 + PACE.fence_s
    assert one.handle(TimePassed(), 1.3 + PACE.fence_s) == [Approach(FIVE.successors[1])]
    [give] = one.handle(Reached("c"), 12.0)
    assert isinstance(give, Give)
    assert not give.offer.is_sure


def test_no_second_proof_or_join_makes_it_vote_twice() -> None:
    one, _ = leaderless("d")
    one.handle(Reached("b"), 1.3)
    assert one.handle(LeaderDied("its launcher has ended"), 1.4) == []
    assert one.handle(Ready(join("d")), 1.4) == []
    assert one.allegiance is Allegiance.BOUND


def test_or_until_its_launcher_is_proved_dead() -> None:
    one, _ = leaderless("d")
    one.handle(Reached("b"), 1.3)
    assert one.handle(PeerDied("b"), 1.4) == [Approach(FIVE.successors[1])]
    [give] = one.handle(Reached("c"), 1.5)
    assert isinstance(give, Give)
    assert (give.offer.term, give.offer.ended, give.offer.is_sure) == (2, ("a", "b"), False)


def test_successors_that_do_not_answer_are_tried_again_after_a_pause() -> None:
    one, _ = leaderless("z", formed("a", "b", "c"))
    one.handle(NotReached("b"), 2.0)
    assert one.handle(NotReached("c"), 3.0) == []
    assert one.next_deadline() == 3.0 + PACE.beat_s
    assert one.handle(TimePassed(), 3.0 + PACE.beat_s) == [Approach(FIVE.successors[0])]


def test_a_launcher_that_votes_for_itself_follows_none_that_it_has_only_approached() -> None:
    """That one leads, and has admitted it, but has no join of it."""
    one, _ = leaderless("c")
    assert LeaveLeader() in one.handle(offer("d", 2), 1.3)
    assert one.handle(Reached("b"), 1.4) == []
    assert one.handle(Follows(), 1.5) == []
    assert one.allegiance is Allegiance.BOUND


def test_a_launcher_follows_the_one_that_leads_and_sends_votes_for_itself_on() -> None:
    one, _ = leaderless("c")
    one.handle(Reached("b"), 1.3)
    assert one.handle(offer("d", 2), 1.4) == [Release(("d",), 3, ahead=FIVE.successors[0])]
    assert one.handle(Follows(), 1.5) == [LeaderFound(pytest.approx(0.2))]
    assert one.allegiance is Allegiance.FOLLOWING
    assert one.leader == "b"


# ---------------------------------------------------------------- as a candidate
def test_votes_for_a_term_that_is_over_are_asked_for_again_before_it_votes_for_another() -> None:
    """Otherwise each may wait for one that has just given its vote away, for minutes."""
    one, _ = leaderless("d")
    one.handle(NotReached("b"), 2.0)
    assert one.handle(offer("e", 1), 2.5) == [], "it may find a leader yet"
    assert one.handle(NotReached("c"), 3.0) == [Release(("e",), 3, asks=True)]
    assert one.handle(offer("e", 3), 3.1) == []
    assert any(isinstance(it, Leads) for it in one.handle(offer("c", 3), 3.2))


def test_votes_that_came_meanwhile_are_sent_on_to_the_launcher_that_it_votes_for() -> None:
    """They would be missing there, and would come back one by one, each for another launcher."""
    one, _ = leaderless("d")
    one.handle(offer("e", 1), 1.3)
    give, *others = one.handle(Reached("b"), 1.4)
    assert isinstance(give, Give)
    assert others == [Release(("e",), 2, ahead=FIVE.successors[0])]


def test_of_two_that_vote_for_each_other_the_first_keeps_the_vote_of_the_other() -> None:
    """Whether it came before its own was given or after."""
    for node, other, goes_back in ("b", "c", False), ("c", "b", True):
        one, _ = leaderless(node)
        if node == "b":  # its term is over
            one.handle(TimePassed(), 1.2 + PACE.ask_s)
        one.handle(offer(other, 1), 6.0)
        _, *others = one.handle(Reached(other), 6.1)
        sent_on = [
            Release((other,), 2, ahead=next(it for it in FIVE.successors if it.node == other))
        ]
        assert others == (sent_on if goes_back else [])


def test_a_launcher_that_is_told_to_lead_counts_the_vote_that_it_has_for_a_later_term() -> None:
    """It asks for that again, in a term that is its own."""
    one, _ = leaderless("c")
    for peer in ("b", "c"):
        one.handle(NotReached(peer), 2.0)
    one.handle(TimePassed(), 2.0 + PACE.ask_s)
    at_d, at_c = FIVE.successors[2], FIVE.successors[1]
    assert one.handle(Reached("d"), 7.0) != [], at_d
    assert one.handle(offer("d", 7), 7.1) == []
    assert one.handle(Released("d", 4, ahead=at_c), 7.2) == [Release(("d",), 10, asks=True)]
    assert one.handle(offer("d", 10), 7.3) == []
    assert any(isinstance(it, Leads) for it in one.handle(offer("e", 10), 7.4))


def test_a_majority_elects_once_and_only_with_the_candidate_s_own_vote() -> None:
    one = following()
    one.handle(LeaderDied("its launcher has ended"), 1.0)
    assert one.handle(offer("c", 1), 1.1) == []
    assert one.handle(offer("d", 1), 1.1) == []
    [leads] = one.handle(Ready(join("b")), 1.2)
    assert isinstance(leads, Leads)
    assert (leads.term, {it.node for it in leads.offers}) == (1, {"b", "c", "d"})
    assert one.handle(TimePassed(), 100.0) == []


def test_a_new_leader_calls_those_that_may_lead_or_be_asked_and_gave_it_no_vote() -> None:
    """A successor that was elected before, and formed no round, may lead some of them still."""
    one, _ = leaderless("c")
    one.handle(PeerDied("b"), 1.3)
    one.handle(offer("d", 2), 1.4)
    [leads] = one.handle(offer("e", 2), 1.5)
    assert isinstance(leads, Leads)
    assert (leads.leader, leads.called) == ("a", ())

    one = following()
    one.handle(LeaderSilent("nothing came from it for 5.0 s", 9.5), 1.0)
    one.handle(Ready(join("c")), 1.2)
    one.handle(NotReached("b"), 1.3)
    one.handle(offer("d", 2), 1.4)
    [leads] = one.handle(offer("e", 2), 1.5)
    assert isinstance(leads, Leads)
    assert leads.called == (Successor("a", "a", 1), Successor("b", "b", 1))


def test_it_names_the_leader_that_was_lost_last_though_that_has_formed_no_round() -> None:
    one, _ = leaderless("d")
    one.handle(Reached("b"), 1.3)
    one.handle(Follows(), 1.4)
    one.handle(LeaderSilent("nothing came from it for 5.0 s", 9.5), 9.0)
    one.handle(Ready(join("d")), 9.1)
    one.handle(NotReached("c"), 9.2)
    one.handle(offer("c", 3), 9.3)
    found = one.handle(offer("e", 3), 9.4)
    [leads] = [it for it in found if isinstance(it, Leads)]
    assert (leads.leader, leads.round.leader) == ("b", "a")
    assert [it.node for it in leads.called] == ["b"]


def test_a_leader_that_is_found_after_it_has_called_is_not_the_first_to_be_asked_when_lost() -> (
    None
):
    one, _ = leaderless("d")
    one.handle(Reached("b"), 1.3)
    one.handle(LeaderKnown(1, Successor("b", "b", 1)), 1.35)
    one.handle(Follows(), 1.4)
    one.handle(LeaderSilent("nothing came from it for 5.0 s", 9.5), 9.0)
    [approach] = one.handle(Ready(join("d")), 9.1)
    assert approach == Approach(Successor("c", "c", 1))


def in_vain(last: Round = FIVE) -> tuple[Succession, float]:
    """Of b, which had too few votes, that of c: it looks for another candidate, and c waits."""
    one, _ = leaderless("b", last)
    assert one.handle(offer("c", 1, last), 1.3) == []
    until = one.next_deadline()
    assert until == 1.2 + PACE.ask_s
    [approach] = one.handle(TimePassed(), until)
    assert approach == Approach(last.successors[2]), "c has no vote for another"
    return one, until


def test_two_of_five_elect_nobody_and_have_their_votes_back() -> None:
    one, until = in_vain()
    assert one.handle(NotReached("d"), until + 3) == [Approach(FIVE.successors[3])]
    given_back_at = one.next_deadline()
    assert given_back_at is not None
    assert given_back_at < 1.2 + PACE.fence_s, "before its voters think that it has died"
    assert one.handle(TimePassed(), given_back_at) == [Release(("c",), 2)]


def test_but_go_together_to_the_next_candidate_if_that_is_reached_until_then() -> None:
    one, until = in_vain()
    give, release = one.handle(Reached("d"), until + 3)
    assert isinstance(give, Give)
    assert release == Release(("c",), 2, ahead=FIVE.successors[2])


def test_or_the_candidate_tries_again_as_soon_as_more_have_come_and_all_are_enough() -> None:
    one, until = in_vain()
    *_, asks = one.handle(offer("e", 2), until + 1)
    assert asks == Release(("c", "e"), 5, asks=True)
    assert one.handle(offer("e", 5), until + 1.1) == []
    [leads] = one.handle(offer("c", 5), until + 1.2)
    assert isinstance(leads, Leads)
    assert leads.term == 5


def test_if_they_are_not_enough_it_does_in_the_place_of_giving_votes_back() -> None:
    one, until = in_vain(formed(*"abcdefgh"))
    assert one.handle(offer("e", 2, one.round), until + 1) == []
    given_back_at = one.next_deadline()
    assert given_back_at == until + PACE.ask_s
    leave, asks = one.handle(TimePassed(), given_back_at)
    assert leave == LeaveLeader()
    assert asks == Release(("c", "e"), 8, asks=True)


@pytest.mark.parametrize("term", [1, 2])
def test_whatever_the_term_of_the_votes_that_have_come(term: int) -> None:
    """Most launchers vote for the first successor in the first term, also those that come late."""
    one, until = in_vain(formed(*"abcdefgh"))
    assert one.handle(offer("e", term, one.round), until + 1) == []
    assert one.handle(NotReached("d"), until + 3) == [Release(("c", "e"), 8, asks=True)]


def test_of_a_launcher_that_comes_when_the_others_have_their_votes_back_as_well() -> None:
    one, until = in_vain()
    assert one.handle(TimePassed(), until + PACE.ask_s) == [Release(("c",), 2)]
    assert one.handle(offer("e", 1), until + PACE.ask_s + 0.1) == []
    asks = one.handle(NotReached("d"), until + PACE.ask_s + 0.2)
    assert asks == [Release(("e",), 5, asks=True)]


def test_a_candidate_whose_votes_were_in_vain_does_not_ask_a_leader_before_that_waits_for_it() -> (
    None
):
    """It has stepped down, and is no successor."""
    one, _ = silent("b")
    one.handle(offer("a", 1), 10.2)
    assert one.handle(TimePassed(), 10.1 + PACE.ask_s) == [Approach(FIVE.successors[1])]


def test_a_candidate_that_begins_in_a_pause_is_not_disturbed_by_the_end_of_it() -> None:
    one, until = in_vain()
    for node in "de":
        one.handle(NotReached(node), until + 0.1)
    *_, asks = one.handle(offer("d", 1), until + 0.2)
    assert asks == Release(("c", "d"), 5, asks=True)
    assert one.handle(TimePassed(), until + 0.1 + PACE.beat_s) == []


def test_and_does_not_follow_one_that_it_had_voted_for_and_has_left() -> None:
    """Nothing came of that one for long; its word is on the way when this one leaves it."""
    one, _ = leaderless("c")
    for event in (NotReached("b"), TimePassed(), NotReached("d"), Reached("e"), TimePassed()):
        one.handle(event, one.next_deadline() or 1.3)
    one.handle(offer("b", 3), 20.0)
    assert LeaveLeader() in one.handle(offer("d", 3), 20.0)
    one.handle(Follows(), 20.0)
    assert one.allegiance is Allegiance.BOUND, "to itself"


def test_unless_it_is_on_its_way_to_one_that_has_proved_that_it_leads() -> None:
    one, until = in_vain(formed(*"abcdefgh"))
    assert one.handle(offer("e", 2, one.round), until + 1) == []
    assert one.handle(LeaderKnown(4, Successor("h", "h", 1)), until + 1.1) == []
    one.handle(NotReached("d"), until + 3)
    given_back_at = one.next_deadline()
    assert given_back_at == until + PACE.ask_s
    assert one.handle(TimePassed(), given_back_at) == [Release(("c",), 2)]


def test_votes_of_a_launcher_that_knows_more_are_refused() -> None:
    one, _ = leaderless("b")
    assert one.handle(offer("c", 1, formed("a", "b", "c", cycle=1)), 1.3) == [Release(("c",), 2)]


def test_a_launcher_with_a_leader_refuses_votes() -> None:
    """And sends them on to it, unless it has received nothing from it for some time."""
    late = following()
    assert late.handle(offer("c", 1), PACE.ask_s + 0.1) == [Release(("c",), 2)]
    assert late.handle(LeaderBeat(), 6.0) == []
    assert late.handle(offer("c", 2), 7.0) == [Release(("c",), 3, ahead=FIVE.leads_at)]
    one = following()
    assert one.handle(offer("c", 1), 1.3) == [Release(("c",), 2, ahead=FIVE.leads_at)]
    assert not one.shows_death(offer("c", 1))
    assert one.shows_death(offer("c", 1, ended=("a",)))


def test_a_candidate_raises_its_term_to_that_of_the_votes_for_it() -> None:
    one, _ = leaderless("b")
    assert one.handle(offer("e", 1), 1.25) == []
    assert one.handle(offer("c", 5), 1.3) == [Release(("e",), 5, asks=True)]
    assert one.term == 5
    [leads] = one.handle(offer("d", 5), 1.4)
    assert isinstance(leads, Leads)
    assert leads.term == 5


def test_a_launcher_votes_again_for_a_candidate_that_asks_in_a_later_term() -> None:
    """Launchers that count terms differently would miss each other, again and again."""
    one, _ = leaderless("d")
    one.handle(Reached("b"), 1.3)
    assert one.handle(Released("b", 9, asks=True), 1.4) == [Approach(FIVE.successors[0])]
    [give] = one.handle(Reached("b"), 1.5)
    assert isinstance(give, Give)
    assert (give.to, give.offer.term) == ("b", 9)


def test_a_launcher_that_leaves_gives_all_votes_back() -> None:
    one, _ = leaderless("b")
    one.handle(offer("c", 1), 1.3)
    [release] = one.quit()
    assert isinstance(release, Release)
    assert set(release.nodes) == {"b", "c"}
    assert one.handle(offer("d", 1), 1.4) == [Release(("d",), 2)]


# ---------------------------------------------------------------- a round that was on its way
NEXT = formed("a", "b", "x", "y", cycle=1, after=FIVE.version)


def test_a_round_that_is_not_settled_needs_a_majority_of_the_one_before_as_well() -> None:
    one = following()
    one.handle(StopCycle(0, "a rank failed"), 0.5)
    one.handle(NEXT, 0.6)
    one.handle(LeaderDied("its launcher has ended"), 1.0)
    one.handle(Ready(join("b")), 1.2)
    for node in ("x", "y"):
        assert one.handle(offer(node, 1, NEXT), 1.3) == []
    assert one.handle(offer("c", 1), 1.4) == []
    [leads] = one.handle(offer("d", 1), 1.5)
    assert isinstance(leads, Leads)
    assert leads.electorates == (FIVE.electorate, NEXT.electorate)


def test_a_settled_one_does_not() -> None:
    one = following()
    one.handle(NEXT, 0.6)
    one.handle(LeaderBeat(settled=NEXT.version), 0.7)
    one.handle(LeaderDied("its launcher has ended"), 1.0)
    one.handle(Ready(join("b")), 1.2)
    assert one.handle(offer("x", 1, NEXT), 1.3) == []
    [leads] = one.handle(offer("y", 1, NEXT), 1.3)
    assert isinstance(leads, Leads)


def test_who_missed_a_round_before_leads_only_when_the_last_one_is_settled() -> None:
    one = Succession(PACE)
    one.handle(NEXT, 0.6)
    one.handle(LeaderDied("its launcher has ended"), 1.0)
    one.handle(Ready(join("b")), 1.2)
    assert [it for node in "xyz" for it in one.handle(offer(node, 1, NEXT), 1.3)] == []


def test_who_missed_a_round_before_leads_if_the_last_one_says_who_had_a_vote_in_it() -> None:
    """A spare that has come late may be the only one with the last round that can lead."""
    late = formed("a", "b", spares=("c",), revision=1, after=(0, 0, 0), since=(("a", "b", "w"),))
    one, _ = leaderless("c", late)
    one.handle(NotReached("b"), 1.3)  # and it votes for itself
    assert not any(isinstance(each, Leads) for each in one.handle(offer("b", 2, late), 1.4))
    [leads] = one.handle(offer("w", 2, late), 1.5)
    assert isinstance(leads, Leads)
    assert leads.electorates == (frozenset("abw"), frozenset("abc"))


@pytest.mark.parametrize("is_witness", [False, True])
def test_a_candidate_that_learns_of_a_later_round_votes_next_for_who_has_it_and_can_lead(
    is_witness: bool,
) -> None:
    """Its own round does not name that launcher."""
    early = formed("a", "b")
    late = formed("a", "b", spares=("c",), revision=1, after=early.version, since=(("a", "b"),))
    one, _ = leaderless("b", early)
    spare = Join("c", Descriptor("c", "c", 1, 1, serves=7, is_witness=is_witness), 0)
    assert one.handle(Offer("c", 2, spare, late.version), 1.3) == [Release(("c",), 3)]
    until = one.next_deadline()
    assert until is not None
    approaches = [it for it in one.handle(TimePassed(), until) if isinstance(it, Approach)]
    assert approaches == ([] if is_witness else [Approach(Successor("c", "c", 7))])


def test_a_witness_brings_the_last_round_to_the_launcher_that_it_votes_for() -> None:
    """It may be the only one that the leader's last round has reached, and it cannot lead."""
    early = formed("a", "b")
    late = formed("a", "b", cycle=1, after=early.version, since=(("a", "b", "w"),), witness="w")
    witness, _ = leaderless("w", late)
    voter = Join("w", Descriptor("w", "w", 1, 1, is_witness=True), 1)
    witness.handle(Ready(voter), 1.2)
    one, _ = leaderless("b", early)
    vote = Offer("w", 1, voter, late.version, round=late)
    [leads] = one.handle(vote, 1.3)
    assert isinstance(leads, Leads)
    assert leads.round == late
    assert leads.electorates == (frozenset("abw"), frozenset("abw"))
    assert [it.node for it in leads.offers if it.is_sure] == []


def test_a_launcher_pauses_also_after_a_round_that_names_fewer_successors_than_it_has_asked() -> (
    None
):
    """Otherwise it asks one that refuses again and again, without a moment between."""
    late = formed("a", "b", cycle=1, after=FIVE.version, since=(("a", "b", "w"),), witness="w")
    voter = Join("w", Descriptor("w", "w", 1, 1, is_witness=True), 1)
    one, _ = leaderless("e")
    for node in ("b", "c"):
        one.handle(NotReached(node), 2.0)
    one.handle(Offer("w", 1, voter, late.version, round=late), 2.0)
    assert one.handle(NotReached("d"), 2.0) == []
    assert one.next_deadline() == 2.0 + PACE.beat_s
    assert one.handle(TimePassed(), 2.0 + PACE.beat_s) == [Approach(FIVE.successors[0])]


def test_a_launcher_with_a_leader_takes_no_round_from_a_witness() -> None:
    late = dataclasses.replace(FIVE, cycle=1, after=FIVE.version)
    voter = Join("w", Descriptor("w", "w", 1, 1, is_witness=True), 1)
    one = following()
    one.handle(Offer("w", 1, voter, late.version, round=late), 1.0)
    assert one.round == FIVE


def test_after_a_stop_a_later_cycle_may_have_begun() -> None:
    one = following()
    one.handle(StopCycle(0, "a rank failed"), 0.5)
    one.handle(LeaderDied("its launcher has ended"), 1.0)
    one.handle(Ready(join("c")), 1.2)
    [give] = one.handle(Reached("b"), 1.3)
    assert isinstance(give, Give)
    assert not give.offer.is_sure


# ---------------------------------------------------------------- the leader before
SILENT = LeaderSilent("nothing came from it for 10.0 s", 9.5)


def silent(node: str) -> tuple[Succession, list[object]]:
    """It has lost its leader, without proof, and its ranks are gone."""
    one = following()
    one.handle(SILENT, 10.0)
    return one, [*one.handle(Ready(join(node)), 10.1)]


def sought(one: Succession, candidate: str, given_back_at: float) -> list[str]:
    """The next two that it looks for, when that candidate has given the vote back."""
    found: list[str] = []
    effects = one.handle(Released(candidate, one.term + 1), given_back_at)
    while len(found) < 2:
        [approach] = effects
        assert isinstance(approach, Approach)
        found.append(approach.successor.node)
        effects = one.handle(NotReached(found[-1]), given_back_at + 3.0)
    return found


def test_the_leader_before_is_asked_when_a_candidate_has_had_votes_in_vain() -> None:
    """It may lead the others. The next successor keeps its turn."""
    one, _ = silent("e")
    one.handle(Reached("b"), 10.2)
    assert sought(one, "b", 10.2 + PACE.ask_s) == ["a", "c"]


def test_it_is_not_asked_when_a_vote_is_refused() -> None:
    """Others may lose it a moment later, and its host may not answer."""
    one, _ = silent("e")
    one.handle(Reached("b"), 10.2)
    assert sought(one, "b", 10.3) == ["c", "d"]


def test_it_is_asked_at_once_when_another_launcher_says_that_it_leads() -> None:
    one, _ = silent("e")
    one.handle(Reached("b"), 10.2)
    at_a = FIVE.leads_at
    assert one.handle(Released("b", 2, ahead=at_a), 10.3) == [Approach(Successor("a", "a", 1))]
    assert one.handle(NotReached("a"), 13.3) == [Approach(Successor("c", "c", 1))]


@pytest.mark.parametrize(("again_at", "is_asked"), [(24.0, False), (18.0 + PACE.silence_s, True)])
def test_it_is_left_alone_for_a_while_when_it_was_not_reached(
    again_at: float, is_asked: bool
) -> None:
    """Its host may have lost its power: the others vote meanwhile, and each time takes seconds."""
    one, _ = silent("e")
    one.handle(Reached("b"), 10.2)
    assert one.handle(Released("b", 2), 15.0) == [Approach(Successor("a", "a", 1))]
    one.handle(NotReached("a"), 18.0)
    one.handle(Reached("c"), again_at - PACE.ask_s)
    node = "a" if is_asked else "d"
    assert one.handle(Released("c", 3), again_at) == [Approach(Successor(node, node, 1))]


def asked(one: Succession, effects: list[object], at: float, count: int) -> list[str]:
    """The next so many that it looks for; none but e is reached, and has votes in vain."""
    found: list[str] = []
    while len(found) < count:
        approaches = [it for it in effects if isinstance(it, Approach)]
        if not approaches:
            at = max(at, one.next_deadline() or at)
            effects = [*one.handle(TimePassed(), at)]
            continue
        [approach] = approaches
        found.append(approach.successor.node)
        if found[-1] == "e":
            one.handle(Reached("e"), at)
            at += PACE.ask_s
            effects = [*one.handle(Released("e", one.term + 1), at)]
        else:
            at += PACE.silence_s / 5
            effects = [*one.handle(NotReached(found[-1]), at)]
    return found


def test_hosts_that_do_not_answer_are_left_alone_for_the_longer_the_more_there_are() -> None:
    """Else the one that answers would be one of twelve."""
    one = following(formed(*"abcdefghijklm"))
    one.handle(SILENT, 10.0)
    found = asked(one, one.handle(Ready(join("d")), 10.1), 10.1, 60)
    assert set(found[:12]) == set("abcefghijklm"), "each of them is asked in the first turn"
    assert found[12:].count("e") > 12


def test_unless_there_is_no_other() -> None:
    last = dataclasses.replace(FIVE, successors=FIVE.successors[:2])
    one = following(last)
    one.handle(SILENT, 10.0)
    found = asked(one, one.handle(Ready(join("d")), 10.1), 10.1, 9)
    assert [sorted(found[k : k + 3]) for k in (0, 3, 6)] == [["a", "b", "c"]] * 3


def test_a_candidate_asks_it_when_its_own_votes_were_in_vain() -> None:
    one, effects = silent("b")
    assert effects == []
    assert one.handle(TimePassed(), 10.1 + PACE.ask_s) == [Approach(Successor("a", "a", 1))]
    assert one.handle(NotReached("a"), 18.0) == [Approach(Successor("c", "c", 1))]


def test_votes_in_vain_for_that_leader_are_followed_by_the_next_successor() -> None:
    one, _ = silent("e")
    one.handle(Reached("b"), 10.2)
    one.handle(Released("b", 2), 15.0)
    one.handle(Reached("a"), 15.1)
    assert sought(one, "a", 20.0) == ["c", "d"]


def test_a_launcher_on_its_way_to_one_that_has_proved_that_it_leads_sends_voters_there() -> None:
    """Votes for itself do not keep it back: they would find no majority."""
    one, _ = silent("b")
    leads_at = Successor("e", "e", 1)
    assert one.handle(LeaderKnown(4, leads_at), 11.0) == []
    assert one.handle(TimePassed(), 10.1 + PACE.ask_s) == [Approach(leads_at)]
    [release] = one.handle(offer("c", 9), 14.7)
    assert isinstance(release, Release)
    assert (release.nodes, release.ahead) == (("c",), leads_at)
    [give] = one.handle(Reached("e"), 14.8)
    assert isinstance(give, Give)


# ---------------------------------------------------------------- ranks that may be alive
def test_a_candidate_that_has_lost_a_silent_leader_learns_with_a_vote_when_that_one_has_died() -> (
    None
):
    """It has led others until then, and their ranks have as long to end as its own had."""
    one, _ = silent("b")
    one.handle(offer("c", 1), 10.2)
    [leads] = one.handle(offer("d", 1, ended=("a",)), 11.0)
    assert isinstance(leads, Leads)
    assert leads.ranks_until == 11.0 + PACE.silence_s
    assert leads.leases_until == 10.0 + 9.5 - PACE.step_down_s, "the dead have none"


def test_so_it_does_when_it_finds_that_one_dead_itself() -> None:
    """And the others that are: each may have led meanwhile. A death counts from the first proof."""
    one, _ = silent("b")
    one.handle(PeerDied("a"), 11.0)
    one.handle(PeerDied("e"), 12.0)
    one.handle(PeerDied("a"), 13.0)
    one.handle(offer("c", 1), 13.0)
    [leads] = one.handle(offer("d", 1, ended=("a", "e")), 13.0)
    assert isinstance(leads, Leads)
    assert leads.ranks_until == 12.0 + PACE.silence_s
