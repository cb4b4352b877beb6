"""When the next cycle of a job may form whose leader has died, and what a late voter changes."""

from __future__ import annotations

import math

from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.forming import Forming
from holdfast.job.pure.leader_lease import LeaderLease
from holdfast.job.pure.membership import CyclePlace, Descriptor, Join, Offer, Round
from holdfast.job.pure.nodes import Nodes
from holdfast.job.pure.rules import Rules
from holdfast.job.pure.succession_messages import Leads
from holdfast.job.pure.takeover import Takeover
from holdfast.job.pure.timing import Pace

PACE = Pace()
LAST = Round(3, tuple(CyclePlace(node, k, 1, k, node) for k, node in enumerate("abc")), term=1)
RANKS_UNTIL = 15.0


def offer(node: str, *, is_sure: bool = True, **more: object) -> Offer:
    join = Join(node, Descriptor(node, node, 1, 1), 3)
    last = more.pop("last", LAST.version)
    return Offer(node, 2, join, last, is_sure, **more)  # type: ignore[arg-type]


def takeover(*offers: Offer) -> Takeover:
    """Of the launcher at b, in term 2; a, which led, has ended."""
    lease = LeaderLease(PACE, "b")
    lease.inherit([LAST.electorate], -math.inf)
    forming = Forming(Rules(NodePolicy(1, 3)), PACE, Nodes())
    forming.open(3, RANKS_UNTIL)
    ended = frozenset("a")
    electorates = (LAST.electorate,)
    leads = Leads(
        2, LAST, electorates, offers, None, RANKS_UNTIL, 0.0, ended, 0, "it has died", "a"
    )
    one = Takeover(leads, forming, lease)
    one.begin(leads, 1.0)
    return one


def test_the_cycle_forms_early_when_each_node_has_said_that_its_ranks_are_gone() -> None:
    one = takeover(offer("b"), offer("c"))
    one.start_early_if_sure()
    one.account_for("b")
    assert one.forming.earliest_at == RANKS_UNTIL
    one.account_for("c")
    assert one.forming.earliest_at == 1.0


def test_it_waits_where_a_later_cycle_may_have_been_formed() -> None:
    """One launcher was stopping, or none had ranks: no voter can be sure of the others."""
    for offers in ((offer("b"), offer("c", is_sure=False)), (offer("x"), offer("y"))):
        one = takeover(*offers)
        for node in "bc":
            one.account_for(node)
        one.start_early_if_sure()
        assert one.forming.earliest_at == RANKS_UNTIL


def test_ranks_of_a_leader_that_a_late_voter_followed_are_waited_for() -> None:
    one = takeover(offer("b"), offer("c"))
    assert one.offered(offer("c", ranks_s=30.0), 2.0, has_formed=False)
    assert one.forming.earliest_at == 32.0
    assert one.lease.not_before == 32.0 - PACE.step_down_s
    for node in "bc":
        one.account_for(node)
    assert one.forming.earliest_at == 32.0
    assert not one.offered(offer("c", ranks_s=90.0), 3.0, has_formed=True)
    assert not one.offered(offer("c"), 3.0, has_formed=False)


def test_a_leader_that_lacks_the_last_round_knows_too_little() -> None:
    one = takeover(offer("b"), offer("c"))
    one.offered(offer("c"), 2.0, has_formed=False)
    assert not one.knows_too_little
    one.offered(offer("c", last=(1, 4, 0)), 2.0, has_formed=False)
    assert one.knows_too_little


def test_a_leader_superseded_by_one_of_a_later_term_once_its_lease_can_end() -> None:
    """Before, it has none that the voter could have seen end."""
    one = takeover(offer("b"), offer("c"))
    one.offered(offer("c", followed=3), 2.0, has_formed=True)
    assert not one.superseded
    one.lease.formed(LAST.electorate, 2.0, can_move=True)
    number = one.lease.beat(2.0)
    for node in "ac":
        one.lease.answered(node, number, 0.0)
    one.offered(offer("c", followed=2), 2.0, has_formed=True)
    assert not one.superseded
    one.offered(offer("c", followed=3), 2.0, has_formed=True)
    assert "a launcher has followed a leader of a later term" in one.superseded
    one.superseded_by(4, "b")
    assert "term 4" in one.superseded


def test_the_first_leader_takes_nothing_over() -> None:
    one = takeover(offer("b"))
    first = Takeover(None, one.forming, LeaderLease(PACE, "b"))
    assert first.term == 0
    assert not first.offered(offer("c", ranks_s=9.0), 1.0, has_formed=False)
    first.joined(offer("c").join)
    assert first.newest == 3
