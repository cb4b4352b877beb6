"""What a launcher decides that is a job of its own: all its machines, on a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.base.pure.common_events import (
    Begin,
    ControlRequested,
    IterationRead,
    Note,
    SignalArrived,
    TimePassed,
)
from holdfast.inplace.pure.job_calls import CallBegan, CallEnded
from holdfast.job.pure.assign import Policy
from holdfast.job.pure.exit_codes import NO_RESTART
from holdfast.job.pure.leader_messages import ReadIteration
from holdfast.job.pure.member import Member
from holdfast.job.pure.member_messages import CycleStopping, LeaderLost, RanksFailed, StartRanks
from holdfast.job.pure.membership import (
    Beat,
    CyclePlace,
    Decision,
    Descriptor,
    FailureReport,
    LeaderBeat,
    Message,
    Resigned,
    Round,
    Successor,
)
from holdfast.job.pure.rules import RestartPolicy, Rules
from holdfast.job.pure.succession import Succession
from holdfast.job.pure.succession_messages import LeaderDied
from holdfast.job.pure.timing import READ_LIMIT_S, Pace
from holdfast.node.pure.launcher import (
    Deposed,
    Launcher,
    LauncherEnd,
    LeaveProcess,
    LedBy,
    Met,
    QuitProcess,
    SendOn,
)
from holdfast.node.pure.node import (
    SAME_REQUEST_S,
    SWEEP_LIMIT_S,
    UNKILLABLE_AFTER_S,
    CheckHost,
    EndRank,
    Explain,
    HostBroke,
    HostChecked,
    Node,
    NodePhase,
    SignalRanks,
    Sweep,
    Swept,
)
from holdfast.node.pure.rank_life import (
    MONITOR_DEATHS,
    Deliver,
    Exited,
    MonitorGone,
    MonitorSaid,
    RankLives,
    Sent,
    StartMonitor,
    ToMonitors,
)
from holdfast.watch.pure import monitor_messages

SIGTERM, SIGINT, SIGKILL = 15, 2, 9


@dataclass(frozen=True)
class Failed:
    """What a person is told of a failure: whose it is, and why no restart follows, if none does."""

    local_rank: int
    no_restart: str = ""


@dataclass(frozen=True)
class StartCycle:
    """The ranks of a cycle are started."""

    cycle: int


class OneNode:
    """A launcher that is a job of its own, and what lies between its machines and the world.

    The log brings what was said there at once; a failure is put into words at once.
    """

    def __init__(self, rules: dict[str, Any], **node: Any) -> None:
        job = Rules(
            nodes=Policy(1, 1, use_infra_group_rank=False),
            launchers=1,
            is_of_one=True,
            **rules,
        )
        code = job.no_restart_exit_code
        lives = RankLives(node.pop("quiet_s", None))
        self.launcher = Launcher(
            Node(nproc=node.pop("nproc", 2), no_restart_exit_code=code, lives=lives, **node),
            Member("n0", Descriptor("127.0.0.1", "n0", 2, 7), Pace.of_one()),
            job,
        )
        self._failed = -1

    def begin(self, now: float) -> list[Any]:
        return self.handle(Begin(), now) + self.handle(Met(leads=True), now)

    @property
    def restarts_spent(self) -> int:
        assert self.launcher.leader is not None
        return self.launcher.leader.restarts_used

    def next_deadline(self) -> float | None:
        return self.launcher.next_deadline()

    def handle(self, event: Any, now: float) -> list[Any]:
        """What the world sees, in order."""
        todo, seen = [event], []
        while todo:
            for effect in self.launcher.handle(todo.pop(0), now):
                match effect:
                    case _ if isinstance(effect, Message | Decision):
                        todo.append(effect)
                    case RanksFailed(local_rank=local_rank, may_restart=may_restart):
                        if may_restart or self._failed < 0:
                            self._failed = local_rank
                        failure = FailureReport(f"rank {local_rank}")
                        todo.append(RanksFailed(**{**vars(effect), "failure": failure}))
                    case CycleStopping(here=True, no_restart=no_restart):
                        seen.append(Failed(self._failed, no_restart))
                        self._failed = -1
                    case SignalRanks(local_ranks, signum):
                        seen.append(effect)
                        todo.append(Sent(local_ranks, signum))
                    case StartRanks(formed):
                        seen.append(StartCycle(formed.cycle))
                    case CycleStopping() | Deliver() | ToMonitors():
                        pass
                    case QuitProcess(code):
                        assert seen[-1].exit_code == code
                    case _:
                        seen.append(effect)
        return seen


def killed(local_rank: int, cycle: int = 0) -> MonitorSaid:
    """Its monitor sent SIGKILL."""
    message = monitor_messages.Signalled(cycle, local_rank, 100 + local_rank, SIGKILL, "hung")
    return MonitorSaid(local_rank, message)


def stuck(local_rank: int, since_s: float = 15.0, cycle: int = 0) -> MonitorSaid:
    """Its monitor killed it so long ago."""
    message = monitor_messages.Unkillable(cycle, local_rank, 100 + local_rank, since_s, "state D")
    return MonitorSaid(local_rank, message)


_RULES = (
    "backoff_s",
    "max_no_progress_cycles",
    "max_restarts",
    "no_restart_exit_code",
    "reads_iterations",
    "restart",
    "restarts_period_s",
)


def launcher(**options: Any) -> OneNode:
    rules = {name: options.pop(name) for name in _RULES if name in options}
    return OneNode(rules, **options)


def running(**options: Any) -> OneNode:
    """A job of one node and two ranks that has just started cycle 0 at t=0."""
    node = launcher(**options)
    assert node.begin(now=0.0) == [StartCycle(0)]
    return node


def without_notes(effects: list[Any]) -> list[Any]:
    return [effect for effect in effects if not isinstance(effect, Note)]


def test_a_job_whose_ranks_all_end_well_succeeds() -> None:
    """Exit code 0 once the last rank is gone and nothing it started is left."""
    node = running()

    assert node.handle(Exited(0, 0), now=1.0) == []
    assert node.handle(Exited(1, 0), now=2.0) == [Sweep(0)]
    assert node.handle(Swept(), now=2.0) == [LeaveProcess(LauncherEnd.SUCCEEDED, 0)]


def test_a_failure_stops_the_others_and_restarts_all() -> None:
    """The siblings of a failed rank get SIGTERM; the next cycle starts when all are gone."""
    node = running(max_restarts=1)

    assert node.handle(Exited(1, -SIGKILL), now=1.0) == [
        Failed(1),
        SignalRanks((0,), SIGTERM),
    ]
    assert node.handle(Exited(0, -SIGTERM), now=1.1) == [Sweep(0)]
    assert node.handle(Swept(), now=1.1) == [StartCycle(1), Explain(0, will_restart=True)]


def surviving(**options: Any) -> OneNode:
    """Three ranks under min-healthy, in a call."""
    node = running(nproc=3, restart=RestartPolicy.MIN_HEALTHY, **options)
    node.handle(CallBegan(0, (0, 1, 2)), now=0.5)
    return node


@pytest.mark.parametrize(
    ("codes", "end"),
    [
        ([-SIGKILL, 0, 0], 0),
        ([-SIGKILL, 3, 0], 0),
        ([0, 0, -SIGKILL], 0),
        ([NO_RESTART, 0, 0], 0),
        ([-SIGKILL, 3, 1], 1),
        ([NO_RESTART, 3, 1], NO_RESTART),
        ([3, 1, NO_RESTART], NO_RESTART),
    ],
)
def test_under_min_healthy_a_call_that_completes_is_success(codes: list[int], end: int) -> None:
    """None is signalled: what remains of the job is completed in place, or fails by itself."""
    node = surviving()
    effects = []
    finishers = tuple(local_rank for local_rank, code in enumerate(codes) if code == 0)
    for local_rank, code in enumerate(codes):
        if code == 0 and local_rank == finishers[0]:
            node.handle(CallEnded(0, finishers, finished=True), now=1.0)
        effects += without_notes(node.handle(Exited(local_rank, code), now=1.0))
    effects += without_notes(node.handle(Swept(), now=1.1))

    assert not [effect for effect in effects if isinstance(effect, SignalRanks)]
    finish = effects[-1]
    assert isinstance(finish, LeaveProcess)
    assert finish.exit_code == end
    assert finish.ended is (LauncherEnd.FAILED if end else LauncherEnd.SUCCEEDED)


def test_under_min_healthy_ranks_are_restarted_when_none_is_left() -> None:
    """One restart for all of their failures."""
    node = surviving(max_restarts=1)
    for local_rank in range(3):
        node.handle(Exited(local_rank, 1), now=1.0)

    assert node.handle(Swept(), now=1.1) == [StartCycle(1), Explain(0, will_restart=True)]
    assert node.restarts_spent == 1


def test_under_min_healthy_a_signal_ends_ranks_that_went_on() -> None:
    """And the job has not succeeded, however they end."""
    node = surviving()
    node.handle(Exited(2, -SIGKILL), now=1.0)
    assert SignalRanks((0, 1), SIGTERM) in node.handle(SignalArrived(SIGTERM), now=2.0)
    for local_rank in (0, 1):
        node.handle(Exited(local_rank, 0), now=2.1)

    finish = node.handle(Swept(), now=2.2)[-1]
    assert isinstance(finish, LeaveProcess)
    assert (finish.ended, finish.exit_code) == (LauncherEnd.SIGNALLED, 1)


def test_the_budget_is_for_the_whole_job() -> None:
    """B-1: with N restarts there are N+1 cycles, and the last failure is the job's."""
    node = running(max_restarts=2)
    for cycle in (0, 1):
        node.handle(Exited(0, 1), now=cycle)
        node.handle(Exited(1, -SIGTERM), now=cycle)
        assert node.handle(Swept(), now=cycle) == [
            StartCycle(cycle + 1),
            Explain(cycle, will_restart=True),
        ]

    failed = Failed(0, "no restart is left (--max-restarts 2)")
    assert node.handle(Exited(0, 1), now=9.0)[0] == failed
    node.handle(Exited(1, -SIGTERM), now=9.0)
    assert node.handle(Swept(), now=9.0) == [
        Explain(2, will_restart=False),
        LeaveProcess(LauncherEnd.FAILED, 1),
    ]


def test_a_rank_may_ask_for_no_restart_by_its_exit_code() -> None:
    """It knows that another attempt is no use; no restart of the budget is spent."""
    node = running(max_restarts=5, no_restart_exit_code=77)

    assert node.handle(Exited(0, 77), now=1.0) == [
        Failed(0, "exit code 77 asks for no restart (--ft-no-restart-exit-code)"),
        SignalRanks((1,), SIGTERM),
    ]
    node.handle(Exited(1, -SIGTERM), now=1.1)
    effects = node.handle(Swept(), now=1.1)

    # No note: the line of the failure has said already that no restart follows, and why.
    assert effects == [Explain(0, will_restart=False), LeaveProcess(LauncherEnd.FAILED, 77)]
    assert node.restarts_spent == 0


def test_a_rank_that_is_reaped_last_may_still_ask_for_no_restart() -> None:
    """Its peers failed because of it; nothing is waited for before the end."""
    node = running(max_restarts=5, no_restart_exit_code=77, reads_iterations=False)
    node.handle(Exited(1, 1), now=1.0)
    assert node.handle(Exited(0, 77), now=1.1) == [Sweep(0)]

    effects = node.handle(Swept(), now=1.1)
    said = "not started again: exit code 77 asks for no restart (--ft-no-restart-exit-code)"
    assert effects[-1] == LeaveProcess(LauncherEnd.FAILED, 77, said), (
        "the first failure's line could not"
    )


def test_what_every_exception_exits_with_asks_for_nothing() -> None:
    """Also where the launcher is to exit with 1 when another attempt is no use."""
    node = running(max_restarts=1, no_restart_exit_code=1)
    node.handle(Exited(0, 1), now=1.0)
    node.handle(Exited(1, -SIGTERM), now=1.1)

    assert StartCycle(1) in node.handle(Swept(), now=1.1)


def test_stopping_is_polite_then_forced() -> None:
    """A rank that ignores SIGTERM is killed when its grace is over, once."""
    node = running(max_restarts=1, stop_grace_s=15.0)
    node.handle(Exited(0, 1), now=100.0)

    assert node.next_deadline() == 115.0
    assert node.handle(TimePassed(), now=114.9) == []
    assert node.handle(TimePassed(), now=115.0) == [SignalRanks((1,), SIGKILL)]
    assert node.handle(TimePassed(), now=115.1) == []


def test_a_rank_that_is_being_killed_has_failed_already() -> None:
    """The kernel may take seconds to free its memory; the others are stopped meanwhile."""
    node = running(max_restarts=1)
    assert node.handle(killed(1), now=1.0) == [
        Failed(1),
        SignalRanks((0, 1), SIGTERM),
    ]
    assert node.handle(killed(1), now=1.0) == []
    assert node.handle(Exited(0, -SIGTERM), now=1.1) == []
    assert node.handle(Exited(1, -SIGKILL), now=9.0) == [Sweep(0)]
    assert node.handle(killed(1), now=9.0) == [], "it is dead"
    assert node.handle(Swept(), now=9.0) == [StartCycle(1), Explain(0, will_restart=True)]


def test_a_rank_that_hung_has_failed_even_if_all_end_well() -> None:
    """A handler of the signal that ended it may exit with 0."""
    node = running(max_restarts=1)
    node.handle(killed(1), now=1.0)
    node.handle(Exited(1, 0), now=1.0)
    node.handle(Exited(0, 0), now=1.1)
    assert StartCycle(1) in node.handle(Swept(), now=1.1)


def test_a_rank_that_cannot_be_killed_ends_the_node() -> None:
    """A rank in uninterruptible sleep is given up after a bound; its node cannot go on."""
    node = running(max_restarts=5, stop_grace_s=15.0)
    node.handle(Exited(0, 1), now=0.0)
    node.handle(TimePassed(), now=15.0)

    assert node.handle(TimePassed(), now=15.0 + UNKILLABLE_AFTER_S / 2) == []
    assert node.next_deadline() == 15.0 + UNKILLABLE_AFTER_S
    effects = node.handle(TimePassed(), now=15.0 + UNKILLABLE_AFTER_S)

    assert without_notes(effects) == [
        Explain(0, will_restart=False),
        LeaveProcess(LauncherEnd.STUCK, 1),
    ]


def test_a_rank_that_outlives_its_monitors_sigkill_ends_the_node() -> None:
    """The others are stopped, politely; then the time since the SIGKILL counts, and no grace."""
    node = running(max_restarts=5, stop_grace_s=15.0)

    assert without_notes(node.handle(stuck(0), now=100.0)) == [
        Failed(0),
        SignalRanks((0, 1), SIGTERM),
    ]
    assert node.handle(stuck(0), now=100.1) == []
    assert node.handle(Exited(1, -SIGTERM), now=101.0) == [SignalRanks((0,), SIGKILL)]
    assert node.next_deadline() == 101.0 + UNKILLABLE_AFTER_S / 2
    effects = node.handle(TimePassed(), now=101.0 + UNKILLABLE_AFTER_S / 2)

    assert without_notes(effects) == [
        Explain(0, will_restart=False),
        LeaveProcess(LauncherEnd.STUCK, 1),
    ]


def test_others_keep_their_grace_beside_a_stuck_rank() -> None:
    """They may be saving their work."""
    node = running(stop_grace_s=60.0)
    node.handle(stuck(0), now=100.0)

    assert node.next_deadline() == 160.0
    assert node.handle(TimePassed(), now=160.0) == [SignalRanks((0, 1), SIGKILL)]
    assert node.handle(Exited(1, -SIGKILL), now=160.1) == []
    assert node.handle(TimePassed(), now=160.0 + UNKILLABLE_AFTER_S / 2) == []
    effects = node.handle(TimePassed(), now=160.0 + UNKILLABLE_AFTER_S)
    assert effects[-1] == LeaveProcess(LauncherEnd.STUCK, 1)


def test_a_rank_that_took_long_to_die_is_restarted() -> None:
    """The kernel was freeing its memory."""
    node = running(max_restarts=1)
    node.handle(stuck(0), now=100.0)
    node.handle(Exited(1, -SIGTERM), now=100.1)

    assert node.handle(Exited(0, -SIGKILL), now=110.0) == [Sweep(0)]
    assert node.handle(Swept(), now=110.0) == [StartCycle(1), Explain(0, will_restart=True)]
    node.handle(Exited(0, 0), now=111.0)
    assert node.next_deadline() is None, "what was stuck in another cycle is forgotten"


def test_who_alone_is_stuck_after_a_signal_is_not_waited_for() -> None:
    """A grace of half an hour is for ranks that save their work."""
    node = running(signal_grace_s=1800.0)
    node.handle(SignalArrived(SIGTERM), now=100.0)
    node.handle(Exited(1, 0), now=100.1)

    assert without_notes(node.handle(stuck(0), now=200.0)) == [SignalRanks((0,), SIGKILL)]
    assert node.next_deadline() == 185.0 + UNKILLABLE_AFTER_S


def test_leftovers_that_do_not_die_do_not_hold_up_the_next_cycle_for_ever() -> None:
    """Sweeping is bounded."""
    node = running(max_restarts=1)
    node.handle(Exited(0, 1), now=0.0)
    node.handle(Exited(1, -SIGTERM), now=0.0)

    assert node.next_deadline() == SWEEP_LIMIT_S
    assert StartCycle(1) in node.handle(TimePassed(), now=SWEEP_LIMIT_S)


def test_a_launcher_that_stood_still_while_it_swept_finds_that_no_leftovers_are_alive() -> None:
    """The sweep stood still as well; only then it knows which snapshots are here."""
    node = running(max_restarts=1)
    node.handle(Exited(0, 1), now=0.0)
    node.handle(Exited(1, -SIGTERM), now=0.0)

    effects = node.handle(TimePassed(), now=30.0)
    effects += node.handle(Swept(), now=30.1)
    assert StartCycle(1) in effects
    assert not any("leftovers" in it.text for it in effects if isinstance(it, Note))


def delivered(node: OneNode, event: Any, now: float) -> list[Deliver]:
    """What becomes of the folders of evidence."""
    seen, handle = [], node.launcher.handle

    def noted(event: Any, now: float) -> list[Any]:
        effects = handle(event, now)
        seen.extend(effect for effect in effects if isinstance(effect, Deliver))
        return effects

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.launcher, "handle", noted)
        node.handle(event, now)
    return seen


def test_evidence_is_delivered_also_where_leftovers_do_not_die() -> None:
    """What ranks wrote lies in memory until then; whoever is stuck in the kernel left a reason."""
    node = running(max_restarts=1)
    node.handle(Exited(0, 1), now=0.0)
    node.handle(Exited(1, -SIGTERM), now=0.0)

    assert delivered(node, TimePassed(), SWEEP_LIMIT_S) == [Deliver(0, is_over=True)]


def test_leftovers_that_die_late_free_no_folder_of_the_next_cycle() -> None:
    """Its ranks write there."""
    node = running(max_restarts=1)
    node.handle(Exited(0, 1), now=0.0)
    node.handle(Exited(1, -SIGTERM), now=0.0)
    assert StartCycle(1) in node.handle(TimePassed(), now=SWEEP_LIMIT_S)

    assert delivered(node, Swept(), SWEEP_LIMIT_S + 0.1) == []


def test_a_signal_is_forwarded_and_ranks_get_their_grace() -> None:
    """The same signal goes to the ranks; no restart follows; exit code 1 unless all end well."""
    node = running(max_restarts=3, signal_grace_s=60.0)

    assert node.handle(SignalArrived(SIGTERM), now=1.0) == [
        SignalRanks((0, 1), SIGTERM),
        Note(
            "warning",
            "SIGTERM: passed on to 2 ranks, no restart any more; SIGKILL after 60 s "
            "(--term-timeout). A second SIGTERM, later than 5 s after this one, kills them at once",
        ),
    ]
    assert node.next_deadline() == 61.0
    node.handle(Exited(0, -SIGTERM), now=2.0)
    node.handle(Exited(1, 0), now=3.0)
    assert node.handle(Swept(), now=3.0) == [
        LeaveProcess(LauncherEnd.SIGNALLED, 1, signal="SIGTERM")
    ]


def test_a_job_that_is_signalled_and_ends_well_has_not_succeeded() -> None:
    """All ranks exit with 0 (they saved their work): a scheduler must not call it completed."""
    node = running()
    node.handle(SignalArrived(SIGTERM), now=1.0)
    node.handle(Exited(0, 0), now=2.0)
    node.handle(Exited(1, 0), now=2.0)

    assert node.handle(Swept(), now=2.0) == [
        LeaveProcess(LauncherEnd.SIGNALLED, 1, signal="SIGTERM")
    ]


def test_a_second_ctrl_c_does_not_wait() -> None:
    """Who interrupts twice means it."""
    node = running(signal_grace_s=1800.0)
    (_, note) = node.handle(SignalArrived(SIGINT), now=1.0)
    assert isinstance(note, Note)
    assert note.text.endswith("(--term-timeout). Press Ctrl-C again to kill them now")

    assert without_notes(node.handle(SignalArrived(SIGINT), now=2.0)) == [
        SignalRanks((0, 1), SIGKILL)
    ]


def test_a_second_sigterm_does_not_wait_either() -> None:
    """Unless it comes so soon that a scheduler has sent the same request twice."""
    node = running(signal_grace_s=1800.0)
    node.handle(SignalArrived(SIGTERM), now=100.0)
    for at in (100.0, 101.0, 100.0 + SAME_REQUEST_S - 2**-10):
        assert node.handle(SignalArrived(SIGTERM), now=at) == [], "ranks hear of it once"
    assert node.next_deadline() == 1900.0

    (note, kill) = node.handle(SignalArrived(SIGTERM), now=100.0 + SAME_REQUEST_S)
    assert note.text == "SIGTERM again: killing the ranks without grace"
    assert kill == SignalRanks((0, 1), SIGKILL)
    assert node.next_deadline() == 100.0 + SAME_REQUEST_S + UNKILLABLE_AFTER_S / 2


def test_nobody_is_told_of_a_second_sigterm_that_would_come_after_sigkill() -> None:
    """A grace that is over before a second signal would count."""
    node = running(signal_grace_s=SAME_REQUEST_S)
    (_, note) = node.handle(SignalArrived(SIGTERM), now=100.0)
    assert isinstance(note, Note)
    assert note.text.endswith("no restart any more; SIGKILL after 5 s (--term-timeout)")


def test_another_signal_is_another_request() -> None:
    """It is passed on: what ranks do about it may differ."""
    node = running(signal_grace_s=1800.0)
    node.handle(SignalArrived(SIGTERM), now=100.0)
    assert node.handle(SignalArrived(SIGINT), now=200.0) == [
        SignalRanks((0, 1), SIGINT),
        Note(
            "warning",
            "SIGINT: passed on to 2 ranks, too. Press Ctrl-C again to kill them now",
        ),
    ]
    assert without_notes(node.handle(SignalArrived(SIGINT), now=200.5)) == [
        SignalRanks((0, 1), SIGKILL)
    ]


def test_more_ctrl_c_do_not_put_off_the_end() -> None:
    """A rank that cannot be killed is given up in its time, however impatient the user is."""
    node = running()
    for now in (1.0, 2.0, 3.0, 4.0):
        node.handle(SignalArrived(SIGINT), now=now)

    assert node.next_deadline() == 2.0 + UNKILLABLE_AFTER_S / 2


def test_a_signal_while_stopping_for_a_restart_cancels_the_restart() -> None:
    """The job ends, although the budget has room."""
    node = running(max_restarts=5)
    node.handle(Exited(0, 1), now=0.0)
    assert node.handle(SignalArrived(SIGTERM), now=0.1) == [
        SignalRanks((1,), SIGTERM),
        Note(
            "warning",
            "SIGTERM: passed on to 1 rank, no restart any more; SIGKILL after 15 s "
            "(--workers-stop-timeout). A second SIGTERM, later than 5 s after this one, kills them "
            "at once",
        ),
    ]
    node.handle(Exited(1, -SIGTERM), now=0.2)

    assert node.handle(Swept(), now=0.2)[-1] == LeaveProcess(
        LauncherEnd.SIGNALLED, 1, signal="SIGTERM"
    )


ASKED = {
    action: Failed(1, f"a rank has asked for {action}")
    for action in ("ShutdownWorkload", "ExcludeThisNode")
}
SHUT_DOWN = LeaveProcess(
    LauncherEnd.SHUT_DOWN, 1, "rank 1 on n0 (pid 7) asked to shut the workload down: loss is NaN"
)


def test_a_shutdown_request_takes_effect_when_the_cycle_is_over() -> None:
    """Asking alone ends nothing; the failure that follows is final."""
    node = running(max_restarts=5)
    request = ControlRequested(1, "ShutdownWorkload", "loss is NaN")

    assert without_notes(node.handle(request, now=1.0)) == []
    assert node.handle(Exited(1, 1), now=2.0)[0] == Failed(
        1, "a rank has asked for ShutdownWorkload"
    )
    node.handle(Exited(0, -SIGTERM), now=2.0)

    assert node.handle(Swept(), now=2.0)[-1] == SHUT_DOWN
    assert node.restarts_spent == 0


def test_a_request_after_the_failure_comes_in_the_place_of_the_restart() -> None:
    """The restart has been announced, so its absence is."""
    node = running(max_restarts=5)
    assert Failed(1) in node.handle(Exited(1, 1), now=2.0)
    (note,) = node.handle(ControlRequested(1, "ShutdownWorkload", "loss is NaN"), now=2.0)
    assert isinstance(note, Note)
    assert note.text.endswith("when cycle 0 is over, in the place of the restart")
    node.handle(Exited(0, -SIGTERM), now=2.0)

    assert node.handle(Swept(), now=2.0)[-1] == SHUT_DOWN


def test_a_continue_request_changes_nothing() -> None:
    """Continue is consumed without effect."""
    node = running(max_restarts=1)
    node.handle(ControlRequested(0, "Continue", ""), now=1.0)
    node.handle(Exited(1, 1), now=2.0)
    node.handle(Exited(0, -SIGTERM), now=2.0)

    assert node.handle(Swept(), now=2.0)[0] == StartCycle(1)


def test_a_node_that_is_excluded_leaves_without_an_error() -> None:
    """ExcludeThisNode: exit code 0, others may go on."""
    node = running(max_restarts=1)
    node.handle(ControlRequested(0, "ExcludeThisNode", "bad GPU"), now=1.0)
    assert node.handle(Exited(1, 1), now=2.0)[0] == Failed(
        1, "a rank has asked for ExcludeThisNode"
    )
    node.handle(Exited(0, -SIGTERM), now=2.0)

    assert node.handle(Swept(), now=2.0)[-1] == LeaveProcess(
        LauncherEnd.EXCLUDED, 0, "this node is excluded: rank 0: bad GPU"
    )


def test_a_node_that_asks_to_be_excluded_from_a_job_that_is_over_has_failed() -> None:
    """No restart is left, the work is not done: exit code 1."""
    node = running()
    node.handle(ControlRequested(0, "ExcludeThisNode", "bad GPU"), now=1.0)
    node.handle(Exited(1, 1), now=2.0)
    node.handle(Exited(0, -SIGTERM), now=2.0)

    assert node.handle(Swept(), now=2.0)[-1] == LeaveProcess(LauncherEnd.FAILED, 1)


def test_a_dead_monitor_is_replaced_until_it_is_hopeless() -> None:
    """Training goes on either way; a monitor that keeps dying is left alone, said once."""
    node = running()
    for death in range(MONITOR_DEATHS):
        assert StartMonitor(0) in node.handle(MonitorGone(0), now=float(death))

    [note] = node.handle(MonitorGone(0), now=6.0)
    assert isinstance(note, Note)
    assert note.level == "error"
    assert StartMonitor(1) in node.handle(MonitorGone(1), now=6.0), "the other is unaffected"
    assert node.handle(MonitorGone(0), now=6.1) == []


def test_silence_of_all_ranks_is_mentioned_once() -> None:
    """A job that never reports in is not watched, and its user should know."""
    node = running(quiet_s=3600.0)
    assert node.next_deadline() == 3600.0

    [note] = node.handle(TimePassed(), now=3600.0)
    assert "not being watched" in note.text  # type: ignore[union-attr]
    assert node.next_deadline() is None

    reported = running(quiet_s=3600.0)
    reported.handle(MonitorSaid(1, monitor_messages.RankConnected(1, 101)), now=5.0)
    assert reported.next_deadline() is None


# ---------------------------------------------------------------- rules of restarting
def fail(node: OneNode, now: float) -> list[Any]:
    """A rank fails, the other is gone at once; what follows when nothing is left of them."""
    node.handle(Exited(0, 1), now)
    node.handle(Exited(1, -SIGTERM), now)
    return node.handle(Swept(), now)


def measured(**rules: int) -> OneNode:
    """A node that started from iteration 100, and can be told how far it is."""
    node = launcher(max_restarts=9, reads_iterations=True, **rules)
    first = node.begin(now=0.0)
    assert sorted(first, key=repr) == [ReadIteration(first=True), StartCycle(0)]
    assert node.handle(IterationRead(100), now=0.0) == []
    return node


def test_a_budget_within_a_period_is_renewed() -> None:
    """Two failures within it are too many; the same two, a period apart, are not."""
    node = running(max_restarts=1, restarts_period_s=100.0)
    assert fail(node, 10.0)[0] == StartCycle(1)
    assert fail(node, 110.0)[0] == StartCycle(2)
    assert fail(node, 209.0)[-1] == LeaveProcess(LauncherEnd.FAILED, 1)


def test_failures_in_a_row_are_restarted_later_and_later() -> None:
    """The first at once. The wait is from the failure on, and can be cut short by a signal."""
    node = running(max_restarts=9, backoff_s=4.0)
    assert fail(node, 1.0)[0] == StartCycle(1)
    assert fail(node, 2.0) == []
    assert node.next_deadline() == 3.0
    assert node.handle(TimePassed(), now=3.0) == [
        Note("info", "the next cycle starts in 3 s (--ft-restart-backoff 4)")
    ]
    assert node.handle(TimePassed(), now=5.9) == []
    assert node.handle(TimePassed(), now=6.0) == [StartCycle(2), Explain(1, will_restart=True)]
    assert fail(node, 7.0) == []
    assert node.handle(SignalArrived(SIGTERM), now=8.0) == [
        Explain(2, will_restart=False),
        LeaveProcess(LauncherEnd.SIGNALLED, 1, signal="SIGTERM"),
    ]


def test_a_node_that_does_not_advance_is_given_up() -> None:
    """With the code that says so, after as many cycles in a row as the rules allow."""
    node = measured(max_no_progress_cycles=2)
    for cycle, iteration in enumerate([100, 150, 150]):
        assert ReadIteration(first=False) in node.handle(Exited(0, 1), now=1.0)
        node.handle(Exited(1, -SIGTERM), now=1.0)
        node.handle(IterationRead(iteration), now=1.0)
        assert node.handle(Swept(), now=1.0)[0] == StartCycle(cycle + 1)
    node.handle(Exited(0, 1), now=2.0)
    node.handle(Exited(1, -SIGTERM), now=2.0)
    node.handle(IterationRead(150), now=2.0)

    effects = node.handle(Swept(), now=2.0)

    assert effects == [
        Explain(3, will_restart=False),
        LeaveProcess(LauncherEnd.FAILED, 93, "not started again: no progress in 2 cycles in a row"),
    ]


def test_a_restart_waits_for_the_iteration_but_not_for_ever() -> None:
    """A cycle of which nothing is known does not count."""
    node = measured(max_no_progress_cycles=1)
    assert fail(node, 1.0) == []
    assert node.handle(IterationRead(101), now=1.5)[0] == StartCycle(1)

    assert fail(node, 2.0) == []
    assert node.next_deadline() == 2.0 + READ_LIMIT_S
    assert node.handle(TimePassed(), now=2.0 + READ_LIMIT_S)[0] == StartCycle(2)

    assert fail(node, 10.0) == []
    assert node.handle(IterationRead(None), now=10.5)[0] == StartCycle(3)

    assert fail(node, 20.0) == []
    assert node.handle(IterationRead(101), now=20.5)[-1].exit_code == 93


def test_a_signal_ends_a_node_that_waits_for_the_iteration() -> None:
    """It explains the failure before it goes."""
    node = measured(max_no_progress_cycles=1)
    fail(node, 1.0)

    assert node.handle(SignalArrived(SIGTERM), now=1.1) == [
        Explain(0, will_restart=False),
        LeaveProcess(LauncherEnd.SIGNALLED, 1, signal="SIGTERM"),
    ]


def checked(max_restarts: int = 1, **rules: float) -> OneNode:
    """A node whose host was checked and found fit, and that started cycle 0 at t=0."""
    node = launcher(max_restarts=max_restarts, checks_host=True, **rules)
    assert node.begin(now=0.0) == [CheckHost(after_ranks=False)]
    assert node.next_deadline() is None
    assert node.handle(HostChecked(), now=0.0) == [StartCycle(0)]
    return node


def test_an_unfit_host_has_no_ranks() -> None:
    """The only node of its job: with 1, or a scheduler would call the job completed."""
    node = launcher(checks_host=True)
    node.begin(now=0.0)

    assert node.handle(HostChecked("GPU 0 is lost"), now=1.0) == [unfit("GPU 0 is lost")]


def unfit(problem: str) -> LeaveProcess:
    return LeaveProcess(LauncherEnd.UNHEALTHY, 1, f"this node is unhealthy: {problem}")


def test_a_restart_waits_for_the_host_to_be_checked() -> None:
    """Its failure is explained once it is known whether there is a restart."""
    node = checked()
    assert fail(node, 1.0) == [CheckHost(after_ranks=True)]
    assert node.handle(HostChecked(), now=1.5) == [StartCycle(1), Explain(0, will_restart=True)]
    assert node.handle(HostChecked("late"), now=1.6) == [], "nobody asked"

    broken = checked()
    fail(broken, 1.0)
    assert broken.handle(HostChecked("GPU 0 is lost"), now=1.5) == [
        Explain(0, will_restart=False),
        unfit("GPU 0 is lost"),
    ]


def test_a_host_is_checked_while_a_restart_is_put_off() -> None:
    """The later of the two starts it."""
    node = checked(max_restarts=9, backoff_s=4.0)
    fail(node, 1.0)
    node.handle(HostChecked(), now=1.0)
    assert fail(node, 2.0) == [CheckHost(after_ranks=True)]
    assert node.handle(HostChecked(), now=3.0) == []
    assert node.handle(TimePassed(), now=6.0)[0] == StartCycle(2)

    assert fail(node, 7.0) == [CheckHost(after_ranks=True)]
    assert node.next_deadline() is None
    assert node.handle(HostChecked(), now=99.0)[0] == StartCycle(3)


LOST = "GPU 0 is lost"


def test_a_host_that_breaks_while_a_restart_is_put_off_is_checked_again() -> None:
    node = checked(max_restarts=9, backoff_s=4.0)
    fail(node, 1.0)
    node.handle(HostChecked(), now=1.0)
    fail(node, 2.0)
    node.handle(HostChecked(), now=2.0)
    assert node.handle(HostBroke(LOST), now=3.0) == [CheckHost(after_ranks=True)]
    assert node.handle(HostBroke(LOST), now=3.1) == []
    assert node.handle(HostChecked(LOST), now=3.2) == [
        Explain(1, will_restart=False),
        unfit(LOST),
    ]


@pytest.mark.parametrize(("device", "ended"), [(1, 1), (None, 0)])
def test_what_breaks_under_ranks_ends_the_one_whose_it_is_and_the_cycle(
    device: int | None, ended: int
) -> None:
    """It has failed at once: it may sit in a driver for ever. What is nobody's is the first's."""
    node = checked()
    assert node.handle(HostBroke(LOST, device), now=0.5) == [
        EndRank(ended, LOST),
        Failed(ended),
        SignalRanks((0, 1), SIGTERM),
    ]
    assert node.handle(HostBroke(LOST, device), now=0.6) == [], "the cycle is ending already"


def test_a_device_whose_rank_has_ended_well_ends_nobody() -> None:
    node = checked()
    node.handle(Exited(1, 0), now=0.5)
    assert node.handle(HostBroke(LOST, 1), now=0.6) == []


def test_a_job_that_is_over_checks_no_host() -> None:
    """Neither after success nor without a restart left, nor after a signal."""
    node = checked(max_restarts=0)
    assert fail(node, 1.0) == [Explain(0, will_restart=False), LeaveProcess(LauncherEnd.FAILED, 1)]

    signalled = checked()
    fail(signalled, 1.0)
    assert signalled.handle(SignalArrived(SIGTERM), now=1.1) == [
        Explain(0, will_restart=False),
        LeaveProcess(LauncherEnd.SIGNALLED, 1, signal="SIGTERM"),
    ]


class LauncherLife(RuleBasedStateMachine):
    """Any order of events, with the invariants checked after each."""

    @initialize(
        nproc=st.integers(1, 4),
        max_restarts=st.integers(0, 3),
        backoff_s=st.sampled_from([0.0, 0.5, 60.0]),
        reads=st.booleans(),
        checks=st.booleans(),
    )
    def begin(
        self, nproc: int, max_restarts: int, backoff_s: float, reads: bool, checks: bool
    ) -> None:
        self.now = 0.0
        self.nproc, self.max_restarts, self.checks = nproc, max_restarts, checks
        self.node = launcher(
            nproc=nproc,
            max_restarts=max_restarts,
            backoff_s=backoff_s,
            max_no_progress_cycles=2,
            reads_iterations=reads,
            checks_host=checks,
        )
        self.reading = self.checking = 0
        self.alive: set[int] = set()
        self.cycles: list[int] = []
        self.finished: list[LeaveProcess] = []
        self.owed_sweep = False
        self.sweep_until = 0.0
        self.carry_out(self.node.begin(self.now))

    def feed(self, event: object) -> None:
        self.now += 0.25
        self.carry_out(self.node.handle(event, self.now))

    def carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case StartCycle(cycle):
                    assert not self.alive, "R-1: a cycle starts only when no rank is alive"
                    assert not self.owed_sweep or self.now >= self.sweep_until
                    assert not self.finished
                    self.cycles.append(cycle)
                    self.alive = set(range(self.nproc))
                case EndRank(local_rank):
                    assert local_rank in self.alive
                case SignalRanks(local_ranks, _):
                    assert set(local_ranks) <= self.alive
                    assert local_ranks
                case Sweep():
                    assert not self.alive
                    self.owed_sweep = True
                    self.sweep_until = self.now + SWEEP_LIMIT_S
                case ReadIteration():
                    self.reading += 1
                case CheckHost(after_ranks):
                    assert not self.alive
                    assert after_ranks == bool(self.cycles)
                    self.checking += 1
                case LeaveProcess():
                    self.finished.append(effect)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), exit_code=st.sampled_from([0, 0, 0, 1, 93, -9, -15]))
    def exit(self, data: st.DataObject, exit_code: int) -> None:
        rank = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.discard(rank)
        self.feed(Exited(rank, exit_code))

    @precondition(lambda self: self.owed_sweep)
    @rule()
    def swept(self) -> None:
        self.owed_sweep = False
        self.feed(Swept())

    @precondition(lambda self: self.reading)
    @rule(iteration=st.sampled_from([None, 1, 2, 3]))
    def iteration_is_read(self, iteration: int | None) -> None:
        self.reading -= 1
        self.feed(IterationRead(iteration))

    @precondition(lambda self: self.checking)
    @rule(problem=st.sampled_from([None, None, None, "GPU 0 is lost"]))
    def host_is_checked(self, problem: str | None) -> None:
        self.checking -= 1
        self.feed(HostChecked(problem))

    @precondition(lambda self: self.checks)
    @rule(device=st.sampled_from([None, 0, 3]))
    def host_breaks(self, device: int | None) -> None:
        self.feed(HostBroke("GPU 0 is lost", device))

    @rule(signum=st.sampled_from([SIGTERM, SIGINT]))
    def signal(self, signum: int) -> None:
        self.feed(SignalArrived(signum))

    @rule(action=st.sampled_from(["Continue", "ExcludeThisNode", "ShutdownWorkload"]))
    def control(self, action: str) -> None:
        self.feed(ControlRequested(0, action, "why not"))

    @rule(rank=st.integers(0, 3), since_s=st.sampled_from([0.0, 15.0, 99.0]))
    def rank_is_stuck(self, rank: int, since_s: float) -> None:
        if rank < self.nproc and self.cycles:
            self.feed(stuck(rank, since_s, len(self.cycles) - 1))

    @rule(rank=st.integers(0, 3))
    def rank_is_killed(self, rank: int) -> None:
        killed = monitor_messages.Signalled(len(self.cycles) - 1, rank, 100 + rank, SIGKILL, "hung")
        if rank < self.nproc and self.cycles:
            self.feed(MonitorSaid(rank, killed))

    @rule(rank=st.integers(0, 3))
    def monitor_dies(self, rank: int) -> None:
        self.feed(MonitorGone(rank))

    @rule()
    def the_deadline_comes(self) -> None:
        if (deadline := self.node.next_deadline()) is not None:
            self.now = max(self.now, deadline)
            self.feed(TimePassed())
            assert self.node.next_deadline() != deadline, "a deadline that passed is gone"

    @invariant()
    def cycles_count_up_and_stay_within_the_budget(self) -> None:
        """B-1, and the cycle number never repeats."""
        assert self.cycles == list(range(len(self.cycles)))
        assert len(self.cycles) <= 1 + self.max_restarts

    @invariant()
    def the_end_comes_once_and_nothing_after_it(self) -> None:
        assert len(self.finished) <= 1
        assert bool(self.finished) == (self.node.launcher.node.phase is NodePhase.DONE)

    @invariant()
    def somebody_will_wake_a_node_that_waits(self) -> None:
        """Stopping, sweeping and pauses are bounded: there is a deadline."""
        if self.node.launcher.node.phase in (
            NodePhase.STOPPING,
            NodePhase.SWEEPING,
            NodePhase.IDLE,
        ):
            assert self.node.next_deadline() is not None or self.checking


TestLauncherLife = LauncherLife.TestCase
TestLauncherLife.settings = settings(max_examples=200, stateful_step_count=40)


@pytest.mark.parametrize(
    ("was_there", "said"),
    [
        (False, "this node could not join the job: n0:29500 could not be reached"),
        (True, ""),  # an error has said it when the ranks were ended
    ],
)
def test_a_launcher_that_never_met_the_others_says_so(was_there: bool, said: str) -> None:
    """It has left no job, and ended no ranks."""
    launcher = Launcher(
        Node(nproc=2),
        Member("n1", Descriptor("", "n1", 2, 7), Pace()),
        Rules(nodes=Policy(2, 2, use_infra_group_rank=False)),
    )
    effects = launcher.handle(Begin(), 0.0)
    if was_there:
        effects += launcher.handle(Met(leads=False, addr="n1"), 0.5)

    effects += launcher.handle(LeaderLost("n0:29500 could not be reached"), 1.0)

    (finish,) = (each for each in effects if isinstance(each, LeaveProcess))
    assert (finish.ended, finish.exit_code, finish.text) == (
        LauncherEnd.FAILED,
        1,
        said,
    )
    errors = [each.text for each in effects if isinstance(each, Note) and each.level == "error"]
    assert len(errors) == was_there


def test_a_node_learns_that_ranks_of_another_have_reported_to_their_monitors() -> None:
    """From beats alone: its own ranks may all hang before their first call."""
    desc = Descriptor("10.0.0.1", "here", 2, 1)
    rules = Rules(nodes=Policy(2, 2, use_infra_group_rank=False), launchers=2)
    lives = RankLives(awaits_reports=True)
    launcher = Launcher(Node(2, lives=lives), Member("here", desc), rules)
    place = CyclePlace("here", 0, 2, 0, "10.0.0.1")
    for event in (Met(leads=False), Begin(), HostChecked(None)):
        launcher.handle(event, 0.0)
    launcher.handle(Round(0, (place,), world_size=2), 0.0)
    launcher.handle(HostChecked(None), 0.0)
    launcher.node.ranks_started({0: 100, 1: 101})

    effects = launcher.handle(LeaderBeat(reported=0), 2.0)
    awaited = {k: monitor_messages.Await(0, k, 100 + k, 2.0) for k in (0, 1)}
    assert effects == [ToMonitors(awaited)]
    launcher.handle(MonitorSaid(1, monitor_messages.WatchBegan(0)), 2.5)
    beat = Beat("here", reported=0)
    assert beat in launcher.handle(TimePassed(), launcher.next_deadline() or 0.0)


# ---------------------------------------------------------------- at the endpoint of a dead leader
def at_the_endpoint() -> Launcher:
    """One of two launchers of a job; it came first, and leads."""
    launcher = Launcher(
        Node(nproc=1), Member("n0", Descriptor("", "n0", 1, 7), Pace()), Rules(nodes=Policy(2, 2))
    )
    launcher.handle(Begin(), 0.0)
    launcher.handle(Met(leads=True, addr="10.0.0.1", port=5), 0.0)
    return launcher


def test_a_launcher_that_was_started_anew_steps_down_for_the_one_that_leads_and_the_next() -> None:
    launcher = at_the_endpoint()
    assert launcher.handle(LedBy("10.0.0.1", 5, 1, "n5"), 1.0) == []  # its own call
    note, sent_on = launcher.handle(LedBy("10.0.0.2", 6, 1, "n6"), 1.0)
    assert isinstance(note, Note)
    assert (sent_on, launcher.leader) == (SendOn("10.0.0.2", 6, joins=True), None)
    assert launcher.handle(LedBy("10.0.0.3", 7, 1, "n7"), 2.0) == [
        SendOn("10.0.0.3", 7, joins=False)
    ]


def test_a_launcher_that_follows_or_has_formed_a_cycle_does_not_step_down() -> None:
    launcher = at_the_endpoint()
    leader = launcher.leader
    assert leader is not None
    leader.cycles.cycle = 0
    assert launcher.handle(LedBy("10.0.0.2", 6, 0, "n6"), 1.0) == []
    assert launcher.leader is leader
    launcher.leader = None
    assert launcher.handle(LedBy("10.0.0.2", 6, 1, "n6"), 1.0) == []


def test_the_ranks_of_the_leader_s_own_node_may_run_as_long_as_its_lease_has_left() -> None:
    """At the moment at which its decision arrives, not at that at which it was made."""
    launcher = at_the_endpoint()
    beat = LeaderBeat(lease_s=3.0)
    launcher.handle(beat, 40.0)
    assert launcher.member.own_lease_s == Pace().leader_lease_s
    launcher.handle(LedBy("10.0.0.2", 6, 1, "n6"), 41.0)
    launcher.handle(beat, 42.0)
    assert launcher.member.own_lease_s == 0.0, "it leads no more"


def test_a_leader_that_the_key_does_not_name_any_more_leaves_and_frees_its_followers() -> None:
    effects = at_the_endpoint().handle(Deposed("another one leads it"), 1.0)
    assert any(isinstance(effect, Resigned) for effect in effects)
    [left] = [effect for effect in effects if isinstance(effect, LeaveProcess)]
    assert (left.exit_code, left.ended) == (1, LauncherEnd.FAILED)


# ---------------------------------------------------------------- a leader that has died
def test_a_round_of_a_leader_that_has_died_starts_no_ranks() -> None:
    """Another launcher's word came first: this one has promised that its ranks are gone."""

    def formed(cycle: int) -> Round:
        places = tuple(CyclePlace(node, k, 2, 2 * k, node) for k, node in enumerate("abc"))
        others = tuple(Successor(node, node, 1) for node in "bc")
        after = (0, cycle - 1, 0) if cycle else ()
        leads_at = Successor("a", "a", 1)
        return Round(
            cycle,
            places,
            leader="a",
            leads_at=leads_at,
            successors=others,
            after=after,
            world_size=6,
        )

    member = Member("c", Descriptor("c", "c", 2, 7, serves=1), Pace())
    rules = Rules(nodes=Policy(3, 3, use_infra_group_rank=False))
    one = Launcher(Node(nproc=2, lives=RankLives(None)), member, rules, Succession(Pace()))
    one.handle(Begin(), 0.0)
    one.handle(Met(leads=False, addr="c", port=1), 0.0)
    assert [it for it in one.handle(formed(0), 0.1) if isinstance(it, StartRanks)]
    one.handle(LeaderDied("its launcher has ended"), 1.0)
    assert not [it for it in one.handle(formed(1), 1.1) if isinstance(it, StartRanks)]
    assert one.succession is not None
    assert one.succession.round == formed(0)
