"""What one launcher does as a member of its job, on a virtual clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.arena.pure.snapshots import Held, Holdings, SnapshotId
from holdfast.base.pure.common_events import (
    Begin,
    ControlRequested,
    Note,
    SignalArrived,
    TimePassed,
)
from holdfast.job.pure.member import MAX_CAUSE, Member, MemberPhase
from holdfast.job.pure.member_messages import (
    CauseFound,
    CycleStopping,
    Effect,
    Event,
    HoldingsRead,
    How,
    JobReported,
    KeepStep,
    LeaderFound,
    LeaderLost,
    LeaderMissing,
    LeaderReplaced,
    LeaveJob,
    NodeReported,
    RanksFailed,
    RanksStopped,
    RanksStuck,
    RanksSucceeded,
    StartRanks,
    StepCopied,
    StepKept,
    StepMissed,
    StopRanks,
    Unhealthy,
    WaitAsSpare,
)
from holdfast.job.pure.membership import (
    EXCLUDE,
    SHUTDOWN,
    Beat,
    Complete,
    ControlAsked,
    CyclePlace,
    Decision,
    Descriptor,
    Digests,
    End,
    FailureReport,
    JobOutcome,
    Join,
    Keep,
    Kept,
    LeaderBeat,
    Leave,
    LeaveWhy,
    Missed,
    NodeRefused,
    NodeState,
    Round,
    StateChanged,
    StopCycle,
    Suspect,
)
from holdfast.job.pure.workload import Workload

DESC = Descriptor("10.0.0.1", "n1", nproc=2, pid=7)
PLACE = CyclePlace("n1", 1, 2, 2, "10.0.0.1")
SUCCEEDED = End(JobOutcome.SUCCEEDED, 0, "all ranks succeeded")
FAILED = End(JobOutcome.FAILED, 1, "rank 3 died")


def formed(cycle: int, *, spares: tuple[str, ...] = (), us: bool = True) -> Round:
    other = CyclePlace("n0", 0, 2, 0, "10.0.0.0")
    return Round(cycle, (other, PLACE) if us else (other,), spares, world_size=4)


def member() -> Member:
    """Has just joined, at t=0."""
    one = Member("n1", DESC)
    assert one.handle(Begin(), 0.0) == [Join("n1", DESC, -1)]
    return one


def active(cycle: int = 0) -> Member:
    """Its ranks have just been started, at t=0."""
    one = member()
    one.cycle = cycle - 1
    assert heard(one, formed(cycle)) == [StartRanks(formed(cycle), PLACE)]
    return one


def heard(one: Member, decision: Decision, now: float = 0.0) -> list[Effect]:
    return tell(one, decision, now)


def tell(one: Member, event: Event, now: float = 0.0) -> list[Effect]:
    """Effects without what is only said."""
    said = (Note, CycleStopping)
    return [effect for effect in one.handle(event, now) if not isinstance(effect, said)]


def test_a_stop_is_followed_by_a_join_when_the_ranks_are_gone() -> None:
    """R-1, R-2: not a moment before, and with the port that is free now."""
    one = active()
    stop = StopCycle(0, "rank 0 died", "n0", 1)
    assert heard(one, stop) == [StopRanks(0, How.POLITE)]
    assert heard(one, stop) == []
    one.desc = replace(DESC, port=29500)

    assert tell(one, RanksStopped(0)) == [Join("n1", one.desc, 0)]
    assert tell(one, RanksStopped(0)) == []
    assert heard(one, formed(1)) == [StartRanks(formed(1), PLACE)]


def test_ranks_start_by_the_round_or_by_one_that_comes_again_for_this_node() -> None:
    """Where the leader stops the cycle first, a node that has missed the round must have none."""
    one = member()
    for other in {"again_for": "n0"}, {"revision": 1}:
        assert heard(one, replace(formed(0), **other)) == []  # type: ignore[arg-type]
    missed = replace(formed(0), revision=1, again_for="n1")
    assert heard(one, missed) == [StartRanks(missed, PLACE)]


def test_decisions_of_other_cycles_mean_nothing() -> None:
    """A stop of a cycle we are past, a round we have had, a node we are not."""
    one = active(cycle=3)
    assert heard(one, StopCycle(2, "old", None, 0)) == []
    assert heard(one, formed(3)) == []
    assert heard(one, NodeRefused("n0", "duplicate")) == []
    assert heard(one, LeaderBeat()) == []
    waiting = member()
    assert heard(waiting, StopCycle(0, "not ours", None, 0)) == []
    assert heard(waiting, formed(0, us=False)) == []
    assert heard(waiting, formed(1, us=False, spares=("n1",))) == [WaitAsSpare(1)]


def test_monitors_end_the_ranks_of_a_launcher_that_cannot() -> None:
    """Later than it would itself, sooner than its places are given to others."""
    one = active()
    pace = one.pace
    for now in (2.0, 4.0, 7.0):
        one.handle(LeaderBeat(), now)
    until = one.ranks_may_live_until
    assert until is not None
    assert 7.0 + pace.fence_s < until < 7.0 + pace.silence_s - pace.beat_s
    one.handle(LeaderBeat(), 8.0)
    assert one.ranks_may_live_until == until + 1.0


def test_after_a_signal_nobody_ends_ranks_that_save_their_work() -> None:
    one = active()
    one.handle(SignalArrived(15), 7.0)
    assert one.ranks_may_live_until is None


def test_before_it_has_joined_and_when_it_is_done_there_is_nothing_to_end() -> None:
    one = Member("n1", DESC)
    assert one.ranks_may_live_until is None
    one.handle(Begin(), 0.0)
    one.handle(SUCCEEDED, 0.0)
    assert one.phase is MemberPhase.DONE
    assert one.ranks_may_live_until is None


def test_what_a_node_waits_for_is_said_once() -> None:
    """Again when it is something else; not by those who have ranks."""
    one = member()

    def said(waits: str, news: int) -> list[Effect]:
        return one.handle(LeaderBeat(waits, news=news), 0.0)

    assert said("1 of 2 nodes is here", 1) == [Note("info", "1 of 2 nodes is here")]
    assert said("1 of 2 nodes is here", 1) == []
    assert said("", 1) == []
    assert said("1 of 3 nodes is here", 2) == [Note("info", "1 of 3 nodes is here")]
    one = active()
    assert said("for a place wait n5", 3) == []


def test_failures_are_told_once_each_time_they_get_worse() -> None:
    """Some ranks, then all of them; a cause has an end."""
    one = active()
    first = StateChanged(
        "n1", 0, NodeState.UNHEALTHY, FailureReport("x" * MAX_CAUSE), may_restart=False
    )
    assert tell(one, RanksFailed(0, 0, may_restart=False, failure=FailureReport("x" * 9999))) == [
        first
    ]
    assert tell(one, RanksFailed(0, 0, failure=FailureReport("another"))) == []
    assert tell(one, RanksFailed(0, 0, failure=FailureReport("the last"), every=True)) == [
        StateChanged("n1", 0, NodeState.FAILED, FailureReport("the last"))
    ]
    assert tell(one, RanksFailed(0, 0, failure=FailureReport("again"), every=True)) == []
    assert (
        tell(one, RanksFailed(7, 0, failure=FailureReport("of no cycle of ours"), every=True)) == []
    )


def test_a_wish_for_no_restart_is_told_once_also_while_the_cycle_is_stopped() -> None:
    """Who failed first may be reaped last."""
    one = active()
    tell(one, RanksFailed(0, 0, failure=FailureReport("a peer")))
    heard(one, StopCycle(0, "a peer"))
    assert tell(one, RanksFailed(0, 0, failure=FailureReport("another peer"))) == []
    assert tell(one, RanksFailed(0, 0, failure=FailureReport("the cause"), may_restart=False)) == [
        StateChanged("n1", 0, NodeState.UNHEALTHY, FailureReport("the cause"), may_restart=False)
    ]
    assert tell(one, RanksFailed(0, 0, failure=FailureReport("so do I"), may_restart=False)) == []


def test_ranks_that_go_unasked_are_a_failure() -> None:
    """The leader hears of it; when it stops the cycle there is nothing left to wait for."""
    one = active()
    assert tell(one, RanksStopped(0)) == [
        StateChanged("n1", 0, NodeState.FAILED, FailureReport("the ranks are gone"))
    ]
    assert heard(one, StopCycle(0, "n1")) == [Join("n1", DESC, 0)]


def test_ranks_that_end_one_after_the_other_have_failed_of_what_was_the_first_cause() -> None:
    """Under min-healthy the cycle goes on elsewhere; the last word of each node counts there."""
    one = active()
    tell(one, RanksFailed(0, 0, failure=FailureReport("rank 2 lost a peer", names_a_peer=True)))
    tell(
        one,
        CauseFound(
            0, FailureReport("rank 3 ran out of memory", names_a_peer=False, signature="oom")
        ),
    )

    assert tell(one, RanksStopped(0)) == [
        StateChanged(
            "n1",
            0,
            NodeState.FAILED,
            FailureReport("rank 3 ran out of memory", signature="oom"),
        )
    ]


def test_success_waits_for_the_others() -> None:
    """The node stays until the job ends; then there is nothing to stop."""
    one = active()
    assert tell(one, RanksSucceeded(0)) == [StateChanged("n1", 0, NodeState.SUCCEEDED)]
    assert tell(one, RanksSucceeded(0)) == []
    assert heard(one, SUCCEEDED) == [
        Leave("n1", LeaveWhy.FINISHED),
        LeaveJob(0, LeaveWhy.FINISHED, "all ranks succeeded", JobOutcome.SUCCEEDED),
    ]
    assert one.phase is MemberPhase.DONE
    assert one.next_deadline() is None
    assert heard(one, formed(1)) == []


def test_success_of_one_node_does_not_save_it_from_a_restart() -> None:
    """Another node failed: it runs the next cycle with everybody else."""
    one = active()
    tell(one, RanksSucceeded(0))
    assert heard(one, StopCycle(0, "rank 0 died")) == [Join("n1", DESC, 0)]


@pytest.mark.parametrize(
    ("own", "end", "exit_code"),
    [
        (None, FAILED, 1),
        (None, SUCCEEDED, 0),
        (RanksFailed(0, 0, failure=FailureReport("x"), every=True), SUCCEEDED, 0),
        (None, End(JobOutcome.FAILED, 93, "no progress"), 93),
        (None, End(JobOutcome.FAILED, None, "too few healthy"), 0),
        (
            RanksFailed(0, 0, failure=FailureReport("x")),
            End(JobOutcome.FAILED, None, "too few healthy"),
            1,
        ),
        (
            RanksFailed(0, 0, failure=FailureReport("x"), every=True),
            End(JobOutcome.FAILED, None, "too few healthy"),
            1,
        ),
    ],
)
def test_the_end_stops_what_runs_and_says_the_exit_code(
    own: RanksFailed | None, end: End, exit_code: int
) -> None:
    """Specification 7.3, 7.6; without a code of the job, one's own ranks decide."""
    one = active()
    if own is not None:
        tell(one, own)
    assert heard(one, end) == [StopRanks(0, How.POLITE, for_good=True)]
    assert heard(one, end) == []
    assert tell(one, RanksStopped(0)) == [
        Leave("n1", LeaveWhy.FINISHED),
        LeaveJob(exit_code, LeaveWhy.FINISHED, end.cause, end.outcome),
    ]


def test_the_end_during_a_stop_says_that_it_is_for_good() -> None:
    """So that nobody checks whether this node is fit for more."""
    one = active()
    heard(one, StopCycle(0, "x"))
    assert heard(one, FAILED) == [StopRanks(0, How.POLITE, for_good=True)]
    assert heard(one, FAILED) == []
    assert isinstance(tell(one, RanksStopped(0))[-1], LeaveJob)


def test_a_spare_leaves_with_the_job() -> None:
    one = member()
    heard(one, formed(0, us=False, spares=("n1",)))
    assert heard(one, End(JobOutcome.FAILED, None, "x"))[-1] == LeaveJob(
        0, LeaveWhy.FINISHED, "x", JobOutcome.FAILED
    )


# ---------------------------------------------------------------- fencing
def test_a_node_that_hears_nothing_ends_its_ranks_and_leaves_much_later() -> None:
    """K-1: SIGKILL at fence_s exactly; the leader may be asleep, so the exit is 120 s later."""
    one = active()
    assert one.next_deadline() == 3.0
    for now in (3.0, 6.0, 9.0):
        assert tell(one, TimePassed(), now) == [Beat("n1")]
    assert one.next_deadline() == 10.0
    assert tell(one, TimePassed(), 9.99) == []
    why = "no message from the leader of the job for 10.0 s"
    stop, missing = tell(one, TimePassed(), 10.0)
    assert (stop, missing) == (StopRanks(0, How.AT_ONCE), LeaderMissing(10.0))
    told = StateChanged("n1", 0, NodeState.FAILED, FailureReport(why), unheard_s=10.0)
    assert tell(one, RanksStopped(0), 10.2) == [told]
    *_, last, finish = patiently(one, 10.2, 10.0 + one.pace.return_s)
    why = "no message from the leader of the job for 130.0 s"
    assert (last, finish) == (
        Leave("n1", LeaveWhy.FENCED, why),
        LeaveJob(1, LeaveWhy.FENCED, why),
    )


def patiently(one: Member, since: float, until: float) -> list[Effect]:
    """Time passes, and the machine is called when it wants to be."""
    effects: list[Effect] = []
    while (due := one.next_deadline()) is not None and due <= until:
        assert due > since
        effects += tell(one, TimePassed(), since := due)
    return effects


def fenced() -> Member:
    """It has heard nothing since t=0, and its ranks were ended at t=10."""
    one = active()
    patiently(one, 0.0, 10.0)
    tell(one, RanksStopped(0), 10.2)
    return one


def test_a_leader_that_comes_back_finds_a_node_whose_ranks_are_gone() -> None:
    """It decides what follows; the node joins for it."""
    one = fenced()
    patiently(one, 10.2, 30.0)
    assert heard(one, LeaderBeat(), 31.0) == [Beat("n1")], "it asks what is true now"
    assert heard(one, StopCycle(0, "the leader slept", "n1"), 31.1) == [Join("n1", DESC, 0)]
    assert heard(one, formed(1), 31.2) == [StartRanks(formed(1), PLACE)]


def test_a_node_whose_place_is_gone_comes_back_as_another() -> None:
    """It was only silent: whoever waits for a node waits for this one."""
    one = fenced()
    gone = NodeRefused("n1", "silent for 15.0 s", may_return=True)
    heard(one, StopCycle(0, "n1 was lost", "n1", silent_s=15.0), 31.0)
    assert heard(one, gone, 31.1) == [Join("n1.1", DESC, 0)]
    assert heard(one, gone, 31.2) == [], "it is another"

    one = active()
    assert heard(one, gone) == [StopRanks(0, How.AT_ONCE)]
    assert tell(one, RanksStopped(0)) == [Join("n1.1", DESC, 0)]


def test_evidence_goes_to_the_leader_under_the_name_that_it_knows() -> None:
    """A rank is suspected while its cycle runs, and not by a node that has come back as another."""
    suspect, digests = Suspect("n1", 0, 2), Digests("n1", 0, 1)
    one = active()
    assert tell(one, suspect) == [suspect]
    assert tell(one, digests) == [digests]
    assert tell(one, Suspect("n1", 1, 2)) == [], "of another cycle"

    heard(one, StopCycle(0, "rank 3 died"))
    assert tell(one, suspect) == []
    assert tell(one, digests) == [digests], "the leader waits for it"

    one = active()
    heard(one, NodeRefused("n1", "silent for 15.0 s", may_return=True))
    tell(one, RanksStopped(0))
    assert tell(one, digests) == []


def test_a_round_that_may_be_older_than_a_silence_starts_nothing() -> None:
    """R-1: its place may have been given away while nothing was heard; the leader is told."""
    for slept in (False, True):
        one = member()
        if not slept:
            patiently(one, 0.0, 14.0)
        assert heard(one, LeaderBeat(), 14.5) == [Beat("n1")]
        (told,) = heard(one, formed(0), 14.6)
        assert isinstance(told, StateChanged)
        assert (told.state, told.unheard_s) == (NodeState.FAILED, 14.5)
        assert heard(one, StopCycle(0, "x"), 14.7) == [Join("n1", DESC, 0)]
        assert heard(one, formed(1), 14.8) == [StartRanks(formed(1), PLACE)]


def test_a_launcher_that_slept_asks_once_before_it_ends_its_ranks() -> None:
    """Asleep with all others, it goes on; alone, it is told. Without an answer it waits 4.5 s."""
    one = active()
    assert tell(one, TimePassed(), 40.0) == [Beat("n1")]
    assert one.ranks_may_live_until == 44.5 + one.pace.lease_s
    assert heard(one, LeaderBeat(), 40.1) == []
    assert patiently(one, 40.1, 44.5) == [Beat("n1")], "the leader said that, perhaps before"
    assert heard(one, LeaderBeat(), 44.55) == []
    assert StopRanks(0, How.AT_ONCE) not in patiently(one, 44.55, 54.5)

    one = active()
    tell(one, TimePassed(), 40.0)
    assert StopRanks(0, How.AT_ONCE) in patiently(one, 40.0, 44.5)
    assert StopRanks(0, How.AT_ONCE) not in tell(one, TimePassed(), 90.0), "once"


def test_in_the_last_cycle_no_silence_ends_ranks() -> None:
    """Nobody can go on without this node; ranks that fail by themselves are another thing."""
    one = member()
    last = replace(formed(1), is_last=True, after=(0, 0, 0))
    assert heard(one, last) == [StartRanks(last, PLACE)]
    assert one.ranks_may_live_until is not None, "a leader may not know that round"
    heard(one, LeaderBeat(settled=last.version))
    assert one.ranks_may_live_until is None
    assert not any(isinstance(it, StopRanks) for it in patiently(one, 0.0, 1000.0))
    assert isinstance(tell(one, RanksStopped(1), 1000.0)[-1], LeaveJob), "and none to wait for"


def test_the_first_cycle_may_be_the_last_and_no_leader_can_miss_it() -> None:
    one = member()
    heard(one, replace(formed(0), is_last=True))
    assert one.ranks_may_live_until is None


@pytest.mark.parametrize("every", [False, True])
def test_in_the_last_cycle_a_node_of_which_a_rank_has_failed_does_not_wait_for_ever(every) -> None:
    """The leader would stop its other ranks; where it is gone without a word, nobody did."""
    one = member()
    heard(one, replace(formed(0), is_last=True))
    tell(one, RanksFailed(0, 0, failure=FailureReport("rank 2 died"), every=every), 5.0)
    assert one.ranks_may_live_until is not None
    assert StopRanks(0, How.AT_ONCE) not in patiently(one, 5.0, 9.9)
    assert StopRanks(0, How.AT_ONCE) in patiently(one, 9.9, 10.0)
    tell(one, RanksStopped(0), 11.0)
    assert any(isinstance(it, LeaveJob) for it in patiently(one, 11.0, 200.0)), "and it leaves"


def test_a_beat_grants_no_more_than_the_leader_s_lease() -> None:
    """The others may go on without the leader when that is over."""
    one = active()
    heard(one, LeaderBeat(number=1, lease_s=14.5), 3.0)
    heard(one, LeaderBeat(number=2, lease_s=11.5), 6.0)
    heard(one, LeaderBeat(number=3, lease_s=0.0), 15.0)
    assert StopRanks(0, How.AT_ONCE) not in patiently(one, 15.0, 15.9)
    effects = patiently(one, 15.9, 16.1)
    assert StopRanks(0, How.AT_ONCE) not in effects, "the second one counts"


def test_a_beat_that_was_under_way_for_long_grants_until_the_next_one_comes() -> None:
    """Found by the simulator (seed 319928554): ranks of the leader before beside the next ones."""
    one = active()
    heard(one, LeaderBeat(number=1, lease_s=14.5), 3.0)
    patiently(one, 3.0, 12.9)
    for number, lease_s in enumerate((11.5, 8.5, 5.5), 2):  # sent at 6, 9 and 12 s, and held back
        heard(one, LeaderBeat(number=number, lease_s=lease_s), 12.9)
    patiently(one, 12.9, 15.0)
    heard(one, LeaderBeat(number=5, lease_s=2.5), 15.0)
    assert StopRanks(0, How.AT_ONCE) not in patiently(one, 15.0, 17.4)
    assert StopRanks(0, How.AT_ONCE) in patiently(one, 17.4, 17.6)


def test_it_ends_its_ranks_when_the_lease_is_over_and_votes_for_no_other_leader() -> None:
    one = active()
    for now, lease_s in ((3.0, 14.5), (6.0, 11.5), (9.0, 8.5), (12.0, 5.5), (15.0, 2.5)):
        heard(one, LeaderBeat(lease_s=lease_s), now)
    assert StopRanks(0, How.AT_ONCE) not in patiently(one, 15.0, 17.4)
    effects = patiently(one, 17.4, 17.5)
    assert StopRanks(0, How.AT_ONCE) in effects
    assert not any(isinstance(it, LeaderMissing) for it in effects)


def test_each_beat_of_the_leader_is_answered_at_once() -> None:
    one = active()
    assert tell(one, LeaderBeat(number=7), 1.0) == [Beat("n1", echo=7)]


def test_a_launcher_of_which_all_ranks_ended_well_waits_longer_for_its_leader() -> None:
    """The job may be over, and nothing is lost meanwhile."""
    one = active()
    heard(one, LeaderBeat(), 0.0)
    tell(one, RanksSucceeded(0), 1.0)
    missing = [it for it in patiently(one, 1.0, 14.9) if isinstance(it, LeaderMissing)]
    assert missing == []
    assert LeaderMissing(15.0) in patiently(one, 14.9, 15.0)


def test_whatever_the_leader_says_is_a_sign_of_life() -> None:
    one = active()
    patiently(one, 0.0, 8.0)
    heard(one, NodeRefused("n9", "x"), 8.0)
    assert StopRanks(0, How.AT_ONCE) not in patiently(one, 8.0, 17.9)
    assert StopRanks(0, How.AT_ONCE) in patiently(one, 17.9, 18.0)


def test_beats_carry_that_a_rank_of_the_cycle_has_reported_to_its_monitor() -> None:
    """No message of its own: a node whose ranks all hang is to know of it, in some seconds."""
    one = active(cycle=4)
    assert tell(one, NodeReported(4)) == []
    assert tell(one, TimePassed(), 3.0) == [Beat("n1", reported=4)]

    assert heard(one, LeaderBeat(reported=3), 4.0) == []
    assert heard(one, LeaderBeat(reported=4), 5.0) == [JobReported(4)]
    assert heard(one, LeaderBeat(reported=4), 5.5) == [], "once"
    heard(one, StopCycle(4, "rank 0 died", "n0", 1), 7.0)
    tell(one, RanksStopped(4), 7.0)
    heard(one, formed(5), 7.0)
    assert heard(one, LeaderBeat(reported=4), 8.0) == [], "it was the cycle before"
    assert heard(one, LeaderBeat(reported=5), 9.0) == [JobReported(5)]


def test_a_leader_that_was_never_heard_of_is_not_waited_for_for_ever() -> None:
    one = member()
    finish = patiently(one, 0.0, 10.0 + one.pace.return_s)[-1]
    assert finish == LeaveJob(1, LeaveWhy.FENCED, "no message from any leader of the job came")


def test_fencing_hurries_a_polite_stop() -> None:
    """The ranks' grace is no longer ours to give."""
    one = active()
    heard(one, StopCycle(0, "x"))
    (stop,) = tell(one, LeaderLost("connection reset"))
    assert stop == StopRanks(0, How.AT_ONCE, for_good=True)


def test_who_never_found_a_leader_has_lost_none() -> None:
    """It leaves with what was said of the way there; it has no ranks to end."""
    one = Member("n1", DESC)
    finish = tell(one, LeaderLost("n0:29500 could not be reached"))[-1]
    assert finish == LeaveJob(1, LeaveWhy.FENCED, "n0:29500 could not be reached")
    assert one.phase is MemberPhase.DONE


def test_a_refused_node_leaves() -> None:
    one = active()
    assert heard(one, NodeRefused("n1", "silent for 15.0 s"))[0] == StopRanks(
        0, How.AT_ONCE, for_good=True
    )
    waiting = member()
    assert heard(waiting, NodeRefused("n1", "infra rank 1 twice"))[-1] == LeaveJob(
        1, LeaveWhy.FENCED, "refused by the leader: infra rank 1 twice"
    )


def test_two_cycles_at_a_time_are_not_believed() -> None:
    """A round that names us while our ranks run: two leaders, or worse. Out."""
    one = active()
    (stop,) = heard(one, formed(1))
    assert isinstance(stop, StopRanks)
    assert stop.how is How.AT_ONCE


# ---------------------------------------------------------------- requests, health, signals
def test_requests_take_effect_when_the_cycle_is_over() -> None:
    """Exclude: leave with 0. Shutdown: tell the leader instead of joining. Continue: nothing."""
    one = active()
    assert tell(one, ControlRequested(2, "Continue", "fine")) == []
    assert tell(one, ControlRequested(2, EXCLUDE, "bad GPU")) == []
    heard(one, StopCycle(0, "x"))
    assert tell(one, RanksStopped(0)) == [
        Leave("n1", LeaveWhy.EXCLUDED, "rank 2: bad GPU"),
        LeaveJob(0, LeaveWhy.EXCLUDED, "rank 2: bad GPU"),
    ]


def test_a_shutdown_goes_first() -> None:
    """Of a shutdown and an exclusion; the end that follows is the same for all."""
    one = active()
    tell(one, ControlRequested(2, EXCLUDE, "bad GPU"))
    tell(one, ControlRequested(3, SHUTDOWN, "bad data"))
    heard(one, StopCycle(0, "x"))
    assert tell(one, RanksStopped(0)) == [ControlAsked("n1", SHUTDOWN, 3, "bad data")]
    end = End(JobOutcome.SHUT_DOWN, 1, "bad data")
    assert heard(one, end)[-1] == LeaveJob(1, LeaveWhy.FINISHED, "bad data", JobOutcome.SHUT_DOWN)


def test_a_request_is_written_down() -> None:
    (note,) = active().handle(ControlRequested(3, EXCLUDE, "bad GPU"), 0.0)
    assert isinstance(note, Note)
    assert note.text == (
        "rank 3 asks for ExcludeThisNode (bad GPU); takes effect when cycle 0 is over"
    )


def test_a_request_that_comes_in_the_place_of_a_promised_restart_says_so() -> None:
    one = active()
    heard(one, StopCycle(0, "x", "n0", 1))
    (note,) = one.handle(ControlRequested(3, SHUTDOWN, "NaN"), 0.0)
    assert isinstance(note, Note)
    assert note.text.endswith("takes effect when cycle 0 is over, in the place of the restart")


def test_a_failure_is_told_with_what_the_ranks_have_asked_for() -> None:
    """Or the leader would spend a restart that nobody wants."""
    one = active()
    tell(one, ControlRequested(2, EXCLUDE, "bad GPU"))
    tell(one, ControlRequested(3, SHUTDOWN, "NaN"))
    asks = ControlAsked("n1", SHUTDOWN, 3, "NaN")
    assert tell(one, RanksFailed(0, 0, failure=FailureReport("rank 3 died"))) == [
        StateChanged("n1", 0, NodeState.UNHEALTHY, FailureReport("rank 3 died"), asks=asks)
    ]


def test_a_node_that_leaves_on_its_own_wish_is_promised_no_restart() -> None:
    """The others are."""
    one = active()
    tell(one, ControlRequested(2, EXCLUDE, "bad GPU"))
    (stopping, stop) = one.handle(StopCycle(0, "rank 2 died", "n1", 1), 0.0)
    assert isinstance(stopping, CycleStopping)
    assert stopping.no_restart == "a rank has asked for ExcludeThisNode"
    assert stop == StopRanks(0, How.POLITE, for_good=True)


def test_a_node_is_not_excluded_from_a_job_that_is_over() -> None:
    """That has failed: it waits for the end, which says so."""
    one = active()
    tell(one, ControlRequested(2, EXCLUDE, "bad GPU"))
    heard(one, StopCycle(0, "x", "n1", 0, "no restart is left", over="FAILED"))
    assert tell(one, RanksStopped(0)) == [Join("n1", DESC, 0)]


# ---------------------------------------------------------------- what is said
def said(effects: list[Effect]) -> list[CycleStopping]:
    return [effect for effect in effects if isinstance(effect, CycleStopping)]


@pytest.mark.parametrize(("node", "here"), [("n1", True), ("n0", False)])
def test_a_stop_is_said_before_it_is_carried_out(node: str, here: bool) -> None:
    """With what follows, and whether the cause is news here."""
    one = active()
    stop = StopCycle(0, "rank 0 died", node, 1)
    effects = one.handle(stop, 0.0)
    assert effects[0] == CycleStopping(0, "rank 0 died", here, 1)
    assert isinstance(effects[1], StopRanks)


@pytest.mark.parametrize(
    ("told", "over", "text"),
    [
        ("FAILED", "FAILED", ""),
        ("", "NO_PROGRESS", "as the end says"),
    ],
)
def test_a_cause_is_said_once(told: str, over: str, text: str) -> None:
    """The end says only what the stop has not."""
    one, why = active(), "as the end says"
    heard(one, StopCycle(0, "rank 0 died", "n0", 0, "as the stop says" if told else "", over=told))
    tell(one, RanksStopped(0))
    end = End(JobOutcome.FAILED, 1, "rank 0 died", why, over=over, stopped=0)
    assert heard(one, end)[-1] == LeaveJob(1, LeaveWhy.FINISHED, text, JobOutcome.FAILED)

    spare = member()
    whole = f"rank 0 died; {why}"
    assert heard(spare, end)[-1] == LeaveJob(1, LeaveWhy.FINISHED, whole, JobOutcome.FAILED)
    other = active()
    heard(other, StopCycle(0, "rank 2 lost a peer", "n0", 0, over=told))
    another = End(JobOutcome.FAILED, 1, "rank 0 died", why, over=over)
    last = heard(other, another) + tell(other, RanksStopped(0))
    assert last[-1] == LeaveJob(1, LeaveWhy.FINISHED, whole, JobOutcome.FAILED), "of another cause"


def test_a_stop_after_which_no_cycle_follows_is_for_good() -> None:
    """So that nobody checks whether this node is fit for more."""
    one = active()
    assert heard(one, StopCycle(0, "x", "n0", 0, "no restart is left", over="FAILED")) == [
        StopRanks(0, How.POLITE, for_good=True)
    ]


def test_a_sick_node_leaves_with_0() -> None:
    """Found before the first join, or between two cycles."""
    new = Member("n1", DESC)
    assert tell(new, Unhealthy("no NIC"))[-1] == LeaveJob(0, LeaveWhy.UNHEALTHY, "no NIC")
    one = active()
    heard(one, StopCycle(0, "x"))
    assert tell(one, Unhealthy("no NIC")) == [StopRanks(0, How.POLITE, for_good=True)]
    assert tell(one, RanksStopped(0)) == [
        Leave("n1", LeaveWhy.UNHEALTHY, "no NIC"),
        LeaveJob(0, LeaveWhy.UNHEALTHY, "no NIC"),
    ]


def test_a_node_whose_ranks_cannot_be_killed_leaves_at_once() -> None:
    one = active()
    heard(one, StopCycle(0, "x"))
    assert tell(one, RanksStuck(0, "rank 1 in D state")) == [
        Leave("n1", LeaveWhy.STUCK, "rank 1 in D state"),
        LeaveJob(1, LeaveWhy.STUCK, "rank 1 in D state"),
    ]


@pytest.mark.parametrize("end", [RanksSucceeded(0), RanksStopped(0)])
def test_a_signal_gives_the_ranks_their_time(end: Event) -> None:
    """Neither silence nor the end hurries them. A job that was told to end is not done: 1."""
    one = active()
    assert tell(one, SignalArrived(15)) == [
        StateChanged("n1", 0, NodeState.LEAVING, FailureReport("SIGTERM"))
    ]
    assert tell(one, SignalArrived(15)) == []
    assert heard(one, FAILED) == []
    assert tell(one, LeaderLost("gone")) == []
    assert tell(one, TimePassed(), 100.0) == [Beat("n1")]
    assert tell(one, end, 101.0) == [
        Leave("n1", LeaveWhy.SIGNALLED, "SIGTERM"),
        LeaveJob(1, LeaveWhy.SIGNALLED, "SIGTERM"),
    ]


def test_others_that_go_on_need_not_wait_for_our_grace() -> None:
    """After a signal to this node alone: its ranks have nobody left to talk to."""
    one = active()
    tell(one, SignalArrived(15))
    assert heard(one, StopCycle(0, "x")) == [StopRanks(0, How.POLITE, for_good=True)]
    assert heard(one, StopCycle(0, "x")) == []


def test_ranks_that_end_well_on_a_signal_have_not_finished_their_job() -> None:
    """They saved their work to be continued: a scheduler must not call it completed."""
    one = active()
    tell(one, SignalArrived(15))
    assert tell(one, RanksSucceeded(0))[-1] == LeaveJob(1, LeaveWhy.SIGNALLED, "SIGTERM")


@pytest.mark.parametrize("begun", [False, True])
def test_a_signal_without_ranks_is_obeyed_at_once(begun: bool) -> None:
    """While waiting for a round, or before: exit code 1. After success: 0."""
    one = member() if begun else Member("n1", DESC)
    assert tell(one, SignalArrived(2))[-1] == LeaveJob(1, LeaveWhy.SIGNALLED, "SIGINT")
    done = active()
    tell(done, RanksSucceeded(0))
    assert tell(done, SignalArrived(2))[-1] == LeaveJob(0, LeaveWhy.SIGNALLED, "SIGINT")


# ---------------------------------------------------------------- any order of events
class AnyLife(RuleBasedStateMachine):
    """Whatever happens in whatever order: the promises of one member hold."""

    @initialize()
    def begin(self) -> None:
        self.member = Member("n1", DESC)
        self.now = 0.0
        self.ranks: int | None = None
        self.finished = 0
        self.next_cycle = 0
        self.tell(Begin())

    def tell(self, event: Event) -> None:
        for effect in self.member.handle(event, self.now):
            assert not self.finished, "nothing after the end"
            match effect:
                case StartRanks(round=one):
                    assert self.ranks is None, "R-1"
                    self.ranks = one.cycle
                case StopRanks(cycle=cycle):
                    assert cycle == self.ranks
                case LeaveJob():
                    assert self.ranks is None, "K-1"
                    self.finished += 1
                case Join():
                    assert self.ranks is None, "R-1"

    @rule(us=st.booleans())
    def round(self, us: bool) -> None:
        self.tell(formed(self.next_cycle, us=us))
        self.next_cycle += 1

    @rule(back=st.integers(1, 2))
    def stop(self, back: int) -> None:
        if self.next_cycle >= back:
            self.tell(StopCycle(self.next_cycle - back, "x"))

    @rule(decision=st.sampled_from([SUCCEEDED, FAILED, LeaderBeat(), NodeRefused("n1", "x")]))
    def decide(self, decision: Decision) -> None:
        self.tell(decision)

    @rule(succeed=st.booleans())
    def ranks_end(self, succeed: bool) -> None:
        if self.ranks is not None:
            cycle, self.ranks = self.ranks, None
            self.tell(RanksSucceeded(cycle) if succeed else RanksStopped(cycle))

    @rule(event=st.sampled_from([SignalArrived(15), Unhealthy("x"), LeaderLost("x")]))
    def leave(self, event: Event) -> None:
        self.tell(event)

    @rule(every=st.booleans())
    def fail(self, every: bool) -> None:
        self.tell(RanksFailed(self.next_cycle - 1, 0, every, failure=FailureReport("x")))

    @rule(action=st.sampled_from([EXCLUDE, SHUTDOWN, "Continue"]))
    def ask(self, action: str) -> None:
        self.tell(ControlRequested(0, action))

    @rule(seconds=st.floats(0, 12))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.tell(TimePassed())

    @invariant()
    def it_sleeps_or_is_done(self) -> None:
        """No deadline lies in the past, and only the end has none."""
        due = self.member.next_deadline()
        assert (due is None) == bool(self.finished)
        assert due is None or due > self.now
        assert self.member.ranks_alive == (self.ranks is not None)


TestAnyLife = AnyLife.TestCase


def test_a_launcher_logs_once_how_it_differs_from_its_leader() -> None:
    """The other side of what the leader logs; it takes part all the same."""
    job = Workload("script", "train.py", arguments="beef", is_named=True)
    one = Member("n1", replace(DESC, workload=replace(job, arguments="dead")))
    one.handle(Begin(), 0.0)

    first = replace(formed(0), workload=job)
    said = [effect for effect in one.handle(first, 0.0) if isinstance(effect, Note)]
    assert [note.level for note in said] == ["warning"]
    assert "argument 1 of 1 of the script is not the leader's" in said[0].text
    one.handle(StopCycle(0, "rank 0 died", "n0", 1), 0.0)
    one.handle(RanksStopped(0), 0.0)
    again = one.handle(replace(formed(1), workload=job), 0.0)
    assert not [effect for effect in again if isinstance(effect, Note)]


def test_a_launcher_that_is_refused_leaves_with_1_and_the_reason() -> None:
    one = member()
    effects = one.handle(NodeRefused("n1", "it belongs to another job"), 0.0)
    assert effects[-1] == LeaveJob(
        1, LeaveWhy.FENCED, "refused by the leader: it belongs to another job"
    )


def test_a_launcher_that_reads_only_the_end_of_another_job_does_not_call_it_its_own() -> None:
    """It was stopped until then, so the leader never compared it; it said that it had succeeded."""
    job = Workload("script", "train.py", contents="c0ffee", path="a", is_named=True)
    one = Member("n1", replace(DESC, workload=replace(job, contents="beef", path="b")))
    one.handle(Begin(), 0.0)

    end = End(JobOutcome.SUCCEEDED, 0, "all ranks succeeded", workload=job)
    last = one.handle(end, 40.0)[-1]
    assert isinstance(last, LeaveJob)
    assert (last.exit_code, last.why) == (1, LeaveWhy.FENCED)
    assert "the job that has ended is another one: it was started to run" in last.text


def test_a_member_passes_kept_steps_on_while_its_ranks_run() -> None:
    """Of its cycle alone."""
    one, five = active(), SnapshotId(0, 0, 5)
    assert heard(one, Keep(0, 5, five)) == [KeepStep(0, 5, five)]
    assert heard(one, Kept(0, five, 10, 1.0)) == [StepKept(0, five, 10, 1.0)]
    assert tell(one, StepCopied(0, five, 10)) == [Complete("n1", 0, five, 10)]
    assert tell(one, StepMissed(0, 5, 7, "full")) == [Missed("n1", 0, 5, 7, "full")]
    assert heard(one, Keep(1, 5)) == []
    assert tell(one, StepCopied(1, five, 10)) == []
    heard(one, StopCycle(0, "rank 0 died", "n0", 1))
    assert heard(one, Keep(0, 9)) == []
    assert tell(one, StepMissed(0, 9)) == []


def test_steps_of_an_earlier_cycle_are_not_those_of_a_cycle_whose_ranks_never_started() -> None:
    """The snapshots are there still, and nothing was computed since."""
    one, five = active(), SnapshotId(0, 0, 5)
    held = Holdings((Held(2, 4, 0, 0, 5),), 7, kept=five, complete=five)
    tell(one, HoldingsRead(0, held))
    heard(one, StopCycle(0, "rank 0 died", "n0", 1))
    assert tell(one, RanksStopped(0)) == [Join("n1", DESC, 0, None, held)]
    one.cycle = 1
    one._join()
    assert one._effects[-1:] == [Join("n1", DESC, 1, None, held.but(last_step=-1, complete=None))]


def test_a_copy_that_comes_while_a_node_looks_for_a_leader_is_in_its_next_join() -> None:
    """Of a leader that it has, it asks nothing again: that has its join already."""
    one, five = active(), SnapshotId(0, 0, 5)
    held = Holdings((Held(2, 4, 0, 0, 5),), 7, kept=five)
    more = held.but(held=(*held.held, Held(3, 4, 0, 0, 5)))
    tell(one, HoldingsRead(0, held))
    tell(one, LeaderReplaced("n0: its kernel says so"))
    assert tell(one, RanksStopped(0)) == [Join("n1", DESC, 0, None, held)]
    assert tell(one, HoldingsRead(0, held)) == []
    assert tell(one, HoldingsRead(0, more)) == [Join("n1", DESC, 0, None, more)]
    tell(one, LeaderFound(0.0))
    assert not [it for it in tell(one, HoldingsRead(0, held)) if isinstance(it, Join)]
