"""Which launchers a round gives a vote and names as successors, and when it is revised."""

from __future__ import annotations

import math

from holdfast.job.pure.leader_lease import LeaderLease
from holdfast.job.pure.membership import CyclePlace, Descriptor, Join, Round, Successor
from holdfast.job.pure.nodes import Nodes
from holdfast.job.pure.rounds import Rounds
from holdfast.job.pure.timing import NEWS_S, Pace

PACE = Pace()
BEFORE = Round(3, (CyclePlace("z", 0, 1, 0, "z"),), term=1)


def joined(nodes: Nodes, *names: str, serves: int = 9, is_witness: bool = False) -> None:
    for name in names:
        desc = Descriptor(name, name, 1, 1, serves=serves, is_witness=is_witness)
        nodes.join(Join(name, desc), 0.0)


def rounds(*nodes: str, before: Round | None = None) -> Rounds:
    """Of a leader at the first of these nodes."""
    one = Rounds(nodes[0], 2, before, Nodes(), LeaderLease(PACE, nodes[0]))
    joined(one.nodes, *nodes)
    return one


def bare(*nodes: str, spares: tuple[str, ...] = (), cycle: int = 4, is_last: bool = False) -> Round:
    places = tuple(CyclePlace(node, k, 1, k, node) for k, node in enumerate(nodes))
    return Round(cycle, places, spares, is_last=is_last)


def published(one: Rounds, formed: Round, now: float = 0.0) -> Round:
    one.published(formed, now)
    return formed


def test_a_round_names_its_leader_the_successors_and_the_round_before() -> None:
    one = rounds("a", "b", "c", before=BEFORE)
    joined(one.nodes, "d", serves=0)
    formed = one.form(bare("a", "b", "d", spares=("c",)))
    assert (formed.term, formed.leader, formed.leads_at) == (2, "a", Successor("a", "a", 9))
    assert [it.node for it in formed.successors] == ["b", "c"], "the leader is none, nor is d"
    assert formed.after == BEFORE.version
    published(one, formed)
    assert one.form(bare("a", cycle=5)).after == formed.version


def test_a_witness_has_a_vote_beside_an_even_number_of_launchers() -> None:
    one = rounds("a", "b", "c")
    joined(one.nodes, "w", is_witness=True)
    assert one.form(bare("a", "b")).witness == "w"
    assert one.form(bare("a", "b", spares=("c",))).witness == ""


def test_a_round_is_revised_when_others_wait_for_a_place() -> None:
    """A moment later, as others may come as well."""
    one = rounds("a", "b")
    assert one.revise_at() == math.inf
    formed = published(one, one.form(bare("a", "b")), 1.0)
    assert one.revise_at() == math.inf
    joined(one.nodes, "c")
    one.nodes.ready["c"] = None
    assert one.revise_at() == 1.0 + NEWS_S
    revised = published(one, one.revised(), 3.0)
    assert revised.spares == revised.learners == ("c",)
    assert revised.electorate == {"a", "b"}, "it may not have received a round"
    assert revised.after == formed.version < revised.version
    assert [it.node for it in revised.successors] == ["b", "c"]
    assert one.revise_at() == math.inf


def test_a_spare_has_a_vote_when_it_has_a_round() -> None:
    """A launcher without a round cannot vote, and those that can might be no majority with it."""
    one = rounds("a", "b")
    formed = published(one, one.form(bare("a", "b")), 1.0)
    joined(one.nodes, "c")
    one.nodes.ready["c"] = None
    revised = published(one, one.revised(), 3.0)
    one.received("c", (1, *formed.version[1:]))
    assert one.revise_at() == math.inf, "it has one of the leader before"
    one.received("c", revised.version)
    assert one.revise_at() == 3.0, "at once"
    again = published(one, one.revised(), 5.0)
    assert again.learners == ()
    assert again.electorate == {"a", "b", "c"}
    assert one.revise_at() == math.inf
    joined(one.nodes, "w", is_witness=True)
    assert one.revise_at() == math.inf, "three launchers need no witness"
    del one.nodes.ready["c"]
    assert one.revise_at() == 5.0 + NEWS_S


def test_the_node_of_the_leader_has_a_vote_at_once() -> None:
    one = rounds("a", "b", "c")
    published(one, one.form(bare("b", "c")))
    one.nodes.ready["a"] = None
    assert one.revised().electorate == {"a", "b", "c"}


def test_spares_that_have_a_round_wait_a_moment_for_others_that_came_with_them() -> None:
    one = rounds("a", "b")
    published(one, one.form(bare("a", "b")), 1.0)
    joined(one.nodes, "c", "d")
    one.nodes.ready |= {"c": None, "d": None}
    revised = published(one, one.revised(), 3.0)
    one.received("c", revised.version)
    assert one.revise_at() == 3.0 + NEWS_S
    again = published(one, one.revised(), 5.0)
    assert (again.learners, again.electorate) == (("d",), {"a", "b", "c"})


def test_a_launcher_that_comes_back_as_another_node_keeps_its_vote() -> None:
    one = rounds("a", "b-1", "c")
    published(one, one.form(bare("a", "b-1", "c")))
    joined(one.nodes, "b-1.1")
    one.nodes.ready["b-1.1"] = None
    assert one.revised().learners == ()


def test_no_round_is_revised_after_which_leadership_does_not_move() -> None:
    one = rounds("a", "b")
    joined(one.nodes, "c")
    one.nodes.ready["c"] = None
    published(one, one.form(bare("a", "b", is_last=True)))
    assert one.revise_at() == math.inf
    at_rest = rounds("a", "b")
    joined(at_rest.nodes, "a", serves=0)
    at_rest.nodes.ready["b"] = None
    published(at_rest, at_rest.form(bare("a")))
    assert at_rest.revise_at() == math.inf


def test_a_round_is_settled_when_enough_launchers_have_it() -> None:
    one = rounds("a", "b", "c")
    formed = published(one, one.form(bare("a", "b", "c")))
    assert not one.received("b", ())
    assert not one.received("a", formed.version)
    assert one.settled == ()
    assert one.received("b", formed.version)
    assert one.settled == formed.version
