"""What becomes of one node's ranks, on a virtual clock."""

from __future__ import annotations

import pytest

from holdfast.base.pure.common_events import Begin, Note, SignalArrived, TimePassed
from holdfast.inplace.pure.job_calls import CallBegan, CallEnded
from holdfast.job.pure.member_messages import (
    How,
    LeaveJob,
    RanksFailed,
    RanksStopped,
    RanksStuck,
    RanksSucceeded,
    StartRanks,
    StopRanks,
    Unhealthy,
)
from holdfast.job.pure.membership import CyclePlace, JobOutcome, LeaveWhy, Round
from holdfast.node.pure.node import (
    UNKILLABLE_AFTER_S,
    CheckHost,
    Effect,
    EndRank,
    Event,
    Explain,
    HostBroke,
    HostChecked,
    MeasureWaits,
    Node,
    NodePhase,
    RanksWaited,
    SignalRanks,
    Sweep,
    Swept,
)
from holdfast.node.pure.rank_life import Deliver, Exited, MonitorSaid
from holdfast.watch.pure import monitor_messages

SIGTERM, SIGINT, SIGKILL = 15, 2, 9
LOST = "GPU 0 is lost"
POLICY = "(--ft-restart-policy min-healthy)"


class Ranks(Node):
    """A node; the delivery of evidence is another test's."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        return [one for one in super().handle(event, now) if not isinstance(one, Deliver)]


def start(cycle: int) -> StartRanks:
    place = CyclePlace("n0", 0, 2, 0, "")
    return StartRanks(Round(cycle, (place,), world_size=2), place)


def stop(*, at_once: bool = False, for_good: bool = False) -> StopRanks:
    return StopRanks(3, How.AT_ONCE if at_once else How.POLITE, for_good)


def leave(*, failed: bool) -> LeaveJob:
    outcome = JobOutcome.FAILED if failed else JobOutcome.SUCCEEDED
    return LeaveJob(int(failed), LeaveWhy.FINISHED, "", outcome)


def killed(local_rank: int) -> MonitorSaid:
    """Its monitor sent SIGKILL."""
    message = monitor_messages.Signalled(0, local_rank, 100 + local_rank, SIGKILL, "hung")
    return MonitorSaid(local_rank, message)


def stuck(local_rank: int, since_s: float) -> MonitorSaid:
    message = monitor_messages.Unkillable(3, local_rank, 100 + local_rank, since_s, "state D")
    return MonitorSaid(local_rank, message)


def without_notes(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if not isinstance(effect, Note)]


def fail(node: Node, now: float) -> list[Effect]:
    """A rank fails, the other is gone at once; what follows when nothing is left of them."""
    node.handle(Exited(0, 1), now)
    node.handle(Exited(1, -SIGTERM), now)
    return node.handle(Swept(), now)


def node_at_work(**options: object) -> Node:
    """A node of two ranks that has started cycle 3 at t=0."""
    node = Ranks(nproc=2, **options)  # type: ignore[arg-type]
    first = CheckHost(after_ranks=False) if node.checks_host else Begin()
    assert node.handle(Begin(), now=0.0) == [first]
    if node.checks_host:
        assert node.handle(HostChecked(), now=0.0) == [Begin()]
    assert node.handle(start(3), now=0.0) == [start(3)]
    return node


def test_a_node_reports_a_failure_and_waits_for_the_decision() -> None:
    """Its other ranks run on: the job may want them to (min-healthy)."""
    node = node_at_work()

    assert node.handle(Exited(1, 1), now=1.0) == [RanksFailed(3, 1)]
    assert node.handle(stop(), now=1.1) == [SignalRanks((0,), SIGTERM)]
    assert node.handle(Exited(0, -SIGTERM), now=1.2) == [Sweep(3)]
    assert node.handle(Swept(), now=1.2) == [RanksStopped(3)]
    assert node.handle(start(4), now=1.3) == [start(4), Explain(3, will_restart=True)]


def test_a_node_whose_ranks_succeed_says_so_and_waits() -> None:
    """The job ends for all of them, or goes on for all."""
    node = node_at_work()
    node.handle(Exited(0, 0), now=1.0)
    node.handle(Exited(1, 0), now=1.0)

    assert node.handle(Swept(), now=1.0) == [RanksSucceeded(3)]
    assert node.handle(leave(failed=False), now=2.0) == []
    assert node.phase is NodePhase.DONE


def test_a_node_passes_on_that_a_rank_asks_for_no_restart() -> None:
    """Once, whether it failed first or not."""
    node = node_at_work(no_restart_exit_code=77)

    assert node.handle(Exited(1, 1), now=1.0) == [RanksFailed(3, 1)]
    assert node.handle(stop(), now=1.1) == [SignalRanks((0,), SIGTERM)]
    assert node.handle(Exited(0, 77), now=1.2) == [
        RanksFailed(3, 0, every=True, may_restart=False),
        Sweep(3),
    ]
    other = node_at_work(no_restart_exit_code=77)
    asked = RanksFailed(3, 0, may_restart=False)
    assert other.handle(Exited(0, 77), now=1.0) == [asked]
    assert other.handle(Exited(1, 77), now=1.1) == [Sweep(3)]


def test_a_node_with_a_stuck_rank_is_stopped_by_all_and_leaves() -> None:
    """A failure as any other for the job; this node does not come back."""
    node = node_at_work(stop_grace_s=15.0)

    effects = without_notes(node.handle(stuck(1, 15.0), now=100.0))
    assert effects == [RanksFailed(3, 1)]
    assert node.handle(stop(), now=100.1) == [SignalRanks((0, 1), SIGTERM)]
    assert node.handle(Exited(0, -SIGTERM), now=100.2) == [SignalRanks((1,), SIGKILL)]
    effects = node.handle(TimePassed(), now=85.0 + UNKILLABLE_AFTER_S)

    assert without_notes(effects) == [RanksStuck(3, "a rank cannot be killed")]


@pytest.mark.parametrize("sleeps", [(1.1, 30.9), (1.1, 31.2), (1.1, 16.2), (16.1, 31.3)])
def test_a_node_that_slept_after_a_sigkill_gives_the_rank_time_to_die(sleeps) -> None:
    """A host that was suspended for all of that time: its ranks could not die either."""
    node, (began, woke) = node_at_work(), sleeps
    effects: list[Effect] = node.handle(stop(at_once=True), now=1.0)
    at = 1.0
    while (due := node.next_deadline()) is not None:
        at = woke if began < due < woke else due
        effects = node.handle(TimePassed(), now=at)
    assert effects[-1] == RanksStuck(3, "a rank cannot be killed")
    assert at - 1.0 - (woke - began) > UNKILLABLE_AFTER_S / 2 - 1.0, "it was awake for so long"


def test_a_node_with_nothing_but_stuck_ranks_does_not_wait_to_be_stopped() -> None:
    """Others may never ask for it (min-healthy)."""
    node = node_at_work()
    node.handle(Exited(0, 0), now=50.0)

    effects = without_notes(node.handle(stuck(1, 15.0), now=100.0))

    assert effects == [RanksFailed(3, 1), SignalRanks((1,), SIGKILL)]
    assert node.handle(stop(), now=100.1) == []
    effects = node.handle(TimePassed(), now=85.0 + UNKILLABLE_AFTER_S)
    assert effects[-1] == RanksStuck(3, "a rank cannot be killed")


def test_a_node_that_has_left_because_of_a_stuck_rank_stays_gone() -> None:
    """Its monitor may find it stuck later than the launcher, and it may still die."""
    node = node_at_work(stop_grace_s=15.0)
    node.handle(Exited(0, -SIGTERM), now=1.0)
    node.handle(stop(), now=1.0)
    node.handle(TimePassed(), now=16.0)
    assert node.handle(TimePassed(), now=16.0 + UNKILLABLE_AFTER_S / 2) == []
    effects = node.handle(TimePassed(), now=16.0 + UNKILLABLE_AFTER_S)
    assert effects[-1] == RanksStuck(3, "a rank cannot be killed")
    node.handle(leave(failed=True), now=46.0)

    assert without_notes(node.handle(stuck(1, 15.0), now=50.0)) == []
    assert node.handle(Exited(1, -SIGKILL), now=60.0) == []
    assert node.phase is NodePhase.DONE


def test_a_fenced_node_does_not_wait_for_its_ranks() -> None:
    """Cut off from the others it must be gone before they go on: SIGKILL, whatever the grace."""
    node = node_at_work(stop_grace_s=60.0)

    assert node.handle(stop(at_once=True), now=1.0) == [
        SignalRanks((0, 1), SIGTERM),
        SignalRanks((0, 1), SIGKILL),
    ]


def test_a_polite_stop_can_become_a_kill() -> None:
    """Decided again while the grace runs."""
    node = node_at_work(stop_grace_s=60.0)
    node.handle(stop(), now=1.0)

    assert node.handle(stop(at_once=True), now=2.0) == [SignalRanks((0, 1), SIGKILL)]


def test_ranks_that_had_no_processor_have_their_grace_nevertheless() -> None:
    """On a busy machine: how long they waited is measured when their grace is over."""
    node = node_at_work(stop_grace_s=10.0, measures_waits=True)
    node.handle(stop(), now=0.0)
    assert node.handle(TimePassed(), now=10.0) == [MeasureWaits((0, 1))]
    assert node.handle(TimePassed(), now=10.0) == [], "it is being measured"
    assert node.handle(RanksWaited(7.0), now=10.0) == []
    assert node.next_deadline() == 17.0
    assert node.handle(TimePassed(), now=17.0) == [MeasureWaits((0, 1))]
    assert node.handle(RanksWaited(7.0), now=17.0) == [SignalRanks((0, 1), SIGKILL)]


def test_a_stop_cuts_short_the_grace_of_a_signal() -> None:
    """The others go on without this node, and wait for its ranks, which nobody answers any more."""
    node = node_at_work(stop_grace_s=15.0, signal_grace_s=1800.0)
    node.handle(SignalArrived(SIGTERM), now=1.0)

    assert node.handle(stop(for_good=True), now=10.0) == [], "they have a signal already"
    assert node.next_deadline() == 25.0
    assert node.handle(TimePassed(), now=25.0) == [SignalRanks((0, 1), SIGKILL)]


def test_a_stop_lengthens_no_grace() -> None:
    """Neither that of a signal, which may be the shorter one, nor that of a stop before it."""
    signalled = node_at_work(stop_grace_s=60.0, signal_grace_s=5.0)
    signalled.handle(SignalArrived(SIGTERM), now=1.0)
    stopped = node_at_work(stop_grace_s=15.0)
    stopped.handle(stop(), now=1.0)
    killed = node_at_work(signal_grace_s=0.0)
    killed.handle(SignalArrived(SIGTERM), now=1.0)

    for node, due in (signalled, 6.0), (stopped, 16.0), (killed, 1.0 + UNKILLABLE_AFTER_S / 2):
        assert node.handle(stop(for_good=True), now=3.0) == []
        assert node.next_deadline() == due


def test_a_node_that_is_told_why_it_leaves_explains_its_own_failure() -> None:
    """The box with the first cause stands on the node where it is."""
    node = node_at_work()
    node.handle(Exited(1, 1), now=1.0)
    node.handle(stop(), now=1.1)
    node.handle(Exited(0, -SIGTERM), now=1.2)
    node.handle(Swept(), now=1.2)

    assert node.handle(leave(failed=True), now=2.0) == [Explain(3, will_restart=False)]


def test_a_node_whose_host_breaks_while_it_waits_is_checked_and_leaves() -> None:
    """A spare, say; if it gets a place meanwhile, what is found comes too late for that."""
    spare = Ranks(nproc=2, checks_host=True)
    spare.handle(Begin(), now=0.0)
    assert spare.handle(HostBroke(LOST), now=0.1) == [], "it is being checked"
    spare.handle(HostChecked(), now=0.2)
    assert spare.handle(HostBroke(LOST), now=1.0) == [CheckHost(after_ranks=False)]
    assert spare.handle(HostChecked(), now=1.1) == [], "it has recovered"
    spare.handle(HostBroke(LOST), now=2.0)
    assert spare.handle(HostChecked(LOST), now=2.1) == [Unhealthy(LOST)]

    chosen = node_at_work(checks_host=True)
    fail(chosen, 1.0)
    chosen.handle(HostChecked(), now=1.1)
    assert chosen.handle(HostBroke(LOST), now=2.0) == [CheckHost(after_ranks=True)]
    assert chosen.handle(start(4), now=2.1)[0] == start(4)
    assert chosen.handle(HostChecked(LOST), now=2.2) == []


def test_a_node_checks_its_host_before_it_joins_and_before_it_joins_again() -> None:
    """What was found is told along: the others are told that this node leaves."""
    node = node_at_work(checks_host=True)
    node.handle(stop(), now=1.0)
    assert fail(node, 1.1) == [CheckHost(after_ranks=True)]
    assert node.handle(HostChecked("GPU 0 is lost"), now=1.5) == [
        Unhealthy("GPU 0 is lost"),
        RanksStopped(3),
    ]

    sick = Ranks(nproc=2, checks_host=True)
    sick.handle(Begin(), now=0.0)
    assert sick.handle(HostChecked("no"), now=0.1) == [Unhealthy("no")]


def test_a_node_that_will_not_have_ranks_again_checks_nothing() -> None:
    """Its exit, and the end of the job, wait for no health service."""
    leaving = node_at_work(checks_host=True)
    leaving.handle(stop(for_good=True), now=1.0)
    assert fail(leaving, 1.1) == [RanksStopped(3)]

    for word in (stop(for_good=True), SignalArrived(SIGTERM)):
        checking = node_at_work(checks_host=True)
        checking.handle(stop(), now=1.0)
        fail(checking, 1.1)
        assert checking.handle(word, now=1.2) == [RanksStopped(3)]


# ---------------------------------------------------------------- a cycle that survives failures
def three_in_a_call(**options: object) -> Node:
    """Of a job of one node under min-healthy; their guard has said that they are in a call."""
    node = three_under_min_healthy(**options)
    assert node.handle(CallBegan(0, (0, 1, 2)), now=0.5) == []
    return node


def three_under_min_healthy(**options: object) -> Node:
    node = Ranks(nproc=3, survives_ranks=True, **options)  # type: ignore[arg-type]
    node.handle(Begin(), now=0.0)
    node.handle(start(0), now=0.0)
    return node


def test_a_cycle_whose_call_goes_on_tells_of_each_failure_and_how_many_ranks_go_on() -> None:
    """Killed, then dead: one failure. What the call says of its end is success."""
    node = three_in_a_call()

    assert node.handle(killed(2), now=1.0) == [
        RanksFailed(0, 2),
        Note("info", "cycle 0 continues with 2 other ranks " + POLICY),
    ]
    assert node.handle(Exited(2, -SIGKILL), now=1.1) == []
    assert node.handle(Exited(0, 3), now=2.0) == [
        RanksFailed(0, 0),
        Note("info", "cycle 0 continues with 1 other rank " + POLICY),
    ]
    node.handle(CallEnded(0, (1,), finished=True), now=2.9)
    assert node.handle(Exited(1, 0), now=3.0) == [Sweep(0)]
    assert node.handle(Swept(), now=3.0) == [RanksSucceeded(0)]


def test_without_a_call_min_healthy_restarts_when_a_rank_fails() -> None:
    """Its node is not healthy, and it is the only one."""
    node = three_under_min_healthy()

    assert node.handle(Exited(1, 1), now=1.0) == [RanksFailed(0, 1, every=True)]
    assert node.handle(Exited(2, 1), now=1.1) == [], "told once"
    assert node.handle(stop(), now=1.2) == [SignalRanks((0,), SIGTERM)]
    node.handle(Exited(0, 0), now=1.3)
    assert node.handle(Swept(), now=1.4) == [RanksStopped(0)]


def test_without_a_call_one_rank_that_ends_well_has_not_completed_the_job() -> None:
    """The other one waits for a rank that has ended well, gets an error, and is not alone to tell.

    A script of another kind, whose ranks have nothing to do with each other, is restarted as well.
    """
    node = three_under_min_healthy()
    node.handle(Exited(0, 0), now=1.0)
    node.handle(Exited(1, 0), now=1.0)

    assert node.handle(Exited(2, 1), now=1.1) == [RanksFailed(0, 2, every=True), Sweep(0)]
    assert node.handle(Swept(), now=1.2) == [RanksStopped(0)]


def test_a_rank_that_completed_the_call_must_end_well() -> None:
    """What it does afterwards is not in the call any more: the final checkpoint, say."""
    node = three_in_a_call()
    node.handle(Exited(2, -SIGKILL), now=1.0)
    node.handle(CallEnded(0, (0, 1), finished=True), now=2.0)

    assert node.handle(Exited(0, 1), now=2.1) == [RanksFailed(0, 0, every=True)]
    node.handle(Exited(1, 0), now=2.1)
    assert node.handle(Swept(), now=2.2) == [RanksStopped(0)]


def test_the_end_of_a_rank_that_was_lost_in_the_call_may_be_heard_of_last() -> None:
    """A launcher that was held up reads of the end of the call first."""
    node = three_in_a_call()
    node.handle(CallEnded(0, (0, 1), finished=True), now=2.0)
    node.handle(Exited(0, 0), now=2.1)
    node.handle(Exited(1, 0), now=2.1)

    assert node.handle(Exited(2, -SIGKILL), now=2.1) == [RanksFailed(0, 2), Sweep(0)]
    assert node.handle(Swept(), now=2.2) == [RanksSucceeded(0)]


def test_a_call_that_failed_has_not_completed_whatever_its_ranks_exit_with() -> None:
    """A program may catch what the Wrapper raises."""
    node = three_in_a_call()
    node.handle(Exited(2, -SIGKILL), now=1.0)
    node.handle(CallEnded(0, (0, 1), finished=False), now=2.0)
    for local_rank in (0, 1):
        node.handle(Exited(local_rank, 0), now=2.1)

    assert node.handle(Swept(), now=2.2) == [RanksStopped(0)]


def test_a_second_call_has_to_complete_too() -> None:
    """One to train, say, and one to evaluate; and those who ended before it are lost to neither."""
    node = three_in_a_call()
    node.handle(Exited(2, -SIGKILL), now=1.0)
    node.handle(CallEnded(0, (0, 1), finished=True), now=2.0)
    node.handle(CallBegan(0, (0, 1)), now=2.1)
    assert without_notes(node.handle(Exited(1, 1), now=2.2)) == [RanksFailed(0, 1)]
    node.handle(Exited(0, 0), now=2.3)

    assert node.handle(Swept(), now=2.4) == [RanksStopped(0)], "this one has not"


def test_a_call_says_nothing_about_other_policies() -> None:
    """Under any-failed, and on several nodes, its ranks are as any others."""
    node = node_at_work()
    node.handle(CallBegan(3, (0, 1)), now=0.5)

    assert node.handle(Exited(1, 1), now=1.0) == [RanksFailed(3, 1)]
    node.handle(CallEnded(3, (0,), finished=True), now=1.1)
    node.handle(Exited(0, 0), now=1.2)
    assert node.handle(Swept(), now=1.3) == [RanksStopped(3)]


def test_a_cycle_that_survives_failures_has_failed_when_no_rank_is_left() -> None:
    """Also if the last one was killed and is still dying."""
    node = three_in_a_call()
    node.handle(Exited(0, 1), now=1.0)
    node.handle(Exited(1, 1), now=1.0)

    assert node.handle(killed(2), now=1.0) == [RanksFailed(0, 2, every=True)]
    node.handle(Exited(2, -SIGKILL), now=1.1)
    assert node.handle(Swept(), now=1.2) == [RanksStopped(0)]


def test_a_rank_that_was_ended_and_does_not_end_is_not_waited_for_once_the_others_are_done() -> (
    None
):
    """Stuck in the driver of a broken device, say: the node is stuck then, as after any stop."""
    node = three_in_a_call(stop_grace_s=5.0)
    node.handle(HostBroke("gpu GPU 0: lost", device=0), now=1.0)
    node.handle(CallEnded(0, (1, 2), finished=True), now=1.9)
    node.handle(Exited(1, 0), now=2.0)

    assert node.handle(Exited(2, 0), now=3.0) == [SignalRanks((0,), SIGTERM)]
    assert node.handle(TimePassed(), now=8.0) == [SignalRanks((0,), SIGKILL)]
    assert node.handle(TimePassed(), now=8.0 + UNKILLABLE_AFTER_S / 2) == []
    late = node.handle(TimePassed(), now=8.0 + UNKILLABLE_AFTER_S)
    assert late[-1] == RanksStuck(0, "a rank cannot be killed")

    node = three_in_a_call(stop_grace_s=5.0)
    node.handle(HostBroke("gpu GPU 0: lost", device=0), now=1.0)
    node.handle(CallEnded(0, (1, 2), finished=True), now=1.9)
    node.handle(Exited(1, 0), now=2.0)
    node.handle(Exited(2, 0), now=3.0)
    assert node.handle(Exited(0, -SIGKILL), now=4.0) == [Sweep(0)]
    assert node.handle(Swept(), now=4.1) == [RanksSucceeded(0)]


def test_a_rank_that_was_ended_for_a_hang_has_not_ended_well_whatever_its_exit_code() -> None:
    """It may have a handler that ends it with 0."""
    node = three_in_a_call()
    node.handle(killed(0), now=1.0)
    node.handle(Exited(0, 0), now=1.1)
    node.handle(Exited(1, 1), now=2.0)

    assert node.handle(Exited(2, 1), now=2.1) == [RanksFailed(0, 2, every=True), Sweep(0)]
    assert node.handle(Swept(), now=2.2) == [RanksStopped(0)]


def test_ranks_that_were_stopped_have_not_succeeded_because_one_of_them_exits_with_0() -> None:
    """It may have saved its work on SIGTERM."""
    node = three_in_a_call()
    node.handle(stop(), now=1.0)
    for local_rank, exit_code in enumerate((0, -SIGTERM, -SIGTERM)):
        node.handle(Exited(local_rank, exit_code), now=1.1)

    assert node.handle(Swept(), now=1.2) == [RanksStopped(0)]


def test_a_fault_of_the_whole_host_ends_all_ranks_of_a_cycle_that_survives_failures() -> None:
    """Those that went on would use the broken host; the next start is behind a check."""
    node = three_in_a_call()
    effects = without_notes(node.handle(HostBroke(LOST), now=1.0))

    assert [e.local_rank for e in effects if isinstance(e, EndRank)] == [0, 1, 2]
    assert effects[-1] == RanksFailed(0, 2, every=True)
    one = three_in_a_call()
    effects = without_notes(one.handle(HostBroke(LOST, device=1), now=1.0))
    assert effects == [EndRank(1, LOST), RanksFailed(0, 1)]
