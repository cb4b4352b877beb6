"""The node's part of kept steps."""

from __future__ import annotations

import math

from holdfast.arena.pure.snapshots import SnapshotId
from holdfast.job.pure.member_messages import KeepStep, StepCopied, StepKept, StepMissed
from holdfast.node.pure.node_keeping import (
    CopyFailed,
    CopySent,
    NodeKeeping,
    PinSteps,
    RankSeen,
    SendCopy,
)

FOUR, TWELVE = SnapshotId(0, 0, 4), SnapshotId(0, 0, 12)


def begun(*, peer: str = "b", kept: SnapshotId | None = FOUR) -> NodeKeeping:
    keeping = NodeKeeping()
    keeping.begin(0, (0, 1), peer, kept, {})
    return keeping


def asked() -> NodeKeeping:
    """For step 12, at 100.0."""
    keeping = begun()
    assert keeping.keep(KeepStep(0, 12, FOUR), 100.0) == [PinSteps(12, 4)]
    return keeping


def seen(*ranks: RankSeen) -> dict[int, RankSeen]:
    return dict(enumerate(ranks))


def both_sent() -> NodeKeeping:
    keeping = asked()
    keeping.look(seen(RankSeen(12, TWELVE, 50), RankSeen(12, TWELVE, 60)), 100.0)
    return keeping


def test_a_cycle_begins_with_the_kept_step_pinned() -> None:
    assert NodeKeeping().begin(0, (0, 1), "b", FOUR, {}) == [PinSteps(0, 4)]
    assert NodeKeeping().begin(0, (0, 1), "b", None, {}) == [PinSteps(0, 0)]


def test_a_node_says_how_far_its_ranks_are_when_all_have_ended_a_step() -> None:
    keeping = begun()
    assert keeping.keep(KeepStep(0, 0, FOUR), 100.0) == [PinSteps(0, 4)]
    assert keeping.look({0: RankSeen(3)}, 100.0) == []
    assert keeping.look(seen(RankSeen(3), RankSeen(-1)), 101.0) == []
    assert keeping.look(seen(RankSeen(3), RankSeen(4)), 102.0) == [StepMissed(0, 0, 4)]
    assert math.isinf(keeping.next_deadline())


def test_each_rank_is_sent_when_it_has_the_step_and_the_node_says_when_all_are() -> None:
    keeping = asked()
    first, second = RankSeen(12, TWELVE, 50), RankSeen(12, TWELVE, 60)
    assert keeping.look(seen(first, RankSeen(11)), 100.0) == [SendCopy(0, TWELVE, "b", 4)]
    assert keeping.sent(CopySent(0, TWELVE, "b")) == []
    assert keeping.look(seen(first, second), 101.0) == [SendCopy(1, TWELVE, "b", 4)]
    assert math.isinf(keeping.next_deadline())
    assert keeping.sent(CopySent(1, TWELVE, "b")) == [StepCopied(0, TWELVE, 110)]
    assert keeping.complete == TWELVE
    assert keeping.kept == FOUR
    assert keeping.step_kept(StepKept(0, TWELVE)) == [PinSteps(0, 12)]


def test_looks_become_rarer_with_the_time_that_a_step_takes() -> None:
    keeping = asked()
    keeping.look(seen(RankSeen(11), RankSeen(11)), 100.0)
    assert keeping.next_deadline() == 100.02
    keeping.look(seen(RankSeen(11), RankSeen(11)), 102.0)
    assert keeping.next_deadline() == 102.2
    keeping.look(seen(RankSeen(11), RankSeen(11)), 200.0)
    assert keeping.next_deadline() == 201.0


def test_a_rank_that_was_past_the_step_is_reported_and_the_step_stays_pinned() -> None:
    """Until the leader names another one: others may have it."""
    keeping = asked()
    found = seen(RankSeen(14, is_missed=True), RankSeen(13, TWELVE, 50))
    assert keeping.look(found, 100.0) == [StepMissed(0, 12, 14)]
    assert keeping.sent(CopySent(1, TWELVE, "b")) == []
    assert keeping.keep(KeepStep(0, 20, FOUR), 101.0) == [PinSteps(20, 4)]


def test_a_rank_that_takes_no_snapshots_any_more_is_reported_whatever_is_asked() -> None:
    for step in (0, 12):
        keeping = begun()
        keeping.keep(KeepStep(0, step, FOUR), 100.0)
        found = seen(RankSeen(14, TWELVE, 50), RankSeen(13, gave_up=True))
        why = "rank 1 takes none any more"
        assert keeping.look(found, 100.0) == [StepMissed(0, step, 14, why, gave_up=True)]
    assert keeping.keep(KeepStep(0, 0, None), 101.0) == [PinSteps(0, 0)]


def test_a_transfer_that_fails_is_reported_once() -> None:
    keeping = both_sent()
    failed = CopyFailed(0, TWELVE, "b", "timed out")
    assert keeping.failed(failed, 101.0) == [StepMissed(0, 12, -1, "rank 0 to b: timed out")]
    assert keeping.failed(failed, 101.0) == []
    assert keeping.sent(CopySent(1, TWELVE, "b")) == []


def test_a_transfer_of_an_earlier_step_means_nothing() -> None:
    keeping = both_sent()
    assert keeping.sent(CopySent(0, FOUR, "b")) == []
    assert keeping.failed(CopyFailed(0, FOUR, "b", "late"), 101.0) == []
    assert keeping.sent(CopySent(0, TWELVE, "c")) == []


def test_two_states_of_one_step_are_no_kept_step() -> None:
    """A restart in place came between the copies of two ranks."""
    keeping, again = asked(), SnapshotId(0, 1, 12)
    keeping.look(seen(RankSeen(12, TWELVE, 50), RankSeen(12, again, 50)), 100.0)
    keeping.sent(CopySent(0, TWELVE, "b"))
    assert keeping.sent(CopySent(1, again, "b")) == [StepMissed(0, 12, 12)]
    assert keeping.complete is None


def test_a_node_that_cannot_keep_any_says_so_when_it_is_asked() -> None:
    keeping = begun()
    assert keeping.cannot("too little memory") == []
    answer = [StepMissed(0, 0, -1, "too little memory", for_good=True)]
    assert keeping.keep(KeepStep(0, 0, None), 100.0) == answer
    alone = begun(peer="")
    answer = [StepMissed(0, 0, -1, "this node has no peer", for_good=True)]
    assert alone.keep(KeepStep(0, 0, None), 100.0) == answer


def test_a_node_that_finds_out_while_it_keeps_one_says_so_at_once() -> None:
    keeping = asked()
    answer = [StepMissed(0, 12, -1, "the process ended", for_good=True)]
    assert keeping.cannot("the process ended") == answer


def test_what_another_node_lacks_is_sent_until_it_has_it() -> None:
    keeping = NodeKeeping()
    push = SendCopy(3, FOUR, "c", 4)
    assert keeping.begin(1, (0, 1), "b", FOUR, {(3, "c"): FOUR}) == [PinSteps(0, 4), push]
    assert keeping.failed(CopyFailed(3, FOUR, "c", "it is not there"), 100.0) == []
    assert keeping.next_deadline() == 101.0
    assert keeping.time_passed(100.9) == []
    assert keeping.time_passed(101.0) == [push]
    assert keeping.sent(CopySent(3, FOUR, "c")) == []
    assert math.isinf(keeping.next_deadline())
    assert keeping.failed(CopyFailed(3, FOUR, "c", "late"), 102.0) == []
    assert math.isinf(keeping.next_deadline())


def test_when_its_ranks_are_gone_nothing_is_sent_and_what_it_knows_stays() -> None:
    keeping = both_sent()
    keeping.sent(CopySent(0, TWELVE, "b"))
    keeping.sent(CopySent(1, TWELVE, "b"))
    keeping.end()
    assert math.isinf(keeping.next_deadline())
    assert (keeping.kept, keeping.complete) == (FOUR, TWELVE)


def test_decisions_of_another_cycle_mean_nothing() -> None:
    keeping = asked()
    assert keeping.keep(KeepStep(1, 20, TWELVE), 101.0) == []
    assert keeping.step_kept(StepKept(1, TWELVE)) == []
    assert keeping.kept == FOUR
