"""The leader's part of snapshots."""

from __future__ import annotations

from holdfast.arena.pure.snapshots import Ancestor, Beginning, Held, Holdings, Restore, SnapshotId
from holdfast.job.pure.membership import (
    Cadence,
    CyclePlace,
    Descriptor,
    Join,
    Round,
    SnapshotCosts,
)
from holdfast.job.pure.state_choice import StateChoice

PLACES = (CyclePlace("a", 0, 1, 0, "a"), CyclePlace("b", 1, 1, 1, "b"))
FIVE = SnapshotId(0, 0, 5)


def join(node: str, cycle: int, *held: Held, last_step: int = -1, every: int = 0) -> Join:
    holdings = Holdings(tuple(held), last_step, every=every)
    return Join(node, Descriptor(node, node, 1, 1), cycle, None, holdings)


def five(rank: int, *, term: int = 0) -> Held:
    return Held(rank, 2, 0, 0, 5, term)


def test_without_snapshots_nothing_is_said() -> None:
    state = StateChoice()
    state.joined(Join("a", Descriptor("a", "a", 1, 1)))
    assert state.begin(0, 0, PLACES) is None
    assert state.begin(1, 0, PLACES) is None


def test_all_ranks_begin_from_what_all_have_and_learn_how_many_steps_that_costs() -> None:
    state = StateChoice()
    state.begin(0, 0, PLACES)
    state.joined(join("a", 0, five(0), last_step=7))
    state.joined(join("b", 0, five(1), last_step=6, every=4))
    assert state.begin(1, 0, PLACES) == Beginning(
        Restore(FIVE, 2, lost_steps=2), (Ancestor(0, 0, 0, 5),), every=4
    )


def test_a_leader_that_takes_over_knows_the_lineage_from_the_last_round() -> None:
    """The state of cycle 0 is still what the life of cycle 1 goes back to."""
    before = Beginning(Restore(FIVE, 2), (Ancestor(0, 0, 0, 5),), every=4)
    state = StateChoice()
    state.inherit(Round(1, PLACES, world_size=2, beginning=before))
    for rank, node in enumerate("ab"):
        state.joined(join(node, 1, five(rank)))
    begins = state.begin(2, 1, PLACES)
    assert begins == Beginning(Restore(FIVE, 2, -1, times=2), (Ancestor(0, 0, 0, 5),), every=4)


def test_a_life_of_that_number_under_a_leader_that_died_is_another_one() -> None:
    state = StateChoice()
    state.inherit(Round(0, PLACES, world_size=2, term=1))
    for rank, node in enumerate("ab"):
        state.joined(join(node, 0, five(rank, term=0)))
    begins = state.begin(1, 1, PLACES)
    assert begins is not None
    assert begins.restore is None


def test_a_snapshot_that_leads_nowhere_is_given_up_after_two_lives() -> None:
    state = StateChoice(progress=10)
    state.begin(0, 0, PLACES)
    for cycle in range(3):
        for rank, node in enumerate("ab"):
            older = Held(rank, 2, 0, 0, 4)
            state.joined(join(node, cycle, older, five(rank), last_step=6))
        begins = state.begin(cycle + 1, 0, PLACES)
        assert begins is not None
        assert begins.restore is not None
        assert begins.restore.snapshot.step == (5 if cycle < 2 else 4)
    assert begins.why == "two restarts from it made fewer than 10 new steps each"


def test_a_late_copy_of_a_join_does_not_bring_back_what_is_void() -> None:
    state = StateChoice()
    state.begin(0, 0, PLACES)
    state.joined(join("a", 1))
    state.joined(join("b", 1, five(1)))
    state.joined(join("a", 0, five(0)))
    begins = state.begin(2, 0, PLACES)
    assert begins is not None
    assert begins.restore is None


def test_the_cadence_is_that_of_the_node_for_which_snapshots_cost_most() -> None:
    state = StateChoice()
    assert state.cost(SnapshotCosts("a", 0, 20, 2), 0, ["a", "b"]) is None
    assert state.cost(SnapshotCosts("b", 0, 22, 5), 0, ["a", "b"]) == Cadence(0, 5, 30)
    assert state.cost(SnapshotCosts("b", 0, 23, 9), 0, ["a", "b"]) is None
    begins = state.begin(1, 0, PLACES)
    assert begins is not None
    assert begins.every == 5
