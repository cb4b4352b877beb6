"""Which launcher may lead in which term."""

from __future__ import annotations

import pytest

from holdfast.job.pure import turns
from holdfast.job.pure.membership import Round, Successor

THREE = Round(
    0, (), leader="a-1", term=4, successors=tuple(Successor(it, it, 1) for it in ("b", "c", "d"))
)


def test_each_successor_has_one_term_in_turn_from_the_one_after_the_round_on() -> None:
    order = [turns.successor_in(THREE, term).node for term in range(5, 11)]
    assert order == ["b", "c", "d", "b", "c", "d"]


@pytest.mark.parametrize(
    ("node", "terms"),
    [("c", [6, 9]), ("a-1", [5, 6, 7, 8, 9, 10]), ("a-1.1", [5, 6, 7, 8, 9, 10])],
)
def test_the_leader_of_the_round_may_lead_in_any_later_term_also_as_another_node(
    node: str, terms: list[int]
) -> None:
    assert turns.may_lead(THREE, node)
    assert [term for term in range(11) if turns.leads_in(THREE, term, node)] == terms


def test_a_launcher_that_is_no_successor_may_not_lead() -> None:
    assert not turns.may_lead(THREE, "x")


@pytest.mark.parametrize(("term", "own"), [(0, 7), (7, 7), (8, 10)])
def test_a_successor_waits_for_its_own_term(term: int, own: int) -> None:
    assert turns.next_own_term(THREE, term, "d") == own


@pytest.mark.parametrize("term", [4, 5, 6, 7])
def test_after_a_candidate_out_of_turn_the_same_successor_is_the_next(term: int) -> None:
    voted_in = turns.after_out_of_turn(THREE, term) + 1
    assert turns.successor_in(THREE, voted_in + 1) == turns.successor_in(THREE, term + 1)


@pytest.mark.parametrize(
    ("node", "other", "first"),
    [("b", "d", True), ("d", "b", False), ("b", "x", False), ("x", "b", False)],
)
def test_of_two_successors_the_earlier_one_keeps_the_votes_of_both(
    node: str, other: str, *, first: bool
) -> None:
    assert turns.precedes(THREE, node, other) is first
