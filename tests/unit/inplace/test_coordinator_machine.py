"""The coordinator's decisions, one by one; whole calls of it are in ``tests/simulation``."""

from __future__ import annotations

import pytest

from holdfast.base.pure.common_events import TimePassed
from holdfast.inplace.pure import messages as msg
from holdfast.inplace.pure.coordinator import (
    MAX_CAUSES,
    CallPhase,
    Coordinator,
    Effect,
    HangUp,
    NodeGone,
    NodeMessage,
    Tell,
)
from holdfast.inplace.pure.job_calls import Cause, FaultKind
from holdfast.inplace.pure.timing import AT_ONCE_S

BARRIER_S, COMPLETION_S, SILENCE_S = 100.0, 40.0, 30.0
TIMEOUTS = msg.CoordinatorTimeouts(BARRIER_S, COMPLETION_S, 0.0, SILENCE_S, join_s=BARRIER_S)


def giving_up_after(most: int | None) -> msg.CoordinatorTimeouts:
    return msg.CoordinatorTimeouts(BARRIER_S, COMPLETION_S, 0.0, SILENCE_S, most)


EXCEPTION, LEFT, DIED = (
    FaultKind.EXCEPTION,
    FaultKind.BASE_EXCEPTION,
    FaultKind.TERMINATED,
)


class Job:
    """A coordinator, and what its guards say to it: two ranks on each node, "a", "b", and so on."""

    def __init__(self, world: int = 4, timeouts: msg.CoordinatorTimeouts = TIMEOUTS) -> None:
        self.world = world
        self.now = 0.0
        self.machine = Coordinator(timeouts)

    def node(self, rank: int) -> str:
        return "abcdefgh"[rank // 2]

    def say(self, message: msg.Up, node: str | None = None) -> list[Effect]:
        if node is None:
            rank = (
                message.standings[0].rank if isinstance(message, msg.RanksReady) else message.rank
            )
            node = self.node(rank)
        return self.machine.handle(NodeMessage(node, message), self.now)

    def lose(self, node: str, how: str = "closed") -> list[Effect]:
        return self.machine.handle(NodeGone(node, how), self.now)

    def at(self, now: float) -> list[Effect]:
        """Time passes, for nodes that beat; deadlines before ``now`` are not due."""
        self.now = now
        for node in sorted({self.node(rank) for rank in self.machine.members}):
            self.say(msg.GuardBeat(now), node)
        return self.machine.handle(TimePassed(), now)

    def silently_at(self, now: float) -> list[Effect]:
        self.now = now
        return self.machine.handle(TimePassed(), now)

    def begin(self) -> Job:
        for rank in range(self.world):
            self.say(msg.JoinCall(rank, self.world))
        assert self.machine.epoch == 0
        return self

    def fault(self, rank: int, text: str = "boom") -> list[Effect]:
        return self.say(msg.FaultReported(self.machine.epoch, rank, EXCEPTION, text))

    def ready(self, *ranks: int, epoch: int | None = None) -> list[Effect]:
        """All in one message; they are numbered as they were born."""
        at = self.machine.epoch if epoch is None else epoch
        numbers = {rank: msg.Numbering(at, rank, self.world) for rank in ranks}
        base = msg.Numbering(-1, 0, self.world)
        standings = tuple(msg.Standing(rank, numbers[rank], base) for rank in ranks)
        return self.say(msg.RanksReady(at, standings))


def cause(rank: int, kind: FaultKind = EXCEPTION, text: str = "boom") -> Cause:
    return Cause(rank, kind, text)


def failed(effects: list[Effect]) -> str:
    """Why the call has ended for all."""
    (effect,) = effects[-1:]
    assert isinstance(effect, msg.Exit)
    assert not effect.finished
    return effect.text


# ------------------------------------------------------------------ the beginning
def test_the_first_epoch_begins_when_the_last_rank_has_come() -> None:
    job = Job()
    assert [job.say(msg.JoinCall(rank, 4)) for rank in (3, 0, 2)] == [[], [], []]
    assert job.machine.phase is CallPhase.FORMING
    assert job.say(msg.JoinCall(1, 4)) == [msg.Commit(0, -1, (), ())]
    assert job.machine.phase is CallPhase.RUNNING


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (msg.JoinCall(0, 4), "two processes with RANK 0"),
        (msg.JoinCall(1, 8), "WORLD_SIZE 8, others have 4"),
        (msg.JoinCall(4, 4), "RANK 4 is outside of WORLD_SIZE 4"),
        (msg.JoinCall(-1, 4), "RANK -1 is outside"),
    ],
)
def test_who_does_not_belong_is_refused_and_nobody_else_is_concerned(
    hello: msg.JoinCall, why: str
) -> None:
    job = Job()
    job.say(msg.JoinCall(0, 4))
    (told,) = job.say(hello, "z")
    assert isinstance(told, Tell)
    assert (told.node, type(told.message)) == ("z", msg.RankRefused)
    assert why in told.message.text
    assert job.machine.members == {0}
    assert job.machine.phase is CallPhase.FORMING


def test_who_comes_to_a_call_that_runs_is_refused_with_the_iteration() -> None:
    job = Job().begin()
    (told,) = job.say(msg.JoinCall(0, 4), "z")
    assert isinstance(told, Tell)
    assert "all 4 ranks had already begun (iteration 0)" in told.message.text


def test_who_comes_to_a_call_that_is_over_hears_why_it_is() -> None:
    job = Job()
    job.say(msg.JoinCall(0, 4))
    job.at(BARRIER_S)
    (told,) = job.say(msg.JoinCall(1, 4))
    assert "3 of 4 ranks did not come" in told.message.text

    job = Job(1).begin()
    job.say(msg.Done(0, 0, active=True))
    (told,) = job.say(msg.JoinCall(0, 1), "z")
    assert "over: all ranks have completed" in told.message.text


def test_what_is_said_of_a_refused_process_is_not_about_the_member_with_its_number() -> None:
    """It may end before its guard hears that it was refused."""
    job = Job().begin()
    job.say(msg.JoinCall(3, 4), "z")
    for message in (
        msg.Dead(3, DIED, "exit code 1"),
        msg.RankLeaves(0, 3, fault=True, text="SystemExit"),
        msg.RankLeaves(0, 3, fault=False),
        msg.FaultReported(0, 3, EXCEPTION),
        msg.Done(0, 3, active=True),
    ):
        assert job.say(message, "z") == []
    assert job.lose("z") == []
    assert job.machine.members == {0, 1, 2, 3}
    job.fault(0)
    job.ready(0, 1)
    standing = msg.Standing(3, msg.Numbering(0, 3, 4), msg.Numbering(-1, 3, 4))
    assert job.say(msg.RanksReady(0, (standing,)), "z") == []
    assert job.machine.phase is CallPhase.ABORTING


@pytest.mark.parametrize(
    "lost",
    [
        NodeMessage("a", msg.Dead(1, DIED, "signal 9")),
        NodeMessage("a", msg.RankLeaves(-1, 1, fault=True, text="signal 9")),
        NodeGone("a", "signal 9"),
    ],
)
def test_a_rank_that_is_lost_before_all_have_come_ends_the_call(
    lost: NodeMessage | NodeGone,
) -> None:
    job = Job()
    job.say(msg.JoinCall(1, 4))
    why = failed(job.machine.handle(lost, 1.0))
    assert why.startswith("rank 1 was lost before all 4 ranks had come")
    assert why.endswith("signal 9")


def test_ranks_that_do_not_come_end_the_call_when_the_first_has_waited_for_them() -> None:
    """That may be longer than the wait for ranks to be back after a fault."""
    join_s = 7 * BARRIER_S
    job = Job(4, msg.CoordinatorTimeouts(BARRIER_S, COMPLETION_S, 0.0, SILENCE_S, join_s=join_s))
    job.now = 5.0
    job.say(msg.JoinCall(1, 4))
    job.now = 50.0
    job.say(msg.JoinCall(3, 4))
    for at in (5.0 + BARRIER_S, 5.0 + join_s - 0.1):
        assert job.at(at) == []
    assert "2 of 4 ranks did not come within 700 s (barrier_timeout): ranks 0, 2" in failed(
        job.at(5.0 + join_s)
    )
    assert job.machine.next_deadline() is None


def test_many_missing_ranks_are_counted_and_some_are_named() -> None:
    job = Job(1000)
    job.say(msg.JoinCall(999, 1000), "a")
    job.now = BARRIER_S
    job.say(msg.GuardBeat(0.0), "a")
    why = failed(job.machine.handle(TimePassed(), BARRIER_S))
    assert "999 of 1000" in why
    assert "ranks 0, 1, 2" in why
    assert why.endswith("15 and 983 more")


def test_a_silent_node_ends_a_call_that_forms_once() -> None:
    """Also where the time for all to come is over in the same moment."""
    job = Job(4, msg.CoordinatorTimeouts(SILENCE_S, COMPLETION_S, 0.0, SILENCE_S))
    job.say(msg.JoinCall(0, 4))
    job.now = 20.0
    job.say(msg.JoinCall(2, 4))
    effects = job.silently_at(SILENCE_S)
    assert [type(e) for e in effects] == [msg.Exit, HangUp]
    assert "silent for 30.0 s" in failed(effects[:1])


# ------------------------------------------------------------------ the end
def test_the_call_is_over_when_every_member_is_done() -> None:
    job = Job().begin()
    for rank in (2, 0, 3):
        assert job.say(msg.Done(0, rank, active=True)) == []
    assert job.say(msg.Done(0, 1, active=True)) == [msg.Exit(finished=True)]
    assert job.machine.phase is CallPhase.OVER
    assert job.machine.next_deadline() is None


def test_a_rank_is_done_once_and_in_this_epoch() -> None:
    job = Job(2).begin()
    assert job.say(msg.Done(0, 0, active=True)) == []
    assert job.say(msg.Done(0, 0, active=True)) == [], "said twice"
    assert job.say(msg.Done(1, 1, active=True)) == [], "of another epoch"
    assert job.say(msg.Done(-1, 1, active=True)) == []
    assert job.say(msg.Done(0, 7, active=True), "a") == [], "of nobody"
    assert job.say(msg.Done(0, 1, active=True)) == [msg.Exit(finished=True)]


def test_nothing_is_done_while_an_epoch_is_left() -> None:
    job = Job(2).begin()
    job.fault(0)
    assert job.say(msg.Done(0, 0, active=True)) + job.say(msg.Done(0, 1, active=True)) == []
    assert job.ready(0) == []
    assert job.machine.phase is CallPhase.ABORTING


def test_nothing_happens_after_the_end() -> None:
    job = Job(2).begin()
    job.say(msg.Done(0, 0, active=True))
    job.say(msg.Done(0, 1, active=True))
    for message in (
        msg.FaultReported(0, 0, EXCEPTION),
        msg.Dead(0, DIED),
        msg.RankLeaves(0, 1, fault=True),
        msg.Done(0, 0, active=True),
        msg.RankReturned(0),
    ):
        assert job.say(message) == []
    assert job.ready(0, 1) == []
    assert job.silently_at(1e9) == []
    assert job.lose("a") == []


def test_a_rank_that_leaves_without_a_fault_before_all_have_come_is_waited_for() -> None:
    """As one that did not come: the time for that ends the call."""
    job = Job(2)
    job.say(msg.JoinCall(0, 2))
    assert job.say(msg.RankLeaves(-1, 0, fault=False)) == []
    assert job.say(msg.JoinCall(1, 2)) == []
    assert "1 of 2 ranks did not come" in failed(job.at(BARRIER_S))


def test_a_beat_comes_back_with_its_own_time_in_every_phase() -> None:
    job = Job(2)
    assert job.say(msg.GuardBeat(1.5), "a") == [Tell("a", msg.Echo(1.5))]
    job.begin()
    job.fault(0)
    assert job.say(msg.GuardBeat(2.5), "a") == [Tell("a", msg.Echo(2.5))]
    job.ready(0, 1)
    job.say(msg.Done(1, 0, active=True))
    job.say(msg.Done(1, 1, active=True))
    assert job.say(msg.GuardBeat(3.5), "a") == [Tell("a", msg.Echo(3.5))]


def test_completion_has_a_deadline_from_the_first_rank_that_completed() -> None:
    job = Job().begin()
    job.at(10.0)
    job.say(msg.Done(0, 0, active=True))
    job.at(20.0)
    job.say(msg.Done(0, 2, active=True))
    assert job.at(10.0 + COMPLETION_S - 0.1) == []
    (told,) = job.at(10.0 + COMPLETION_S)
    assert isinstance(told, msg.AbortEpoch)
    (why,) = told.causes
    assert (why.rank, why.kind) == (1, EXCEPTION)
    assert why.text.startswith("ranks 1, 3 not done 40 s (completion_timeout)")


def test_a_rank_that_had_nothing_to_do_does_not_start_the_completion_timeout() -> None:
    job = Job(2).begin()
    job.say(msg.Done(0, 1, active=False))
    assert job.at(1000.0) == []
    assert job.say(msg.Done(0, 0, active=True)) == [msg.Exit(finished=True)]


def test_the_completion_timeout_of_an_epoch_that_was_left_is_forgotten() -> None:
    job = Job(2).begin()
    job.say(msg.Done(0, 0, active=True))
    job.fault(1)
    job.ready(0, 1)
    assert job.at(COMPLETION_S) == []
    assert job.machine.phase is CallPhase.RUNNING
    job.say(msg.Done(1, 0, active=True))
    assert job.at(2 * COMPLETION_S - 0.1) == [], "counted anew"
    assert len(job.at(2 * COMPLETION_S)) == 1


# ------------------------------------------------------------------ a fault, and back
def test_a_fault_aborts_once_and_the_next_epoch_begins_when_all_are_ready() -> None:
    job = Job().begin()
    assert job.fault(1) == [msg.AbortEpoch(0, (cause(1),))]
    assert job.ready(0, 1) == []
    assert job.ready(2, 3) == [msg.Commit(1, 0, (), (cause(1),))]
    assert job.fault(1, "again") == [msg.AbortEpoch(1, (cause(1, text="again"),))], "causes are new"


@pytest.mark.parametrize(
    ("message", "why", "ranks_left"),
    [
        (
            msg.FaultReported(0, 1, FaultKind.SOFT_TIMEOUT, "t"),
            cause(1, FaultKind.SOFT_TIMEOUT, "t"),
            {0, 1, 2, 3},
        ),
        (msg.RankLeaves(0, 1, fault=True, text="t"), cause(1, LEFT, "t"), {0, 2, 3}),
        (msg.Dead(1, DIED, "t"), cause(1, DIED, "t"), {0, 2, 3}),
        (
            msg.Dead(1, FaultKind.HARD_TIMEOUT, "t"),
            cause(1, FaultKind.HARD_TIMEOUT, "t"),
            {0, 2, 3},
        ),
    ],
)
def test_each_kind_of_fault_interrupts_all_and_keeps_who_can_be_kept(
    message: msg.Up, why: Cause, ranks_left: set[int]
) -> None:
    job = Job().begin()
    assert job.say(message) == [msg.AbortEpoch(0, (why,))]
    assert job.machine.members == ranks_left


def test_two_faults_at_once_are_one_restart_with_both_causes() -> None:
    job = Job().begin()
    job.fault(1)
    assert job.fault(3, "too") == []
    job.ready(0, 1)
    assert job.ready(2, 3) == [msg.Commit(1, 0, (), (cause(1), cause(3, text="too")))]


def test_a_death_comes_first_among_the_causes_though_its_echoes_were_told_before() -> None:
    job = Job().begin()
    echo = "Connection reset by peer"
    job.fault(1, echo)
    job.say(msg.Dead(2, DIED, "signal 9"))
    job.ready(0, 1)
    (told,) = job.ready(3)
    assert told.causes == (cause(2, DIED, "signal 9"), cause(1, text=echo))


def test_a_rank_that_held_up_the_restart_comes_after_what_the_restart_began_with() -> None:
    """An exception, and a rank that did not come back for it and was ended."""
    job = Job().begin()
    job.fault(1, "ValueError: bad batch")
    job.now += 90.0
    job.say(msg.Dead(2, FaultKind.HARD_TIMEOUT, "no progress"))
    job.ready(0, 1)
    (told,) = job.ready(3)
    assert [each.rank for each in told.causes] == [1, 2]


def test_causes_have_an_end() -> None:
    job = Job(2).begin()
    for _ in range(MAX_CAUSES + 10):
        job.fault(0)
    (told,) = job.ready(0, 1)
    assert len(told.causes) == MAX_CAUSES


@pytest.mark.parametrize("epoch", [-1, 0, 2])
def test_a_fault_of_another_epoch_says_nothing_about_this_one(epoch: int) -> None:
    job = Job(2).begin()
    job.fault(0)
    job.ready(0, 1)
    assert job.machine.epoch == 1
    assert job.say(msg.FaultReported(epoch, 0, EXCEPTION, "late")) == []
    assert job.machine.phase is CallPhase.RUNNING


def test_a_fault_of_nobody_is_ignored() -> None:
    job = Job(2).begin()
    assert job.say(msg.FaultReported(0, 9, EXCEPTION), "a") == []
    assert job.say(msg.Dead(9, DIED), "a") == []
    assert job.say(msg.RankLeaves(0, 9, fault=True), "a") == []
    assert job.machine.phase is CallPhase.RUNNING


def test_ready_counts_each_rank_once_and_of_this_epoch_alone() -> None:
    job = Job(2).begin()
    assert job.ready(1) == [], "nobody asked"
    assert job.say(msg.Done(0, 0, active=True)) == [], "that did not count either"
    job.fault(0)
    assert job.ready(0) == []
    assert job.ready(0) == [], "said twice"
    assert job.ready(1, epoch=-1) == [], "of another epoch"
    assert job.ready(1) == [msg.Commit(1, 0, (), (cause(0),))]
    assert job.ready(1, epoch=0) == [], "late"


def test_ready_of_the_last_epoch_does_not_count_for_this_one() -> None:
    job = Job(2).begin()
    for epoch in (1, 2, 3):
        job.now += 1.0
        job.fault(0)
        assert job.ready(0) == []
        job.ready(1)
        assert job.machine.epoch == epoch


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_rank_that_dies_while_all_come_back_is_not_waited_for(is_ready: bool) -> None:
    """Before it is ready, or after: its place is free either way."""
    job = Job().begin()
    job.fault(0)
    job.ready(0, 1)
    if is_ready:
        job.ready(3)
    assert job.say(msg.Dead(3, DIED, "d")) == []
    assert job.ready(2) == [msg.Commit(1, 0, (3,), (cause(0), cause(3, DIED, "d")))]
    assert job.machine.members == {0, 1, 2}


def test_the_death_of_the_last_one_that_was_waited_for_begins_the_next_epoch() -> None:
    job = Job(2).begin()
    job.fault(0)
    job.ready(0)
    assert job.say(msg.Dead(1, DIED, "d")) == [
        msg.Commit(1, 0, (1,), (cause(0), cause(1, DIED, "d")))
    ]


def test_a_rank_that_dies_after_it_was_done_interrupts_all() -> None:
    """Its result is not theirs: all complete together, or none."""
    job = Job().begin()
    job.say(msg.Done(0, 3, active=True))
    assert job.say(msg.Dead(3, DIED, "d")) == [msg.AbortEpoch(0, (cause(3, DIED, "d"),))]
    job.ready(0, 1)
    assert job.ready(2) == [msg.Commit(1, 0, (3,), (cause(3, DIED, "d"),))]


def test_a_rank_that_was_done_has_to_be_done_again_in_the_next_epoch() -> None:
    job = Job(2).begin()
    job.say(msg.Done(0, 0, active=True))
    job.fault(1)
    job.ready(0, 1)
    assert job.say(msg.Done(1, 1, active=True)) == []
    assert job.say(msg.Done(1, 0, active=True)) == [msg.Exit(finished=True)]


def test_a_rank_that_the_assignment_left_out_interrupts_nobody() -> None:
    job = Job(3).begin()
    assert job.say(msg.RankLeaves(0, 2, fault=False)) == []
    assert job.machine.phase is CallPhase.RUNNING
    job.say(msg.Done(0, 0, active=True))
    assert job.say(msg.Done(0, 1, active=True)) == [msg.Exit(finished=True)]


def test_the_leaving_of_the_last_one_that_was_not_done_ends_the_call() -> None:
    job = Job(3).begin()
    job.say(msg.Done(0, 0, active=True))
    job.say(msg.Done(0, 1, active=True))
    assert job.say(msg.RankLeaves(0, 2, fault=False)) == [msg.Exit(finished=True)]


def test_when_no_rank_is_left_the_call_has_failed() -> None:
    job = Job(2).begin()
    job.say(msg.Dead(0, DIED))
    assert failed(job.say(msg.Dead(1, DIED))) == "no rank is left"
    job = Job(2).begin()
    job.say(msg.RankLeaves(0, 0, fault=False))
    assert failed(job.say(msg.RankLeaves(0, 1, fault=False))) == "no rank is left"


# ------------------------------------------------------------------ nodes
def test_a_lost_node_takes_its_ranks_and_each_is_a_cause() -> None:
    job = Job().begin()
    (told,) = job.lose("b")[:1]
    text = "the guard of b is gone: closed"
    assert told == msg.AbortEpoch(0, (cause(2, FaultKind.UNRESPONSIVE, text),))
    (told,) = job.ready(0, 1)
    gone = tuple(cause(rank, FaultKind.UNRESPONSIVE, text) for rank in (2, 3))
    assert told == msg.Commit(1, 0, (2, 3), gone)


def test_a_lost_node_is_lost_once_and_is_not_heard_any_more() -> None:
    job = Job().begin()
    job.lose("b")
    assert job.lose("b") == []
    assert job.ready(2, 3) == []
    assert job.say(msg.GuardBeat(1.0), "b") == []
    assert job.say(msg.JoinCall(2, 4), "b") == []
    assert job.lose("never seen") == []
    assert job.machine.members == {0, 1}


def test_a_node_is_given_up_when_it_was_silent_for_so_long_and_not_before() -> None:
    job = Job().begin()
    job.now = 10.0
    job.say(msg.GuardBeat(10.0), "a")
    assert job.machine.next_deadline() == SILENCE_S
    assert job.silently_at(SILENCE_S - 0.1) == []
    effects = job.silently_at(SILENCE_S)
    assert effects[-1] == HangUp("b")
    assert job.machine.members == {0, 1}
    assert job.silently_at(30.5) == []
    assert job.machine.next_deadline() == min(10.0 + SILENCE_S, SILENCE_S + BARRIER_S)


@pytest.mark.parametrize(
    "message", [msg.GuardBeat(0.0), msg.RankReturned(3), msg.FaultReported(-1, 3, EXCEPTION)]
)
def test_every_message_is_a_sign_of_life(message: msg.Up) -> None:
    job = Job().begin()
    job.now = 20.0
    job.say(message, "b")
    job.say(msg.GuardBeat(20.0), "a")
    assert job.silently_at(SILENCE_S) == []
    assert job.machine.next_deadline() == 20.0 + SILENCE_S


def test_silence_while_all_come_back_is_a_loss_too() -> None:
    job = Job().begin()
    job.fault(0)
    job.now = 20.0
    job.ready(0, 1)
    (told, hang_up) = job.silently_at(SILENCE_S)
    assert isinstance(told, msg.Commit)
    assert told.terminated == (2, 3)
    assert hang_up == HangUp("b")


def test_how_long_a_node_was_silent_is_said() -> None:
    job = Job().begin()
    job.now = 12.0
    job.say(msg.GuardBeat(12.0), "b")
    job.now = 20.0
    job.say(msg.GuardBeat(20.0), "a")
    (told, _) = job.silently_at(12.0 + SILENCE_S)
    assert told.causes[0].text == "the guard of b is gone: silent for 30.0 s"


# ------------------------------------------------------------------ waiting
def test_those_not_back_are_killed_after_each_barrier_timeout() -> None:
    job = Job().begin()
    job.at(7.0)
    job.fault(0)
    job.at(8.0)
    job.ready(0, 1)
    assert job.at(7.0 + BARRIER_S - 0.1) == []
    for round_ in (1, 2):
        assert job.at(7.0 + round_ * BARRIER_S - 0.1) == []
        (told,) = job.at(7.0 + round_ * BARRIER_S)
        assert isinstance(told, msg.KillLateRanks)
        assert (told.epoch, told.ranks) == (0, (2, 3))
        assert "not back 100 s (barrier_timeout) after iteration 0" in told.text
    job.say(msg.Dead(2, FaultKind.HARD_TIMEOUT))
    (told,) = job.say(msg.Dead(3, FaultKind.HARD_TIMEOUT))
    assert isinstance(told, msg.Commit)
    assert job.at(job.now + BARRIER_S) == [HangUp("b")], "it had no ranks, and nobody else is late"


def test_last_call_wait_is_a_least_time_from_the_first_fault() -> None:
    job = Job(2, msg.CoordinatorTimeouts(BARRIER_S, COMPLETION_S, 5.0, SILENCE_S)).begin()
    job.at(1.0)
    job.fault(0)
    job.at(3.0)
    job.fault(1)
    assert job.ready(0, 1) == []
    assert job.machine.next_deadline() == 6.0
    assert job.at(5.9) == []
    (told,) = job.at(6.0)
    assert isinstance(told, msg.Commit)


def test_a_last_call_wait_longer_than_the_barrier_kills_nobody() -> None:
    job = Job(2, msg.CoordinatorTimeouts(10.0, COMPLETION_S, 25.0, 1000.0)).begin()
    job.fault(0)
    job.ready(0, 1)
    assert [job.at(10.0), job.at(20.0)] == [[], []]
    assert len(job.at(25.0)) == 1


# ------------------------------------------------------------------ faults at the start
def fail_at_start(job: Job, rank: int = 1, text: str = "no route") -> list[Effect]:
    return job.say(msg.FaultReported(job.machine.epoch, rank, EXCEPTION, text, at_start=True))


def restart(job: Job) -> float:
    """All are ready after a fault; how long the next epoch waits then, in seconds."""
    ready_at, epoch = job.now, job.machine.epoch
    for rank in job.machine.members:
        job.ready(rank, epoch=epoch)
    for _ in range(9):  # a node may be silent: that deadline comes, and moves
        deadline = job.machine.next_deadline()
        if job.machine.epoch > epoch or deadline is None:
            break
        job.at(deadline)
    assert job.machine.epoch == epoch + 1
    return job.now - ready_at


def test_faults_at_the_start_wait_longer_each_time_and_then_end_the_call() -> None:
    """12 restarts by default, which take two minutes; 2,392 in 20 s have been seen."""
    job = Job(2, msg.CoordinatorTimeouts(BARRIER_S, COMPLETION_S, 0.0, SILENCE_S)).begin()
    waits = []
    for _ in range(12):
        fail_at_start(job)
        waits.append(restart(job))
    assert waits == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])

    why = failed(fail_at_start(job))

    assert "13 iterations in a row" in why
    assert "max_start_faults=12" in why
    assert "EXCEPTION of rank 1: no route" in why
    assert job.machine.phase is CallPhase.OVER


@pytest.mark.parametrize("fails", ["in the function", "by a death"])
def test_a_fault_of_another_kind_ends_the_row(fails: str) -> None:
    """The function ran: what it does is the user's business, as often as it likes."""
    job = Job(4, giving_up_after(2)).begin()
    for _ in range(2):
        fail_at_start(job, rank=0)
        restart(job)
        job.now += 1.0
    if fails == "in the function":
        job.fault(0)
    else:
        job.say(msg.Dead(3, FaultKind.TERMINATED, "killed"))
    assert restart(job) == 0
    fail_at_start(job, rank=0)
    assert restart(job) == 0


def test_a_function_that_fails_at_once_is_called_again_without_end_and_ever_more_rarely() -> None:
    """One that hardly runs would fill the log, and take a core from the others."""
    job = Job(2, msg.CoordinatorTimeouts(BARRIER_S, COMPLETION_S, 0.0, SILENCE_S)).begin()
    waits = []
    for _ in range(12):
        job.fault(1)
        waits.append(restart(job))
    assert waits == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])
    job.now += 1.01 * AT_ONCE_S
    job.fault(1)
    assert restart(job) == 0, "it has run"


def test_a_fault_at_the_start_beside_another_does_not_count() -> None:
    """The first fault explains; the others may be its echoes."""
    job = Job(2, giving_up_after(0)).begin()
    job.fault(0)
    fail_at_start(job)
    assert restart(job) == 0


def test_without_a_limit_on_faults_at_the_start_there_is_no_wait_either() -> None:
    job = Job(2, giving_up_after(None)).begin()
    for _ in range(25):
        fail_at_start(job)
        assert restart(job) == 0
        job.fault(0)
        assert restart(job) == 0


def test_all_are_told_how_often_the_start_has_failed() -> None:
    job = Job(2).begin()
    fail_at_start(job)
    restart(job)
    fail_at_start(job)
    job.ready(0, 1)
    (told,) = job.at(job.now + 0.1)
    assert isinstance(told, msg.Commit)
    assert told.start_faults == 2


def test_before_anybody_came_there_is_no_deadline() -> None:
    machine = Coordinator(TIMEOUTS)
    assert machine.next_deadline() is None
    assert machine.handle(TimePassed(), 1e9) == []


@pytest.mark.parametrize(
    ("prepare", "deadline"),
    [
        (lambda job: None, SILENCE_S),
        (lambda job: (job.at(29.0), job.silently_at(30.0)), 29.0 + SILENCE_S),
        (lambda job: (job.at(1.0), job.fault(0), job.at(90.0)), 1.0 + BARRIER_S),
        (
            lambda job: (job.at(1.0), job.say(msg.Done(0, 0, active=True)), job.at(35.0)),
            1.0 + COMPLETION_S,
        ),
    ],
)
def test_the_next_deadline_is_the_earliest(prepare, deadline: float) -> None:
    job = Job(2).begin()
    prepare(job)
    assert job.machine.next_deadline() == deadline


# ------------------------------------------------------------------ places
def standing(rank: int, assigned: tuple[int, int, int], base: tuple[int, int, int]) -> msg.Standing:
    return msg.Standing(rank, msg.Numbering(*assigned), msg.Numbering(*base))


def committed(job: Job, *standings: msg.Standing) -> list[Effect]:
    effects: list[Effect] = []
    for one in standings:
        effects = job.say(msg.RanksReady(job.machine.epoch, (one,)))
    return effects


def test_the_places_that_nobody_holds_are_free_whoever_was_born_with_them() -> None:
    job = Job(3).begin()
    job.say(msg.Dead(0, DIED, "d"))
    assert job.ready(0) == [], "dead, and told as ready before"
    committed(job, standing(1, (0, 1, 3), (-1, 1, 3)), standing(2, (0, 2, 3), (-1, 2, 3)))
    job.now += 1.0
    job.fault(1)
    told = committed(job, standing(1, (1, 0, 2), (0, 1, 3)), standing(2, (1, 1, 2), (0, 2, 3)))
    assert told == [msg.Commit(2, 1, (), (cause(1),))]


def test_where_some_had_no_assignment_yet_all_go_back_to_the_one_before() -> None:
    job = Job(3).begin()
    job.say(msg.Dead(0, DIED, "d"))
    committed(job, standing(1, (0, 1, 3), (-1, 1, 3)), standing(2, (0, 2, 3), (-1, 2, 3)))
    job.now += 1.0
    job.fault(1)
    told = committed(job, standing(1, (1, 0, 2), (0, 1, 3)), standing(2, (0, 2, 3), (0, 2, 3)))
    assert told == [msg.Commit(2, 0, (0,), (cause(1),))]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ((0, 0, 2), "rank 1 is 0 of 2 in iteration 0, and so is rank 0"),
        ((0, 1, 3), "rank 0 has a world of 2 in iteration 0, rank 1 one of 3"),
        ((0, 2, 2), "rank 1 is 2 of 2 in iteration 0, which does not exist"),
        ((0, -1, 2), "rank 1 is -1 of 2 in iteration 0, which does not exist"),
    ],
)
def test_assignments_that_differ_end_the_call_for_all_with_both_named(
    second: tuple[int, int, int], why: str
) -> None:
    job = Job(2).begin()
    job.fault(0)
    told = committed(job, standing(0, (0, 0, 2), (-1, 0, 2)), standing(1, second, (-1, 1, 2)))
    assert why in failed(told)
    assert "rank_assignment must give every rank the same answer" in failed(told)


def test_a_base_that_is_not_the_one_all_started_from_ends_the_call() -> None:
    job = Job(2).begin()
    job.fault(0)
    told = committed(job, standing(0, (-1, 0, 2), (-1, 0, 2)), standing(1, (-5, 1, 2), (-5, 1, 2)))
    assert "rank 1 one of 2 in iteration -5" in failed(told)
