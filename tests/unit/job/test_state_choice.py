"""The leader's part of snapshots."""

from __future__ import annotations

import pytest

from holdfast.arena.pure.lineage import ANY
from holdfast.arena.pure.snapshots import (
    OF_A_FILE,
    Ancestor,
    Beginning,
    CopySource,
    DamagedCopy,
    Held,
    Holdings,
    OnDisk,
    Refused,
    Restore,
    SnapshotId,
)
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


FILED = SnapshotId(OF_A_FILE, 0, 40)
NEWER, OLDER = OnDisk("newer", 40, 2, "0,1"), OnDisk("older", 30, 2, "0,1")


def with_files(
    state: StateChoice, cycle: int, *held: Held, last_step: int = -1, refused: bool = False
) -> Beginning:
    """The next beginning, when both nodes have joined with two snapshots on disk."""
    for rank, node in enumerate("ab"):
        bad = (Refused(FILED, 1, "its sum is wrong"),) if refused and rank == 1 else ()
        own = tuple(it for it in held if it.rank == rank)
        holdings = Holdings(own, last_step, bad, files=(OLDER, NEWER))
        state.joined(Join(node, Descriptor(node, node, 1, 1), cycle, None, holdings))
    begins = state.begin(cycle + 1, 0, PLACES)
    assert begins is not None
    return begins


def test_a_job_begins_from_what_another_one_has_left_on_disk() -> None:
    begins = with_files(StateChoice(), -1)
    assert begins == Beginning(Restore(FILED, 2, file="newer"))


def test_its_own_snapshots_are_newer_than_those_on_disk() -> None:
    state = StateChoice()
    with_files(state, -1)
    own = [Held(rank, 2, 0, 0, 41) for rank in (0, 1)]
    begins = with_files(state, 0, *own, last_step=41)
    assert begins.restore == Restore(SnapshotId(0, 0, 41), 2, 0)
    assert begins.lineage == (Ancestor(0, 0, 0, 41),)


def test_one_on_disk_that_a_rank_cannot_use_is_given_up_for_an_older_one() -> None:
    state = StateChoice()
    with_files(state, -1)
    begins = with_files(state, 0, last_step=40, refused=True)  # another rank could use it
    assert begins.restore == Restore(SnapshotId(OF_A_FILE, 0, 30), 2, 10, file="older")
    assert begins.given_up == ("newer",)
    assert begins.why == "rank 1 could not use step 40 on disk: its sum is wrong"


def test_one_of_another_number_of_ranks_is_named_and_given_up_by_the_same_rules() -> None:
    other = OnDisk("other", 40, 3, "0-2")

    def begin(state: StateChoice, cycle: int, last_step: int, *refused: Refused) -> Beginning:
        for node in "ab":
            holdings = Holdings((), last_step, refused, files=(other,))
            state.joined(Join(node, Descriptor(node, node, 1, 1), cycle, None, holdings))
        begins = state.begin(cycle + 1, 0, PLACES)
        assert begins is not None
        return begins

    state = StateChoice(progress=10)
    assert begin(state, -1, -1) == Beginning(Restore(FILED, 3, file="other"))
    assert begin(state, 0, 43).restore == Restore(FILED, 3, 3, 2, "other")
    begins = begin(state, 1, 43)
    assert (begins.restore, begins.given_up) == (None, ("other",))
    state = StateChoice()
    begin(state, -1, -1)
    begins = begin(state, 0, -1, Refused(FILED, 1, "its sum is wrong"))
    assert (begins.restore, begins.given_up) == (None, ("other",))


def test_one_on_disk_that_leads_nowhere_twice_is_given_up() -> None:
    state = StateChoice(progress=10)
    times = [with_files(state, cycle, last_step=43).restore for cycle in (-1, 0)]
    assert [it and (it.file, it.times) for it in times] == [("newer", 1), ("newer", 2)]
    begins = with_files(state, 1, last_step=43)
    assert begins.restore == Restore(SnapshotId(OF_A_FILE, 0, 30), 2, 13, file="older")
    assert begins.given_up == ("newer",)
    assert begins.why == "two cycles from step 40 on disk made fewer than 10 new steps each"


def test_when_the_job_has_got_further_its_checkpoints_are_newer_than_the_disk() -> None:
    """Its snapshots are lost, with a node."""
    state = StateChoice(progress=10)
    with_files(state, -1)
    begins = with_files(state, 0, last_step=50)
    assert begins == Beginning(given_up=("newer", "older"))


def test_a_leader_that_takes_over_knows_what_is_given_up() -> None:
    state = StateChoice()
    before = Beginning(given_up=("newer",))
    state.inherit(Round(1, PLACES, world_size=2, beginning=before))
    begins = with_files(state, 1)
    assert begins.restore is not None
    assert begins.restore.file == "older"


# ---------------------------------------------------------------- snapshots given up
LIFE = SnapshotId(0, 0, ANY)
"""A rank has given up all of cycle 0."""


def given_up(state: StateChoice, *, then_lost: bool = False) -> Beginning:
    """Rank 0 has, and the other node has both parts of the kept step."""
    state.joined(Join("a", Descriptor("a", "a", 1, 1), 0, None, Holdings((), 6, void_until=LIFE)))
    if then_lost:
        state.lost("a")
    holdings = Holdings((five(0), five(1), Held(1, 2, 0, 0, 50)), 50)
    state.joined(Join("b", Descriptor("b", "b", 1, 1), 0, None, holdings))
    begins = state.begin(1, 0, PLACES, kept=FIVE, may_move=True)
    assert begins is not None
    return begins


@pytest.mark.parametrize("then_lost", [False, True])
def test_no_cycle_goes_back_to_copies_of_snapshots_that_their_rank_has_given_up(
    then_lost: bool,
) -> None:
    """Checkpoints are newer than any of them, also when that rank's node is lost since."""
    first, second = StateChoice(), StateChoice()
    first.begin(0, 0, PLACES)
    second.inherit(Round(0, PLACES, world_size=2))
    for state in (first, second):
        begins = given_up(state, then_lost=then_lost)
        assert begins == Beginning(why="step 50 is not there for rank 0")


def test_a_rank_that_takes_snapshots_again_is_restored_to_them() -> None:
    """After a restart in place, or in a later cycle, whatever is said of the life before."""
    state = StateChoice()
    state.begin(0, 0, PLACES)
    for rank, node in enumerate("ab"):
        holdings = Holdings((Held(rank, 2, 0, 1, 3),), 3, void_until=LIFE if rank == 0 else None)
        state.joined(Join(node, Descriptor(node, node, 1, 1), 0, None, holdings))
    begins = state.begin(1, 0, PLACES)
    assert begins is not None
    assert begins.restore == Restore(SnapshotId(0, 1, 3), 2, 0)
    for rank, node in enumerate("ab"):
        state.joined(join(node, 1, Held(rank, 2, 1, 0, 4)))
    begins = state.begin(2, 0, PLACES)
    assert begins is not None
    assert begins.restore is not None
    assert begins.restore.snapshot == SnapshotId(1, 0, 4)


def test_a_job_does_not_go_back_to_the_disk_once_a_rank_has_given_snapshots_up() -> None:
    """Its step says no longer how far it has got (invariant T-5)."""
    state = StateChoice(progress=10)
    with_files(state, -1)
    for node in "ab":
        holdings = Holdings((), 41, void_until=LIFE, files=(OLDER, NEWER))
        state.joined(Join(node, Descriptor(node, node, 1, 1), 0, None, holdings))
    assert state.begin(1, 0, PLACES) == Beginning(given_up=("newer", "older"))


# ---------------------------------------------------------------- damaged copies
FROM_A = Restore(FIVE, 2, 0, sources=(CopySource(1, "a"),))


def begin_with(
    state: StateChoice, cycle: int, a: Holdings, b: Holdings, term: int = 0
) -> Beginning:
    """The next beginning, when both nodes have joined. Both parts are on node ``a``."""
    for node, holdings in (("a", a), ("b", b)):
        state.joined(Join(node, Descriptor(node, node, 1, 1), cycle, None, holdings))
    begins = state.begin(cycle + 1, term, PLACES, may_move=True)
    assert begins is not None
    return begins


def found(source: str = "") -> Refused:
    return Refused(FIVE, 1, "its bytes have changed", is_damaged=True, source=source)


BOTH, OWN, NONE = Holdings((five(0), five(1)), 5), Holdings((five(1),), 5), Holdings((), 5)


def test_another_copy_takes_the_place_of_a_damaged_one_and_no_life_is_counted_for_it() -> None:
    state = StateChoice()
    state.begin(0, 0, PLACES)
    begins = begin_with(state, 0, BOTH, OWN)
    assert begins.restore == FROM_A.but(sources=())
    begins = begin_with(state, 1, BOTH, OWN.but(refused=(found(),)))
    assert begins.restore == FROM_A
    assert begins.damaged == (), "its own node knows"
    assert begins.why == "rank 1 gets another copy, as its own is damaged: its bytes have changed"
    again = begin_with(state, 2, BOTH, OWN)
    assert again.restore == FROM_A.but(times=2, sources=()), "it has a good one"


def test_a_copy_that_was_damaged_where_it_came_from_is_sent_by_that_node_to_none() -> None:
    state = StateChoice()
    state.begin(0, 0, PLACES)
    begin_with(state, 0, BOTH, NONE)
    begins = begin_with(state, 1, BOTH, NONE.but(refused=(found("a"),)))
    assert (begins.restore, begins.lineage, begins.damaged) == (None, (), ())


def test_a_leader_that_takes_over_knows_the_damaged_copies() -> None:
    """Until their node has voided them."""
    bad = DamagedCopy(FIVE, 1, "a")
    state = StateChoice()
    before = Beginning(Restore(FIVE, 2), (Ancestor(0, 0, 0, 5),), damaged=(bad,))
    state.inherit(Round(1, PLACES, world_size=2, beginning=before))
    begins = begin_with(state, 1, BOTH, OWN, term=1)
    assert (begins.restore and begins.restore.sources, begins.damaged) == ((), (bad,))
    begins = begin_with(state, 2, Holdings((five(0),), 5), OWN, term=1)
    assert begins.damaged == ()
    assert begin_with(state, 3, BOTH, NONE, term=1).damaged == (), "it has another one"


def test_a_node_that_waits_since_its_copy_was_damaged_excuses_no_later_life() -> None:
    """Its refusal stays in what it says, until it has ranks again."""
    state = StateChoice()
    state.begin(0, 0, PLACES)
    begin_with(state, 0, BOTH, OWN)
    state.joined(join("c", -1))
    waits = OWN.but(refused=(found(),))
    state.joined(Join("b", Descriptor("b", "b", 1, 1), 1, None, waits))
    state.joined(join("a", 1, five(0), five(1), last_step=5))
    places = (PLACES[0], CyclePlace("c", 1, 1, 1, "c"))
    begins = []
    for cycle in (2, 3, 4):
        begins.append(state.begin(cycle, 0, places, may_move=True))
        state.joined(Join("b", Descriptor("b", "b", 1, 1), 1, None, waits))
        state.joined(join("a", cycle, five(0), five(1), last_step=5))
        state.joined(join("c", cycle, five(1), last_step=5))
    times = [it and it.restore and it.restore.times for it in begins]
    assert times == [1, 2, None], "two lives from it have led nowhere"
