"""One witness: it joins, votes, follows, and leaves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.pure.common_events import Note, SignalArrived, TimePassed
from holdfast.job.pure.member import Member
from holdfast.job.pure.member_messages import LeaderLost
from holdfast.job.pure.membership import (
    CyclePlace,
    Descriptor,
    End,
    JobOutcome,
    Join,
    LeaderBeat,
    Leave,
    Offer,
    Resigned,
    Round,
    Successor,
)
from holdfast.job.pure.nodes import Nodes
from holdfast.job.pure.succession import Succession
from holdfast.job.pure.succession_messages import (
    Approach,
    Follows,
    Give,
    LeaderDied,
    Reached,
    Release,
)
from holdfast.job.pure.timing import Pace
from holdfast.job.pure.votes import is_majority
from holdfast.node.pure.launcher import Met
from holdfast.node.pure.witness import Witness, WitnessLeaves

DESC = Descriptor("", "login", 1, 7, is_witness=True)
PACE = Pace()


def formed(*, witness: str = "w", cycle: int = 0) -> Round:
    """Of two launchers, led by the first."""
    places = tuple(CyclePlace(node, k, 1, k, node) for k, node in enumerate(("a", "b")))
    leads_at, others = Successor("a", "a", 1), (Successor("b", "b", 1),)
    return Round(cycle, places, leader="a", leads_at=leads_at, successors=others, witness=witness)


def started() -> tuple[Witness, list[Any]]:
    one = Witness(Member("w", DESC, PACE), Succession(PACE))
    return one, [*one.handle(Met(leads=False, addr="10.0.0.9", port=4711), 0.0)]


def followed(last: Round) -> Witness:
    one, _ = started()
    one.handle(last, 0.1)
    return one


def test_it_joins_as_a_process_that_serves_nowhere() -> None:
    _, effects = started()
    [join] = effects
    assert isinstance(join, Join)
    assert join.desc.is_witness
    assert (join.desc.addr, join.desc.serves) == ("10.0.0.9", 0)


def said(one: Witness, *decisions: Any) -> list[str]:
    effects = [effect for it in decisions for effect in one.handle(it, 0.1)]
    return [effect.text for effect in effects if isinstance(effect, Note)]


def settled(last: Round) -> LeaderBeat:
    return LeaderBeat(settled=last.version)


def test_it_says_that_it_has_a_vote_once_when_no_launcher_can_lead_without_knowing() -> None:
    one, _ = started()
    first, second = formed(), formed(cycle=1)
    assert said(one, first, LeaderBeat()) == []
    assert said(one, settled(first)) == ["this witness has one of 3 votes of the job"]
    assert said(one, settled(first), second, settled(second)) == []


def test_it_says_that_it_has_none_at_once() -> None:
    one, _ = started()
    none = ["this witness has no vote now: the launchers have 2 votes, an odd number"]
    assert said(one, formed(witness="")) == none
    other, _ = started()
    assert said(other, formed(witness="v")) == ["this witness has no vote now: another one has"]


def test_a_late_round_of_a_dead_leader_is_not_heard() -> None:
    one = followed(formed())
    one.handle(LeaderDied("its launcher has ended"), 1.0)
    assert one.handle(formed(cycle=1), 1.1) == []
    assert one.succession.round == formed()


def test_it_votes_for_the_launcher_that_is_left_and_follows_it() -> None:
    one = followed(formed())
    assert one.handle(LeaderDied("its launcher has ended"), 1.0)[-1:] == [
        Approach(Successor("b", "b", 1))
    ]
    [given_it] = one.handle(Reached("b"), 1.1)
    assert isinstance(given_it, Give)
    assert given_it.offer.join.desc.is_witness
    one.handle(Follows(), 1.2)
    assert one.finished is None
    assert one.succession.leader == "b"


def test_it_gives_back_each_vote_that_it_is_given() -> None:
    one = followed(formed())
    join = Join("b", Descriptor("b", "b", 1, 1))
    offered = one.handle(Offer("b", 3, join, (0, 0, 0)), 1.0)
    assert offered == [Release(("b",), 4)]


@pytest.mark.parametrize(
    ("event", "code", "text"),
    [
        (End(JobOutcome.SUCCEEDED, 0, "all"), 0, "the job has ended, succeeded: all"),
        (End(JobOutcome.FAILED, 1, "a rank"), 0, "the job has ended, failed: a rank"),
        (End(JobOutcome.FAILED, None, "a rank"), 0, "the job has ended, failed: a rank"),
        (SignalArrived(15), 0, "SIGTERM"),
        (
            LeaderLost("no launcher is there"),
            1,
            "the leader of the job is lost: no launcher is there",
        ),
    ],
)
def test_it_leaves_with_one_line(event: Any, code: int, text: str) -> None:
    one = followed(formed())
    *others, last = one.handle(event, 1.0)
    assert last == WitnessLeaves(code, text)
    assert any(isinstance(it, Leave) for it in others)
    assert one.next_deadline() is None
    assert one.handle(TimePassed(), 99.0) == []


def test_it_does_not_outlive_a_job_without_a_successor() -> None:
    """The last launcher has died."""
    places = (CyclePlace("a", 0, 1, 0, "a"),)
    one = followed(Round(0, places, leader="a", leads_at=Successor("a", "a", 1)))
    [*_, last] = one.handle(LeaderDied("its launcher has ended"), 1.0)
    assert isinstance(last, WitnessLeaves)
    assert last.exit_code == 1


def test_it_looks_for_a_leader_that_has_stepped_down_also_where_it_has_no_vote() -> None:
    """The job has shrunk to that one, by silence, and the round before may be needed."""
    at_a = Successor("a", "a", 1)
    one = followed(Round(1, (CyclePlace("a", 0, 1, 0, "a"),), leader="a", leads_at=at_a))
    resigned = Resigned("no majority of its launchers has answered it", stays=True)
    assert one.handle(resigned, 1.0)[-1] == Approach(at_a)
    assert one.finished is None


@given(st.integers(1, 9), st.data())
def test_a_witness_makes_no_majority_harder_to_reach(launchers: int, data: Any) -> None:
    """What was one without it is one; of an even number, half of them is one with it."""
    nodes = Nodes()
    nodes.join(Join("w", DESC), 0.0)
    nodes.join(Join("v", DESC), 0.0)
    names = [f"n{k}" for k in range(launchers)]
    some = data.draw(st.sets(st.sampled_from(names)))
    without = frozenset(names)
    witness = nodes.witness_for(launchers)
    electorate = without | {witness} if witness else without
    if is_majority(some, without):
        assert is_majority(some, electorate)
    if 2 * len(some) == launchers:
        assert is_majority({*some, "w"}, electorate)
    assert not is_majority({"w", "v"}, electorate)
