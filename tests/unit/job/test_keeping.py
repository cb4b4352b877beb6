"""The leader's part of kept steps."""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.arena.pure.snapshots import Beginning, SnapshotId
from holdfast.base.pure.common_events import Note
from holdfast.job.pure.keeping import Keeping, keepers
from holdfast.job.pure.membership import (
    Complete,
    CyclePlace,
    Descriptor,
    Keep,
    Keeper,
    Kept,
    Missed,
    Round,
)

PLACES = (CyclePlace("a", 0, 1, 0, "a"), CyclePlace("b", 1, 1, 1, "b"))
ROUND = Round(0, PLACES, world_size=2, keepers=(Keeper(7, 1), Keeper(8, 0)))
TWELVE = SnapshotId(0, 0, 12)


def begun(formed: Round = ROUND, period_s: float = 30.0) -> Keeping:
    keeping = Keeping(period_s)
    keeping.begin(formed, 100.0)
    return keeping


def asked() -> Keeping:
    """For step 12, at 100.0."""
    keeping = begun()
    assert keeping.time_passed(100.0) == [Keep(0, 0)]
    assert keeping.missed(Missed("a", 0, 0, 10), 100.0) == [Keep(0, 12)]
    return keeping


def complete(node: str, step: int = 12, *, iteration: int = 0) -> Complete:
    return Complete(node, 0, SnapshotId(0, iteration, step), 50)


def test_the_first_step_is_kept_as_soon_as_a_rank_has_ended_one() -> None:
    """Two steps later than any rank is, as far as the leader knows."""
    keeping = asked()
    assert math.isinf(keeping.due_at)
    assert keeping.missed(Missed("b", 0, 0, 11), 100.2) == []  # it answers the first question


def test_a_step_is_kept_when_all_nodes_have_sent_theirs_and_the_next_one_follows_in_time() -> None:
    keeping = asked()
    assert keeping.complete(complete("a"), 101.0) == []
    assert keeping.complete(complete("a"), 101.0) == []
    assert keeping.complete(complete("b"), 102.0) == [Kept(0, TWELVE, 100, 2.0)]
    assert keeping.kept == TWELVE
    assert keeping.due_at == 130.0
    assert keeping.time_passed(129.9) == []
    assert keeping.time_passed(130.0) == [Keep(0, 0, TWELVE)]
    assert keeping.missed(Missed("b", 0, 0, 40), 130.1) == [Keep(0, 42, TWELVE)]


def test_a_transfer_that_takes_longer_than_the_period_is_followed_by_the_next_at_once() -> None:
    keeping = asked()
    keeping.complete(complete("a"), 150.0)
    keeping.complete(complete("b"), 160.0)
    assert keeping.due_at == 160.0


def test_a_step_that_a_node_was_past_is_followed_by_one_that_is_as_much_farther_off() -> None:
    """Steps of a millisecond, on a network of ten."""
    keeping = asked()
    assert keeping.missed(Missed("a", 0, 12, 30), 100.2) == [Keep(0, 51)]
    assert keeping.missed(Missed("b", 0, 12, 31), 100.2) == []  # the same news
    assert keeping.complete(complete("b"), 100.3) == []
    assert keeping.complete(complete("a", 51), 100.4) == []
    assert keeping.complete(complete("b", 51), 100.4)[0].snapshot.step == 51  # type: ignore[union-attr]


def test_only_steps_of_which_snapshots_are_taken_are_named() -> None:
    keeping = begun(replace(ROUND, beginning=Beginning(every=5)))
    keeping.time_passed(100.0)
    assert keeping.missed(Missed("a", 0, 0, 10), 100.1) == [Keep(0, 15)]
    keeping = begun()
    keeping.time_passed(100.0)
    keeping.set_cadence(7)
    assert keeping.missed(Missed("a", 0, 0, 10), 100.1) == [Keep(0, 14)]


def test_a_failed_transfer_is_tried_again_when_the_period_is_over_and_logged_once() -> None:
    keeping = asked()
    failed = Missed("a", 0, 12, 20, "rank 0 to b: timed out")
    [note] = keeping.missed(failed, 110.0)
    assert note == Note(
        "warning",
        "no snapshots at peers: rank 0 to b: timed out; no step is kept. Next try in 30 s",
    )
    assert keeping.due_at == 140.0
    assert keeping.complete(complete("a"), 111.0) == []
    assert keeping.complete(complete("b"), 111.0) == []
    keeping.time_passed(140.0)
    keeping.missed(Missed("a", 0, 0, 30), 140.1)
    assert keeping.missed(failed.but(keep=32), 141.0) == []


def test_a_node_that_can_keep_nothing_ends_that_for_the_cycle() -> None:
    keeping = begun()
    keeping.time_passed(100.0)
    [note] = keeping.missed(Missed("a", 0, 0, why="too little memory", for_good=True), 101.0)
    assert isinstance(note, Note)
    assert note.text == "no snapshots at peers: too little memory; no step is kept"
    assert math.isinf(keeping.due_at)


def test_when_a_rank_has_given_its_snapshots_up_the_kept_step_is_none_any_more() -> None:
    """All learn it, so that they do not go back to it when that rank's node is lost."""
    keeping = asked()
    for node in "ab":
        keeping.complete(complete(node), 102.0)
    assert keeping.time_passed(130.0) == [Keep(0, 0, TWELVE)]
    gave_up = Missed("a", 0, 0, 40, "rank 0 takes none any more", gave_up=True)
    text = "no snapshots at peers: rank 0 takes none any more; no step is kept. Next try in 30 s"
    assert keeping.missed(gave_up, 130.1) == [Keep(0, 0), Note("warning", text)]
    assert keeping.kept is None
    assert keeping.missed(Missed("b", 0, 0, 41), 130.2) == [], "its answer to what all learn"
    assert keeping.time_passed(160.1) == [Keep(0, 0)]
    assert keeping.missed(gave_up, 160.2) == []
    keeping.time_passed(190.2)
    assert keeping.missed(Missed("a", 0, 0, 60), 190.3) == [Keep(0, 62)], "it takes some again"


def test_after_a_restart_in_place_between_two_nodes_the_step_is_another_one() -> None:
    """They have sent two states of one step."""
    keeping = asked()
    keeping.complete(complete("a"), 101.0)
    assert keeping.complete(complete("b", iteration=1), 102.0) == [Keep(0, 0)]
    assert keeping.kept is None


def test_a_restart_of_the_same_nodes_leaves_the_kept_step_and_the_period_alone() -> None:
    keeping = asked()
    keeping.complete(complete("a"), 101.0)
    keeping.complete(complete("b"), 102.0)
    keeping.stop()
    assert math.isinf(keeping.due_at)
    keeping.begin(replace(ROUND, cycle=1, beginning=Beginning(kept=TWELVE)), 110.0)
    assert keeping.due_at == 130.0


def test_other_nodes_keep_a_step_at_once() -> None:
    """What the lost one had for its peer is lost."""
    keeping = asked()
    keeping.complete(complete("a"), 101.0)
    keeping.complete(complete("b"), 102.0)
    places = (PLACES[0], CyclePlace("c", 1, 1, 1, "c"))
    formed = replace(ROUND, cycle=1, places=places, beginning=Beginning(kept=TWELVE))
    keeping.begin(formed, 110.0)
    assert keeping.time_passed(110.0) == [Keep(1, 0, TWELVE)]


def test_answers_of_another_cycle_mean_nothing() -> None:
    keeping = asked()
    assert keeping.missed(Missed("a", 1, 12, 30), 101.0) == []
    assert keeping.complete(Complete("a", 1, TWELVE, 50), 101.0) == []
    keeping.stop()
    assert keeping.complete(complete("a"), 101.0) == []


def test_a_round_without_keepers_asks_for_nothing() -> None:
    assert math.isinf(begun(replace(ROUND, keepers=())).due_at)


def test_nodes_have_peers_if_all_of_them_take_snapshots() -> None:
    one = Descriptor("a", "a", 1, 1, keeps=7)
    assert keepers([one, replace(one, keeps=8)]) == (Keeper(7, 1), Keeper(8, 0))
    assert keepers([one, replace(one, keeps=0)]) == ()
    assert keepers([one]) == ()


def test_a_round_says_how_old_the_kept_step_is_where_this_leader_has_named_it() -> None:
    """A launcher that joins later shows its age, too."""
    keeping = asked()
    for node in "ab":
        keeping.complete(complete(node), 102.0)
    formed = replace(ROUND, cycle=1, beginning=Beginning(kept=TWELVE))
    assert keeping.with_age(formed.beginning, 107.5) == Beginning(kept=TWELVE, kept_age_s=7.5)
    assert keeping.with_age(Beginning(), 107.5) == Beginning()
    keeping.begin(formed, 108.0)
    assert keeping.with_age(formed.beginning, 109.0) == Beginning(kept=TWELVE, kept_age_s=9.0)
    next_leader = begun(formed)
    assert next_leader.with_age(formed.beginning, 109.0) == formed.beginning
