"""One rank's decisions, between its main thread and its guard, one by one."""

from __future__ import annotations

import pytest

from holdfast.inplace.pure import messages as msg
from holdfast.inplace.pure.escalation import Blocked
from holdfast.inplace.pure.job_calls import Cause, FaultKind
from holdfast.inplace.pure.rank import (
    AbortDone,
    Effect,
    Entered,
    Event,
    Interrupt,
    MayLeave,
    RankMachine,
    RankPhase,
    Unwind,
)

ME = 3
CAUSES = (Cause(1, FaultKind.EXCEPTION, "boom"),)
STANDING = msg.Standing(ME, msg.Numbering(0, ME, 4), msg.Numbering(-1, ME, 4))


HELLO = msg.JoinCall(ME, 4)
BYE = msg.RankReturned(ME)
READY = msg.RanksReady(0, (STANDING,))
DONE = msg.Done(0, ME, active=True)
RAISED = msg.FaultReported(0, ME, FaultKind.EXCEPTION, "boom")
CAUGHT = msg.FaultReported(0, ME, FaultKind.EXCEPTION, "an interrupt that no process has asked for")
LEAVES = msg.RankLeaves(0, ME, fault=True, text="SystemExit: 5")
FINISHED = msg.Exit(finished=True)
FAILED = msg.Exit(finished=False, text="no rank is left")
LOST = msg.Exit(False, "the coordinator is gone")
REFUSED = msg.RankRefused(ME, "two processes")
FREE_ALL = msg.AbortEpoch(0, ())
"""The abort of a rank whose call is over, for the watcher."""


def commit(epoch: int) -> msg.Commit:
    return msg.Commit(epoch, epoch - 1, (), ())


def abort(epoch: int = 0) -> msg.AbortEpoch:
    return msg.AbortEpoch(epoch, CAUSES)


def failed(text: str, *, gave_up: bool = False) -> msg.Exit:
    """How the main thread gets the end of a call that failed."""
    return msg.Exit(finished=False, text=text, gave_up=gave_up)


WAYS: dict[str, tuple[Event, ...]] = {
    "joining": (HELLO,),
    "entering": (HELLO, commit(0)),
    "running": (HELLO, commit(0), Entered()),
    "faulted": (HELLO, commit(0), Entered(), RAISED),
    "done": (HELLO, commit(0), Entered(), DONE),
    "aborting": (HELLO, commit(0), Entered(), abort()),
    "interrupted": (HELLO, commit(0), Entered(), abort(), AbortDone()),
    "aborting, back": (HELLO, commit(0), Entered(), abort(), DONE),
    "unwinding": (HELLO, commit(0), Entered(), abort(), AbortDone(), CAUGHT),
    "ready": (HELLO, commit(0), Entered(), abort(), AbortDone(), CAUGHT, READY),
    "leaving": (HELLO, commit(0), Entered(), LEAVES),
    "over": (HELLO, commit(0), Entered(), DONE, FINISHED),
}
"""How a rank gets there."""


def rank_that_is(where: str) -> RankMachine:
    rank = RankMachine(ME)
    for event in WAYS[where]:
        rank.handle(event)
    return rank


def after(where: str, *events: Event) -> list[Effect]:
    """What follows from the last of ``events``."""
    rank = rank_that_is(where)
    effects: list[Effect] = []
    for event in events:
        effects = rank.handle(event)
    return effects


# ------------------------------------------------------------------ a call without faults
def test_a_call_without_faults() -> None:
    rank = RankMachine(ME)
    assert (rank.phase, rank.epoch) == (RankPhase.JOINING, -1)
    assert rank.handle(HELLO) == [HELLO]
    told = commit(0)
    assert rank.handle(told) == [told]
    assert (rank.phase, rank.epoch, rank.is_in_user_code) == (RankPhase.RUNNING, 0, False)
    assert rank.handle(Entered()) == []
    assert rank.is_in_user_code
    assert not rank.must_unwind
    assert rank.handle(DONE) == [DONE]
    assert (rank.phase, rank.is_in_user_code) == (RankPhase.DONE, False)
    assert rank.handle(FINISHED) == [FINISHED]
    assert rank.handle(BYE) == [BYE]
    assert rank.phase is RankPhase.OVER


def test_a_rank_without_a_function_to_call_is_done_and_says_so() -> None:
    assert after("running", msg.Done(0, ME, active=False)) == [msg.Done(0, ME, active=False)]


# ------------------------------------------------------------------ a fault, and back
def test_a_rank_that_raised_tells_it_and_is_held_until_all_abort() -> None:
    rank = rank_that_is("running")
    assert rank.handle(RAISED) == [RAISED]
    assert (rank.phase, rank.is_in_user_code) == (RankPhase.FAULTED, False)
    assert rank.handle(abort()) == [abort()]
    assert rank.must_unwind
    assert rank.handle(AbortDone()) == [Unwind()]
    assert rank.phase is RankPhase.UNWINDING
    assert rank.handle(READY) == [READY]
    assert (rank.phase, rank.must_unwind) == (RankPhase.READY, False)
    told = commit(1)
    assert rank.handle(told) == [told]
    assert (rank.phase, rank.epoch) == (RankPhase.RUNNING, 1)


def test_a_rank_says_that_it_failed_at_the_start() -> None:
    """Before the function was entered; it fails when that has happened too often."""
    rank = rank_that_is("running")
    fault = msg.FaultReported(0, ME, FaultKind.EXCEPTION, "boom", at_start=True)
    assert rank.handle(fault) == [fault]
    end = failed("gave up", gave_up=True)
    assert rank.handle(end) == [FREE_ALL]
    assert rank.handle(AbortDone()) == [end]


def test_a_rank_in_the_users_code_is_interrupted_when_the_abort_is_done() -> None:
    rank = rank_that_is("running")
    assert rank.handle(abort()) == [abort()]
    assert rank.handle(AbortDone()) == [Interrupt()]
    assert rank.must_unwind
    assert rank.is_interrupting
    assert rank.handle(CAUGHT) == [Unwind()]
    assert not rank.is_interrupting


@pytest.mark.parametrize("back", [DONE, RAISED, CAUGHT])
def test_what_comes_back_after_the_abort_is_told_to_nobody(back: Event) -> None:
    """Rules 2 and 3: an error is an echo, a return was an interruption."""
    assert after("interrupted", back) == [Unwind()]
    assert after("aborting", back) == []
    assert after("aborting", back, AbortDone()) == [Unwind()]


def test_a_rank_that_was_done_comes_back_when_another_fails() -> None:
    assert after("done", abort()) == [abort()]
    assert after("done", abort(), AbortDone()) == [Unwind()]


def test_a_rank_that_had_not_entered_yet_is_woken_and_not_interrupted() -> None:
    """It computes its assignment, in our own code."""
    assert after("entering", abort(), AbortDone()) == [Unwind()]


def test_a_rank_that_enters_while_all_abort_is_interrupted_when_that_is_done() -> None:
    assert after("entering", abort(), Entered()) == []
    assert after("entering", abort(), Entered(), AbortDone()) == [Interrupt()]


def test_a_rank_that_enters_after_the_abort_is_interrupted_at_once() -> None:
    assert after("entering", abort(), AbortDone(), Entered()) == [Interrupt()]


def test_an_interrupt_is_stopped_once() -> None:
    assert after("interrupted", CAUGHT, CAUGHT) == [Unwind()]


def test_an_interrupt_that_no_process_asked_for_is_a_fault_of_this_rank() -> None:
    assert after("running", CAUGHT) == [CAUGHT]


def test_an_abort_at_the_end_of_the_call_is_of_this_epoch() -> None:
    rank = rank_that_is("ready")
    for event in (commit(1), Entered()):
        rank.handle(event)
    assert rank.handle(LOST) == [msg.AbortEpoch(1, ())]


# ------------------------------------------------------------------ overtaken and repeated
@pytest.mark.parametrize("where", list(WAYS))
@pytest.mark.parametrize("epoch", [-1, 1, 7])
def test_an_abort_of_another_epoch_does_nothing(where: str, epoch: int) -> None:
    if where == "joining" and epoch == -1:
        pytest.skip("it is in none")
    before = rank_that_is(where).phase
    rank = rank_that_is(where)
    assert rank.handle(abort(epoch)) == []
    assert rank.phase is before


@pytest.mark.parametrize(
    "where", ["joining", "aborting", "interrupted", "unwinding", "ready", "over"]
)
def test_an_abort_is_run_once(where: str) -> None:
    assert after(where, abort(0 if where != "joining" else -1)) == []


@pytest.mark.parametrize("where", [where for where in WAYS if where not in ("joining", "ready")])
def test_a_commit_that_was_not_waited_for_does_nothing(where: str) -> None:
    rank = rank_that_is(where)
    before = rank.phase
    assert rank.handle(commit(5)) == []
    assert (rank.phase, rank.epoch) == (before, 0)


@pytest.mark.parametrize("where", [where for where in WAYS if where != "aborting"])
def test_the_end_of_an_abort_that_is_not_under_way_does_nothing(where: str) -> None:
    if where == "aborting, back":
        assert after(where, AbortDone(), AbortDone()) == []
    else:
        assert after(where, AbortDone()) == []


@pytest.mark.parametrize("where", list(WAYS))
@pytest.mark.parametrize("message", [msg.KillLateRanks(0, (ME,), "late"), msg.Echo(1.0)])
def test_what_is_for_guards_says_nothing_to_a_rank(
    where: str, message: msg.KillLateRanks | msg.Echo
) -> None:
    assert after(where, message) == []


# ------------------------------------------------------------------ the end of the call
ENDS: list[tuple[Event, str]] = [
    (FAILED, "no rank is left"),
    (LOST, "the coordinator is gone"),
    (REFUSED, "two processes"),
]


@pytest.mark.parametrize(("end", "text"), ENDS)
def test_the_end_frees_whoever_waits_in_a_collective_first(end: Event, text: str) -> None:
    for where in ("entering", "faulted", "done"):
        assert after(where, end) == [FREE_ALL]
        assert after(where, end, AbortDone()) == [failed(text)]
    assert after("running", end) == [FREE_ALL]
    assert after("running", end, AbortDone()) == [Interrupt()]
    assert after("running", end, AbortDone(), CAUGHT) == [failed(text)]
    assert after("running", end, DONE, AbortDone()) == [failed(text)]


@pytest.mark.parametrize(("end", "text"), ENDS)
def test_the_end_wakes_who_waits_in_our_own_code(end: Event, text: str) -> None:
    for where in ("joining", "ready"):
        assert after(where, end) == [failed(text)]


@pytest.mark.parametrize(("end", "text"), ENDS)
def test_the_end_in_a_restart_is_told_when_the_rank_is_back(end: Event, text: str) -> None:
    assert after("aborting", end) == []
    assert after("aborting", end, AbortDone()) == [Interrupt()]
    assert after("aborting, back", end, AbortDone()) == [failed(text)]
    assert after("interrupted", end) == []
    assert after("interrupted", end, CAUGHT) == [failed(text)]
    assert after("unwinding", end) == []
    assert after("unwinding", end, READY) == [failed(text)]


@pytest.mark.parametrize(("end", "text"), ENDS)
def test_the_first_end_is_the_one_that_is_told(end: Event, text: str) -> None:
    for where in ("joining", "ready", "running", "over"):
        for other, _ in ENDS:
            assert after(where, end, other) == []
    for other, _ in ENDS:
        assert after("done", end, other, AbortDone()) == [failed(text)]


@pytest.mark.parametrize("where", ["joining", "ready"])
@pytest.mark.parametrize("end", [end for end, _ in ENDS])
def test_no_epoch_begins_after_the_end(where: str, end: Event) -> None:
    """A refused rank hears of the others' beginning: what it is to do stays what it was told."""
    rank = rank_that_is(where)
    rank.handle(end)
    assert rank.handle(commit(rank.epoch + 1)) == []
    assert rank.must_unwind


@pytest.mark.parametrize("where", ["running", "done", "faulted"])
def test_an_abort_after_the_end_is_not_run_again(where: str) -> None:
    assert after(where, LOST, abort()) == []


def test_who_is_not_done_when_the_others_have_completed_fails_in_words() -> None:
    assert after("ready", FINISHED) == [failed("the others have completed without this rank")]
    assert after("running", FINISHED) == [FREE_ALL]


def test_nothing_ends_a_call_that_is_over() -> None:
    for end, _ in ENDS:
        assert after("over", end) == []
        assert after("leaving", BYE, end) == []
    assert after("over", FINISHED) == []


def test_the_end_keeps_the_users_code_from_beginning() -> None:
    rank = rank_that_is("ready")
    rank.handle(LOST)
    assert rank.must_unwind


# ------------------------------------------------------------------ leaving
def test_who_leaves_tells_why_and_waits_for_the_abort_of_all() -> None:
    """Its collectives are to be aborted as everybody's are: once, and together."""
    rank = rank_that_is("running")
    assert rank.handle(LEAVES) == [LEAVES]
    assert not rank.is_in_user_code
    assert rank.handle(abort()) == [abort()]
    assert rank.handle(AbortDone()) == [MayLeave()]
    assert rank.handle(BYE) == [BYE]


@pytest.mark.parametrize("where", ["faulted", "done"])
def test_who_leaves_from_our_own_code_waits_for_the_abort_too(where: str) -> None:
    assert after(where, LEAVES) == [LEAVES]
    assert after(where, LEAVES, abort(), AbortDone()) == [MayLeave()]


def test_who_is_left_out_by_the_assignment_goes_at_once() -> None:
    out = msg.RankLeaves(0, ME, fault=False, text="no place")
    assert after("entering", out) == [
        out,
        MayLeave(),
    ]


def test_who_is_left_out_while_all_abort_waits_for_that() -> None:
    out = msg.RankLeaves(0, ME, fault=False, text="no place")
    assert after("entering", abort(), out) == [out]
    assert after("entering", abort(), out, AbortDone()) == [MayLeave()]


@pytest.mark.parametrize("where", ["joining", "unwinding", "ready"])
def test_who_leaves_with_nothing_to_abort_goes_at_once(where: str) -> None:
    assert after(where, LEAVES) == [
        LEAVES,
        MayLeave(),
    ]


def test_who_leaves_while_it_is_interrupted_is_interrupted_no_more() -> None:
    rank = rank_that_is("interrupted")
    assert rank.handle(LEAVES) == [LEAVES, MayLeave()]
    assert not rank.is_interrupting


def test_who_leaves_while_all_abort_goes_when_that_is_done() -> None:
    assert after("aborting", LEAVES) == [LEAVES]
    assert after("aborting", LEAVES, AbortDone()) == [MayLeave()]


def test_leaving_is_told_once() -> None:
    assert after("running", LEAVES, LEAVES) == []
    assert after("unwinding", LEAVES, LEAVES) == [MayLeave()]


@pytest.mark.parametrize(("end", "text"), ENDS)
def test_who_leaves_goes_when_the_call_ends(end: Event, text: str) -> None:
    """Not before its collectives are free: then it goes, with the exception it has."""
    del text
    assert after("leaving", end) == [FREE_ALL]
    assert after("leaving", end, AbortDone()) == [MayLeave()]
    assert after("unwinding", LEAVES, end) == [MayLeave()]


def test_who_leaves_because_the_call_ended_goes_at_once() -> None:
    assert after("joining", REFUSED, LEAVES) == [
        LEAVES,
        MayLeave(),
    ]
    assert after("running", LOST, AbortDone(), CAUGHT, LEAVES)[-1] == MayLeave()
    assert after("running", LOST, LEAVES) == [LEAVES], "the abort is under way"


def test_who_leaves_is_not_told_to_proceed_or_to_finish() -> None:
    assert after("ready", LEAVES, commit(1)) == []
    assert after("done", LEAVES, FINISHED, AbortDone()) == [MayLeave()]


@pytest.mark.parametrize("where", list(WAYS))
def test_the_last_word_is_the_same_from_everywhere(where: str) -> None:
    rank = rank_that_is(where)
    assert rank.handle(BYE) == [BYE]
    assert rank.phase is RankPhase.OVER


@pytest.mark.parametrize("where", list(WAYS))
def test_the_users_code_must_be_left_only_in_a_restart(where: str) -> None:
    rank = rank_that_is(where)
    restarts = {"aborting", "interrupted", "aborting, back", "unwinding"}
    assert rank.must_unwind == (where in restarts)
    assert rank.is_in_user_code == (where in {"running", "aborting", "interrupted"})
    assert rank.is_interrupting == (where == "interrupted")


# ------------------------------------------------------------------ hangs, again and again
HUNG = Blocked(worked_s=1.0, silent_s=60.0, is_freed=False)
FREED = Blocked(worked_s=1.0, silent_s=60.0, is_freed=True)


def through_hangs(*seen: Blocked | None) -> tuple[RankMachine, list[Effect]]:
    """What follows from the last of so many aborts, each of an epoch of its own."""
    rank, effects = RankMachine(ME, soft_s=60.0), list[Effect]()
    rank.handle(HELLO)
    for epoch, blocked in enumerate(seen):
        for event in (commit(epoch), Entered(), abort(epoch)):
            rank.handle(event)
        effects = rank.handle(AbortDone(blocked))
        if epoch + 1 < len(seen):
            rank.handle(CAUGHT)
            rank.handle(READY)
    return rank, effects


def test_a_rank_that_hangs_for_the_third_time_in_a_row_is_not_interrupted_but_ended() -> None:
    rank, effects = through_hangs(HUNG, HUNG, HUNG)
    (effect,) = effects
    assert isinstance(effect, msg.HungAgain)
    assert (effect.epoch, effect.rank) == (2, ME)
    assert rank.handle(DONE) == [Unwind()], "it came back after all"


@pytest.mark.parametrize(
    "seen",
    [
        (HUNG, HUNG),
        (HUNG, HUNG, FREED),
        (HUNG, HUNG, None),
        (HUNG, HUNG, None, HUNG),
        (HUNG, FREED, HUNG, HUNG),
    ],
)
def test_until_then_it_is_interrupted(seen: tuple[Blocked | None, ...]) -> None:
    assert through_hangs(*seen)[1] == [Interrupt()]


def test_a_rank_whose_call_is_over_is_interrupted_however_often_it_hung() -> None:
    """Nobody listens any more."""
    rank, _ = through_hangs(HUNG, HUNG)
    rank.handle(CAUGHT)
    rank.handle(READY)
    for event in (commit(2), Entered(), LOST):
        rank.handle(event)
    assert rank.handle(AbortDone(HUNG)) == [Interrupt()]
