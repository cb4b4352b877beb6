"""A node guard's decisions, one by one: relaying, hangs, killing, fencing."""

from __future__ import annotations

import pytest

from holdfast.base.pure import codec
from holdfast.base.pure.common_events import TimePassed
from holdfast.base.pure.kill_ladder import EVIDENCE_S, SIGCONT, SIGKILL, SIGTERM, UNKILLABLE_S
from holdfast.evidence.pure.evidence import RankDigest
from holdfast.inplace.pure import messages as msg
from holdfast.inplace.pure.guard import (
    CoordinatorGone,
    Effect,
    Guard,
    GuardQuits,
    MarksRead,
    RankEnded,
    RankEvidenceTaken,
    RankMessage,
    ReadPage,
    Renew,
    Signal,
    TakeRankEvidence,
    TellRank,
)
from holdfast.inplace.pure.job_calls import (
    CAUSES_MAX,
    CallBegan,
    CallEnded,
    Cause,
    EndsHungRank,
    FaultKind,
    OfGuard,
    RestartedInPlace,
)
from holdfast.inplace.pure.timing import (
    FENCE_SHARE,
    LEASE_SHARE,
    moment_s,
    rank_lease_until,
)
from holdfast.net.pure.frames import encode
from holdfast.page.pure.clocks import MainThreadMarks

SOFT_S, HARD_S, GRACE_S, BEAT_S, SILENCE_S = 60.0, 90.0, 5.0, 1e6, 1e7
"""Beats and the lease are out of the way where they are not what is tested."""
LIMITS = msg.CallTimeouts(SOFT_S, HARD_S, GRACE_S, BEAT_S, SILENCE_S)
QUICK_BEATS = msg.CallTimeouts(SOFT_S, HARD_S, GRACE_S, 1.0, 30.0)
FROM = 1000.0
"""When the first epoch begins."""
RUNS = msg.Commit(0, -1, (), ())
ABORT = msg.AbortEpoch(0, (Cause(9, FaultKind.EXCEPTION, "boom"),))
FAILED = msg.Exit(finished=False, text="no rank is left")


class Node:
    """A guard with ranks 2 and 3, on a clock."""

    def __init__(self, limits: msg.CallTimeouts = LIMITS, ranks: tuple[int, ...] = (2, 3)) -> None:
        self.now = FROM
        self.guard = Guard(limits, cycle=5)
        self.renewed: list[float | None] = []
        self.restarts: list[RestartedInPlace] = []
        self.hung: list[EndsHungRank] = []
        self.calls: list[CallBegan | CallEnded] = []
        for rank in ranks:
            self.but_renewals(self.guard.handle(msg.JoinCall(rank, 4), self.now))

    def but_renewals(self, effects: list[Effect]) -> list[Effect]:
        """What else there is; renewals of the lease, and what the launcher is told, are kept."""
        effects = self.but_launcher(effects)
        self.renewed += [
            None if e.until is None else e.until - FROM for e in effects if isinstance(e, Renew)
        ]
        return [effect for effect in effects if not isinstance(effect, Renew)]

    def but_launcher(self, effects: list[Effect]) -> list[Effect]:
        """What else there is than what the launcher is told, which is kept."""
        told = [effect for effect in effects if isinstance(effect, OfGuard)]
        self.restarts += [it for it in told if isinstance(it, RestartedInPlace)]
        self.hung += [it for it in told if isinstance(it, EndsHungRank)]
        self.calls += [it for it in told if isinstance(it, (CallBegan, CallEnded))]
        return [effect for effect in effects if not isinstance(effect, OfGuard)]

    def evidence(self, rank: int, seen: RankDigest | None = None) -> list[Effect]:
        return self.but_launcher(self.guard.handle(RankEvidenceTaken(rank, seen), self.now))

    def down(self, message: msg.Down) -> list[Effect]:
        return self.but_renewals(self.guard.handle(message, self.now))

    def up(self, rank: int, message: msg.Up) -> list[Effect]:
        return self.guard.handle(RankMessage(rank, message), self.now)

    def gone(self, rank: int, how: str = "signal 9") -> list[Effect]:
        return self.guard.handle(RankEnded(rank, how), self.now)

    def at(self, after_s: float) -> list[Effect]:
        """Time passes, to so long after the beginning of the epoch."""
        self.now = FROM + after_s
        return self.but_launcher(self.guard.handle(TimePassed(), self.now))

    def looked(self, rank: int, last: float, **marks: float | bool) -> list[Effect]:
        """The page of a rank, whose main thread and watcher made their last marks then."""
        times = {"automatic": FROM + last, "thread": self.now}
        times |= {key: FROM + at for key, at in marks.items() if key in ("manual", "thread")}
        flags = {key: bool(at) for key, at in marks.items() if key in ("unlimited", "waits")}
        return self.guard.handle(MarksRead(rank, MainThreadMarks(**times, **flags)), self.now)

    def ready(self, rank: int, epoch: int = 0) -> list[Effect]:
        return self.up(rank, msg.RanksReady(epoch, (standing(rank),)))

    @property
    def deadline_s(self) -> float | None:
        """After the beginning."""
        at = self.guard.next_deadline()
        return None if at is None else at - FROM


def standing(rank: int) -> msg.Standing:
    return msg.Standing(rank, msg.Numbering(0, rank, 4), msg.Numbering(-1, rank, 4))


def running(limits: msg.CallTimeouts = LIMITS, ranks: tuple[int, ...] = (2, 3)) -> Node:
    node = Node(limits, ranks)
    node.down(RUNS)
    return node


def condemned(rank: int = 2) -> Node:
    """It has shown nothing for the hard limit; evidence is being taken."""
    node = running()
    node.at(HARD_S)
    node.looked(rank, 0.0)
    return node


def told(message: msg.Down, *ranks: int) -> list[Effect]:
    return [TellRank(rank, message) for rank in ranks or (2, 3)]


def text_of(effects: list[Effect]) -> str:
    (effect,) = effects
    assert isinstance(effect, msg.FaultReported | msg.Dead)
    return effect.text


# ------------------------------------------------------------------ relaying up
def test_a_rank_that_comes_is_told_to_the_coordinator() -> None:
    guard = Guard(LIMITS)
    assert guard.next_deadline() is None
    renewed, told_up = guard.handle(msg.JoinCall(2, 4), 0.0)
    assert renewed == Renew(rank_lease_until(0.0, SILENCE_S)), "first"
    assert told_up == msg.JoinCall(2, 4)
    assert guard.ranks == {2}


def test_a_second_process_with_the_number_of_another_is_refused() -> None:
    node = Node()
    (refused,) = node.guard.handle(msg.JoinCall(2, 4), FROM)
    assert refused == TellRank(2, msg.RankRefused(2, "there are two processes with RANK 2"))


@pytest.mark.parametrize("end", [FAILED, CoordinatorGone("reset")])
def test_a_rank_that_comes_after_the_end_is_refused(end: msg.Exit | CoordinatorGone) -> None:
    node = Node()
    node.guard.handle(end, FROM)
    (refused,) = node.guard.handle(msg.JoinCall(1, 4), FROM)
    assert refused == TellRank(1, msg.RankRefused(1, "the call has ended on this node"))


@pytest.mark.parametrize(
    "message",
    [
        msg.FaultReported(0, 2, FaultKind.EXCEPTION, "boom"),
        msg.Done(0, 2, active=True),
        msg.RankLeaves(0, 2, True, "x"),
    ],
)
def test_what_ranks_say_goes_up(message: msg.Up) -> None:
    assert running().up(2, message) == [message]


@pytest.mark.parametrize(
    "message", [msg.JoinCall(2, 4), msg.Dead(2, FaultKind.TERMINATED), msg.GuardBeat(1.0)]
)
def test_what_only_guards_say_is_not_taken_from_a_rank(message: msg.Up) -> None:
    assert running().up(2, message) == []


def test_nothing_is_taken_from_a_stranger_or_from_who_has_left() -> None:
    node = running()
    assert node.up(9, msg.FaultReported(0, 9, FaultKind.EXCEPTION)) == []
    assert node.gone(9) == []
    node.up(2, msg.RankLeaves(0, 2, fault=True, text="x"))
    assert node.up(2, msg.FaultReported(0, 2, FaultKind.EXCEPTION)) == []
    assert node.up(2, msg.RankLeaves(0, 2, fault=True, text="x")) == []
    assert node.guard.handle(MarksRead(9, MainThreadMarks(0.0)), FROM + 1e3) == []
    assert node.evidence(9) == []


def test_ready_goes_up_once_for_the_node_with_the_last_of_its_ranks() -> None:
    node = running()
    assert node.ready(2) == [], "nobody asked"
    node.down(ABORT)
    assert node.ready(3) == []
    assert node.ready(3) == [], "said twice"
    assert node.ready(2, epoch=-1) == [], "of another epoch"
    assert node.ready(2) == [msg.RanksReady(0, (standing(2), standing(3)))]
    assert node.ready(2) == []


def test_ready_counts_where_the_rank_was_asked_for_it_and_once() -> None:
    node = running(ranks=(2,))
    assert node.ready(2) == []
    node.down(ABORT)
    assert node.ready(2) == [msg.RanksReady(0, (standing(2),))]
    assert node.ready(2) == []


def test_a_word_that_crossed_the_abort_does_not_make_a_rank_ready_or_free_of_limits() -> None:
    node = running(ranks=(2,))
    node.down(ABORT)
    done = msg.Done(0, 2, active=True)
    assert node.up(2, done) == [done]
    assert node.at(SOFT_S) == [ReadPage(2)]
    assert node.ready(2) == [msg.RanksReady(0, (standing(2),))]


@pytest.mark.parametrize("how", ["dies", "leaves"])
def test_who_goes_while_the_others_are_ready_is_not_waited_for(how: str) -> None:
    node = running()
    node.down(ABORT)
    node.ready(3)
    said = msg.RanksReady(0, (standing(3),))
    if how == "dies":
        assert node.gone(2) == [
            msg.Dead(2, FaultKind.TERMINATED, "signal 9"),
            said,
        ]
    else:
        leave = msg.RankLeaves(0, 2, fault=True, text="x")
        assert node.up(2, leave) == [leave, said]
        assert node.gone(2) == [], "it left before, and is not told again"


def test_ready_of_one_epoch_does_not_count_in_the_next() -> None:
    node = running()
    node.down(ABORT)
    node.ready(2)
    node.ready(3)
    node.down(msg.Commit(1, 0, (), ()))
    node.down(msg.AbortEpoch(1, ()))
    assert node.ready(2, epoch=1) == []
    assert node.ready(3, epoch=1) == [msg.RanksReady(1, (standing(2), standing(3)))]


def test_half_a_node_that_was_ready_is_not_ready_in_the_next_epoch() -> None:
    node = running()
    node.down(ABORT)
    node.ready(2)
    node.down(msg.Commit(1, 0, (), ()))
    node.down(msg.AbortEpoch(1, ()))
    assert node.ready(3, epoch=1) == []


def test_a_rank_that_dies_after_ready_went_up_does_not_send_it_again() -> None:
    node = running()
    node.down(ABORT)
    node.ready(2)
    node.ready(3)
    assert node.gone(3) == [msg.Dead(3, FaultKind.TERMINATED, "signal 9")]


def test_a_rank_that_dies_after_it_was_ready_is_told_as_dead() -> None:
    node = running()
    node.down(ABORT)
    node.ready(2)
    assert node.gone(2) == [msg.Dead(2, FaultKind.TERMINATED, "signal 9")]


def test_a_rank_that_dies_before_the_first_epoch_is_told_as_dead() -> None:
    assert Node().gone(2) == [msg.Dead(2, FaultKind.TERMINATED, "signal 9")]


def test_a_rank_that_dies_after_it_was_done_is_told_as_dead() -> None:
    node = running()
    node.up(2, msg.Done(0, 2, active=True))
    assert node.gone(2) == [msg.Dead(2, FaultKind.TERMINATED, "signal 9")]
    assert node.gone(2) == [], "once"


def test_the_guard_quits_with_its_last_rank() -> None:
    node = running()
    node.down(msg.Exit(finished=True))
    assert node.up(2, msg.RankReturned(2)) == []
    assert node.guard.ranks == {3}
    assert node.up(3, msg.RankReturned(3)) == [GuardQuits()]
    assert node.deadline_s is None

    node = running()
    node.gone(2)
    assert node.gone(3) == [
        msg.Dead(3, FaultKind.TERMINATED, "signal 9"),
        GuardQuits(),
    ]
    assert node.deadline_s is None
    assert node.at(1e8) == []
    (refused,) = node.guard.handle(msg.JoinCall(1, 4), FROM)
    assert isinstance(refused, TellRank), "there is no guard any more"


def test_a_process_that_has_left_keeps_the_guard_until_it_ends() -> None:
    node = running(ranks=(2,))
    node.up(2, msg.RankLeaves(0, 2, fault=True, text="x"))
    assert node.guard.ranks == frozenset()
    assert node.gone(2) == [GuardQuits()]


def test_who_ends_after_the_call_is_no_death() -> None:
    node = running()
    node.down(msg.Exit(finished=True))
    assert node.gone(2) == []


# ------------------------------------------------------------------ relaying down
@pytest.mark.parametrize("message", [RUNS, msg.Exit(finished=True), FAILED])
def test_what_the_coordinator_says_goes_to_all_ranks(message: msg.Down) -> None:
    assert Node().down(message) == told(message)


def test_an_abort_goes_to_all_ranks_and_to_those_who_leave() -> None:
    """They wait for it, to free their own collectives."""
    node = running()
    node.up(2, msg.RankLeaves(0, 2, fault=True, text="x"))
    assert node.down(ABORT) == told(ABORT)


@pytest.mark.parametrize("epoch", [-1, 1])
def test_an_abort_of_another_epoch_goes_nowhere(epoch: int) -> None:
    assert running().down(msg.AbortEpoch(epoch, ())) == []


def test_a_refusal_goes_to_the_one_it_names_and_to_no_other() -> None:
    node = Node()
    refused = msg.RankRefused(2, "WORLD_SIZE")
    assert node.down(refused) == [TellRank(2, refused)]
    assert node.guard.ranks == {3}
    assert node.down(msg.RankRefused(9, "")) == []
    assert node.gone(2) == [], "it never was a member"


def test_an_answer_to_a_beat_goes_to_no_rank() -> None:
    assert running().down(msg.Echo(FROM)) == []


@pytest.mark.parametrize("message", [RUNS, ABORT, FAILED, msg.KillLateRanks(0, (2,), "late")])
def test_nothing_is_heard_after_the_end(message: msg.Down) -> None:
    node = running()
    node.down(msg.Exit(finished=True))
    assert node.down(message) == []
    node = running()
    node.guard.handle(CoordinatorGone("reset"), FROM)
    assert node.down(message) == []


# ------------------------------------------------------------------ hangs: the soft limit
def test_a_page_is_read_when_a_limit_could_run_out_and_not_before() -> None:
    node = running()
    assert node.deadline_s == SOFT_S
    assert node.at(SOFT_S - 0.1) == []
    assert node.at(SOFT_S) == [ReadPage(2), ReadPage(3)]


def test_progress_moves_the_limit_on() -> None:
    node = running(ranks=(2,))
    node.at(SOFT_S)
    assert node.looked(2, 40.0) == []
    assert node.deadline_s == 40.0 + SOFT_S


def test_no_progress_for_the_soft_limit_is_told_once_and_then_the_hard_limit_counts() -> None:
    node = running(ranks=(2,))
    node.at(SOFT_S)
    why = text_of(node.looked(2, 0.0))
    assert why.startswith("no progress of its main thread for 60.0 s; it can be interrupted")
    assert why.endswith("(soft_timeout 60 s)")
    assert node.deadline_s == HARD_S
    node.at(SOFT_S + 10)
    assert node.looked(2, 0.0) == []
    assert node.looked(2, SOFT_S - 20) == [], "told once per epoch"


def test_a_hang_of_the_next_epoch_is_told_again() -> None:
    node = running(ranks=(2,))
    node.at(SOFT_S)
    node.looked(2, 0.0)
    node.down(ABORT)
    node.ready(2)
    node.down(msg.Commit(1, 0, (), ()))
    assert node.deadline_s == 2 * SOFT_S
    node.at(2 * SOFT_S)
    (effect,) = node.looked(2, 0.0)
    assert isinstance(effect, msg.FaultReported)
    assert (effect.epoch, effect.kind) == (1, FaultKind.SOFT_TIMEOUT)


def test_the_clock_starts_anew_with_each_epoch() -> None:
    """Whatever was marked before, and whenever."""
    node = Node(ranks=(2,))
    node.now = FROM + 500
    node.down(RUNS)
    assert node.deadline_s == 500 + SOFT_S
    node.at(500 + SOFT_S - 1)
    assert node.looked(2, 0.0) == []
    assert node.deadline_s == 500 + SOFT_S


def test_ping_counts_as_well_once_it_was_called_in_this_epoch() -> None:
    node = running(ranks=(2,))
    node.at(SOFT_S + 10)
    assert node.looked(2, SOFT_S + 9, manual=-5) == [], "of an epoch before"
    assert "no progress of ping() for 60.0 s" in text_of(node.looked(2, SOFT_S + 9, manual=10))


def test_ping_does_not_excuse_a_main_thread_that_stands() -> None:
    node = running(ranks=(2,))
    node.at(SOFT_S)
    assert "its main thread" in text_of(node.looked(2, 0.0, manual=SOFT_S - 1))


def test_the_text_says_whether_it_can_be_interrupted() -> None:
    node = running(ranks=(2,))
    node.at(SOFT_S)
    held = "the interpreter is held or the process is stopped"
    assert held in text_of(node.looked(2, 0.0, thread=0.0))
    node = running(ranks=(2,))
    node.at(SOFT_S)
    assert "it can be interrupted" in text_of(node.looked(2, 0.0, thread=SOFT_S / 2))


def test_a_rank_that_waits_for_others_has_a_little_longer_once() -> None:
    """Who keeps it waiting is as late, and is the one to be named."""
    node = running(ranks=(2,))
    node.at(SOFT_S)
    assert node.looked(2, 0.0, waits=True) == []
    assert node.deadline_s == SOFT_S + moment_s(SOFT_S)
    node.at(SOFT_S + moment_s(SOFT_S))
    assert "it waits for other ranks or for its device" in text_of(node.looked(2, 0.0, waits=True))


def test_that_is_short_where_the_limit_is() -> None:
    node = running(msg.CallTimeouts(0.4, 5.0, GRACE_S, BEAT_S, SILENCE_S), ranks=(2,))
    node.at(0.4)
    node.looked(2, 0.0, waits=True)
    assert node.deadline_s == pytest.approx(0.5)


def test_who_holds_the_interpreter_is_not_spared_for_waiting() -> None:
    node = running(ranks=(2,))
    node.at(SOFT_S)
    assert "held" in text_of(node.looked(2, 0.0, thread=0.0, waits=True))


def test_a_function_may_switch_its_limits_off_and_has_the_whole_limit_afterwards() -> None:
    node = running(ranks=(2,))
    node.at(HARD_S + 10)
    assert node.looked(2, 0.0, unlimited=True) == []
    assert node.deadline_s == HARD_S + 10 + SOFT_S
    node.at(HARD_S + 10 + SOFT_S - 1)
    assert node.looked(2, 0.0) == []
    assert node.deadline_s == HARD_S + 10 + SOFT_S


@pytest.mark.parametrize(
    "message",
    [
        msg.FaultReported(0, 2, FaultKind.EXCEPTION, "boom"),
        msg.Done(0, 2, active=True),
        msg.RankLeaves(0, 2, True, "x"),
    ],
)
def test_a_rank_in_our_own_code_has_no_limits(message: msg.Up) -> None:
    node = running(ranks=(2,))
    node.up(2, message)
    assert node.at(HARD_S) == []
    assert node.looked(2, 0.0) == []


def test_a_late_word_of_another_epoch_does_not_switch_the_limits_off() -> None:
    node = running(ranks=(2,))
    node.up(2, msg.Done(-1, 2, active=True))
    assert node.at(SOFT_S) == [ReadPage(2)]


def test_before_the_first_epoch_there_are_no_limits() -> None:
    assert Node().at(HARD_S) == []


# ------------------------------------------------------------------ hangs: the hard limit
def test_no_progress_for_the_hard_limit_asks_for_evidence_and_signals_nobody_yet() -> None:
    node = running(ranks=(2,))
    node.at(HARD_S)
    (effect,) = node.looked(2, 0.0)
    assert isinstance(effect, TakeRankEvidence)
    assert (effect.rank, effect.until) == (2, FROM + HARD_S + EVIDENCE_S)
    assert effect.why.endswith("(hard_timeout 90 s)")
    assert node.looked(2, 0.0) == [], "asked once"


def test_just_before_the_hard_limit_nobody_is_condemned() -> None:
    node = running(ranks=(2,))
    node.at(HARD_S - 0.1)
    (effect,) = node.looked(2, 0.0)
    assert isinstance(effect, msg.FaultReported), "only the soft limit has run out"
    assert node.deadline_s == HARD_S


@pytest.mark.parametrize("evidence", [True, False], ids=["taken", "takes too long"])
def test_the_order_is_evidence_sigterm_sigkill_and_the_death_is_told(evidence: bool) -> None:
    node = condemned()
    node.up(3, msg.Done(0, 3, active=True))
    if evidence:
        signals = node.evidence(2)
        term_s = HARD_S
    else:
        assert node.at(HARD_S + EVIDENCE_S - 0.1) == []
        assert node.deadline_s == HARD_S + EVIDENCE_S
        signals = node.at(HARD_S + EVIDENCE_S)
        term_s = HARD_S + EVIDENCE_S
    (term,) = signals
    assert isinstance(term, Signal)
    assert (term.rank, term.signals) == (2, (SIGCONT, SIGTERM))
    assert "hard_timeout" in term.why
    assert node.evidence(2) == [], "late"
    assert node.deadline_s == term_s + GRACE_S
    assert node.at(term_s + GRACE_S - 0.1) == []
    (kill,) = node.at(term_s + GRACE_S)
    assert isinstance(kill, Signal)
    assert (kill.rank, kill.signals, kill.why) == (2, (SIGKILL,), term.why)
    assert node.gone(2) == [msg.Dead(2, FaultKind.HARD_TIMEOUT, term.why)]


def test_what_a_rank_showed_that_is_ended_for_a_hang_is_told_to_all() -> None:
    """The launcher hears of it before the signal: it sees the end, and not who has ended it."""
    node = condemned()
    seen = RankDigest(7, "n", pid=42, state="R", place="load data.py:4")
    told, term = node.guard.handle(RankEvidenceTaken(2, seen), node.now)
    assert isinstance(term, Signal)
    assert told == EndsHungRank(2, term.why, seen)
    assert Signal(2, (SIGKILL,), term.why) in node.at(HARD_S + GRACE_S)
    assert node.hung == [], "once"
    dead = msg.Dead(2, FaultKind.HARD_TIMEOUT, term.why, seen)
    assert node.gone(2)[0] == dead


def test_a_rank_that_outlives_sigkill_is_given_up_so_that_the_others_go_on() -> None:
    node = condemned()
    node.up(3, msg.Done(0, 3, active=True))
    node.evidence(2)
    node.at(HARD_S + GRACE_S)
    assert node.deadline_s == HARD_S + GRACE_S + UNKILLABLE_S
    assert node.down(ABORT) == told(ABORT, 3), "it is not spoken to any more"
    assert node.at(HARD_S + GRACE_S + UNKILLABLE_S - 0.1) == []
    effects = node.at(HARD_S + GRACE_S + UNKILLABLE_S)
    assert text_of(effects[:1]).endswith("it cannot be killed")
    assert node.gone(2) == []
    assert node.guard.ranks == {3}


@pytest.mark.parametrize(
    "message",
    [
        msg.FaultReported(0, 2, FaultKind.EXCEPTION, "boom"),
        msg.Done(0, 2, active=True),
        msg.RankLeaves(0, 2, True, "x"),
    ],
)
def test_a_rank_that_comes_back_before_it_was_signalled_is_spared(message: msg.Up) -> None:
    node = condemned()
    node.up(2, message)
    assert node.evidence(2) == []
    assert node.at(HARD_S + EVIDENCE_S) == [ReadPage(3)]
    node.up(3, msg.Done(0, 3, active=True))
    assert node.deadline_s == BEAT_S, "there is nothing left to wake for"


def test_a_rank_that_was_signalled_is_not_spared_any_more() -> None:
    """It has had SIGTERM: who knows what of it is left."""
    node = condemned()
    node.evidence(2)
    node.up(2, msg.Done(0, 2, active=True))
    effects = node.at(HARD_S + GRACE_S)
    assert [e.signals for e in effects if isinstance(e, Signal)] == [(SIGKILL,)]
    assert text_of(node.gone(2)).endswith("(hard_timeout 90 s)")


def test_a_last_word_after_sigkill_does_not_change_what_it_died_of() -> None:
    node = condemned()
    node.evidence(2)
    node.at(HARD_S + GRACE_S)
    node.up(2, msg.Done(0, 2, active=True))
    assert text_of(node.gone(2)).endswith("(hard_timeout 90 s)")


def test_a_rank_that_left_and_then_cannot_be_killed_is_not_told_as_dead() -> None:
    """It said that it goes; the others went on then."""
    node = condemned()
    node.evidence(2)
    node.up(3, msg.Done(0, 3, active=True))
    node.up(2, msg.RankLeaves(0, 2, fault=True, text="SystemExit"))
    node.at(HARD_S + GRACE_S)
    assert node.at(HARD_S + GRACE_S + UNKILLABLE_S) == []
    assert node.deadline_s == BEAT_S


def test_a_rank_that_was_signalled_is_not_looked_at_any_more_though_the_others_go_on() -> None:
    """Where the grace is longer than the limits: waking for a look at it would not end."""
    node = running(msg.CallTimeouts(1.0, 2.0, 50.0, BEAT_S, SILENCE_S), ranks=(2,))
    node.at(2.0)
    node.looked(2, 0.0)
    node.evidence(2)
    node.up(2, msg.Done(0, 2, active=True))
    node.down(ABORT)
    assert node.deadline_s == 52.0
    assert node.ready(2) == [msg.RanksReady(0, (standing(2),))]
    node.down(msg.Commit(1, 0, (), ()))
    assert node.deadline_s == 52.0
    assert node.at(10.0) == []


def test_a_rank_that_dies_while_evidence_is_taken_is_told_with_its_verdict() -> None:
    node = condemned()
    (effect,) = node.gone(2)
    assert effect.kind is FaultKind.HARD_TIMEOUT
    assert node.evidence(2) == []


def test_a_rank_that_was_spared_is_dead_for_another_reason_later() -> None:
    node = condemned()
    node.up(2, msg.Done(0, 2, active=True))
    assert node.gone(2) == [msg.Dead(2, FaultKind.TERMINATED, "signal 9")]


# ------------------------------------------------------------------ coming back
def test_unwinding_has_the_hard_limit_and_no_soft_one() -> None:
    node = running(ranks=(2,))
    node.at(SOFT_S - 10)
    node.down(ABORT)
    node.at(SOFT_S)
    assert node.looked(2, 0.0) == []
    assert node.deadline_s == HARD_S
    node.at(HARD_S)
    (effect,) = node.looked(2, 0.0)
    assert isinstance(effect, TakeRankEvidence)


def test_a_rank_that_waited_in_our_own_code_has_the_hard_limit_from_the_abort() -> None:
    """It made no marks meanwhile."""
    node = running(ranks=(2,))
    node.up(2, msg.Done(0, 2, active=True))
    node.at(500.0)
    node.down(ABORT)
    assert node.deadline_s == 500 + HARD_S
    node.at(500 + HARD_S - 0.1)
    assert node.looked(2, 0.0) == []
    node.at(500 + HARD_S)
    assert isinstance(node.looked(2, 0.0)[0], TakeRankEvidence)


def test_a_rank_that_is_ready_has_no_limits() -> None:
    node = running(ranks=(2,))
    node.down(ABORT)
    node.ready(2)
    assert node.at(HARD_S) == []


def test_a_kill_condemns_those_who_are_not_back_and_them_alone() -> None:
    node = running()
    node.down(ABORT)
    node.ready(3)
    why = "not back 120 s"
    until = FROM + EVIDENCE_S
    assert node.down(msg.KillLateRanks(0, (2, 3, 9), why)) == [TakeRankEvidence(2, why, until)]
    assert node.down(msg.KillLateRanks(0, (2,), why)) == [], "under way"
    (term,) = node.evidence(2)
    assert term == Signal(2, (SIGCONT, SIGTERM), why)
    assert node.gone(2)[0] == msg.Dead(2, FaultKind.HARD_TIMEOUT, why)


def test_a_rank_that_is_ready_before_it_was_signalled_lives() -> None:
    node = running(ranks=(2,))
    node.down(ABORT)
    node.down(msg.KillLateRanks(0, (2,), "late"))
    assert node.ready(2) == [msg.RanksReady(0, (standing(2),))]
    assert node.at(EVIDENCE_S) == []


@pytest.mark.parametrize("epoch", [-1, 1])
def test_a_kill_of_another_epoch_kills_nobody(epoch: int) -> None:
    node = running()
    node.down(ABORT)
    assert node.down(msg.KillLateRanks(epoch, (2,), "late")) == []


def test_a_kill_of_an_epoch_that_runs_kills_nobody() -> None:
    assert running().down(msg.KillLateRanks(0, (2,), "late")) == []


def test_a_rank_that_says_it_hung_too_often_is_ended_like_one_that_hangs_hard() -> None:
    node = running()
    node.down(ABORT)
    stuck = msg.HungAgain(0, 2, "hung by itself in 3 iterations")
    assert node.up(2, stuck) == [TakeRankEvidence(2, stuck.text, FROM + EVIDENCE_S)]
    assert node.up(2, stuck) == [], "said twice"
    (term,) = node.evidence(2)
    assert isinstance(term, Signal)
    assert term.signals == (SIGCONT, SIGTERM)
    assert node.gone(2) == [msg.Dead(2, FaultKind.HARD_TIMEOUT, stuck.text)]


@pytest.mark.parametrize("epoch", [-1, 1])
def test_that_it_hung_in_another_epoch_or_one_that_runs_ends_nobody(epoch: int) -> None:
    assert running().up(2, msg.HungAgain(0, 2, "x")) == []
    node = running()
    node.down(ABORT)
    assert node.up(2, msg.HungAgain(epoch, 2, "x")) == []


# ------------------------------------------------------------------ beats and the lease
def test_beats_go_up_from_the_first_rank_on() -> None:
    node = Node(QUICK_BEATS)
    assert node.deadline_s == 1.0
    assert node.at(0.9) == []
    assert node.at(1.0) == [msg.GuardBeat(FROM + 1.0)]
    assert node.at(1.5) == []
    assert node.at(2.0) == [msg.GuardBeat(FROM + 2.0)]


def test_a_second_rank_does_not_put_the_first_beat_off() -> None:
    node = Node(QUICK_BEATS, (2,))
    node.guard.handle(msg.JoinCall(3, 4), FROM + 0.9)
    assert node.deadline_s == 1.0


LEASE_S = 30.0 * LEASE_SHARE


def test_the_lease_runs_from_when_the_last_answered_beat_was_sent() -> None:
    node = Node(QUICK_BEATS)
    node.at(9.0)
    node.down(msg.Echo(FROM + 4.0))
    assert node.at(4.0 + LEASE_S - 0.1) == [msg.GuardBeat(FROM + 4.0 + LEASE_S - 0.1)]
    lost = msg.Exit(False, f"the coordinator has not answered for {LEASE_S:g} s")
    assert node.at(4.0 + LEASE_S) == told(lost)


def test_a_coordinator_that_never_answers_is_lost_after_a_lease() -> None:
    node = Node(QUICK_BEATS)
    node.at(LEASE_S - 0.5)
    assert [type(e) for e in node.at(LEASE_S)] == [TellRank, TellRank]


def test_an_answer_that_was_overtaken_does_not_shorten_the_lease() -> None:
    node = Node(QUICK_BEATS)
    node.down(msg.Echo(FROM + 10.0))
    node.down(msg.Echo(FROM + 5.0))
    node.at(LEASE_S)
    assert all(isinstance(e, msg.GuardBeat) for e in node.at(10.0 + LEASE_S - 0.1))


def rank_lease_s(answered_s: float) -> float:
    return rank_lease_until(FROM + answered_s, 30.0) - FROM


def test_an_answer_renews_the_lease_of_the_ranks_from_when_the_beat_was_sent() -> None:
    node = Node(QUICK_BEATS)
    assert node.renewed == [rank_lease_s(0.0)] * 2, "with each rank that comes"
    node.at(9.0)
    node.down(msg.Echo(FROM + 4.0))
    assert node.renewed[2:] == [rank_lease_s(4.0)]
    node.down(msg.Echo(FROM + 3.0))
    assert node.renewed[3:] == [], "overtaken"


def test_a_rank_that_comes_late_gets_the_lease_that_there_is() -> None:
    node = Node(QUICK_BEATS)
    node.down(msg.Echo(FROM + 4.0))
    renewed, _ = node.guard.handle(msg.JoinCall(1, 4), FROM + 12.0)
    assert renewed == Renew(FROM + rank_lease_s(4.0))


@pytest.mark.parametrize("end", [msg.Exit(finished=True), FAILED])
def test_nobody_needs_a_lease_of_a_call_that_is_over(end: msg.Down) -> None:
    """Completing may take long, and the guard has no more beats."""
    node = running()
    node.down(end)
    assert node.renewed[-1] is None


def test_a_guard_that_was_stopped_renews_nothing_by_answers_that_it_reads_late() -> None:
    """They were sent before the stop; and its ranks have no time left when it sees that."""
    node = running(QUICK_BEATS, ranks=(2,))
    node.now = FROM + 100.0
    node.down(msg.Echo(FROM + 2.0))
    assert node.renewed[-1] == rank_lease_s(2.0)
    lost, kill = node.at(100.0)
    assert isinstance(lost, TellRank)
    assert isinstance(kill, Signal)
    assert kill.signals == (SIGCONT, SIGKILL)


# ------------------------------------------------------------------ fencing
def test_when_the_coordinator_is_lost_all_are_told_to_leave_those_that_leave_too() -> None:
    node = running()
    node.up(2, msg.RankLeaves(0, 2, fault=True, text="x"))
    assert node.guard.handle(CoordinatorGone("reset"), FROM) == told(msg.Exit(False, "reset"))
    assert node.guard.handle(CoordinatorGone("reset"), FROM) == [], "once"


def test_when_the_coordinator_is_lost_there_are_no_beats_and_no_hangs_any_more() -> None:
    node = running(QUICK_BEATS)
    node.guard.handle(CoordinatorGone("reset"), FROM)
    assert node.deadline_s == GRACE_S
    assert node.looked(2, -1000.0) == []
    node = running()
    node.at(SOFT_S - 1)
    node.guard.handle(CoordinatorGone("reset"), node.now)
    assert node.at(SOFT_S) == []


def test_a_coordinator_that_goes_after_the_end_is_not_missed() -> None:
    for end in (msg.Exit(finished=True), FAILED):
        node = running()
        node.down(end)
        assert node.guard.handle(CoordinatorGone("closed"), FROM) == []


@pytest.mark.parametrize(("grace_s", "fence_s"), [(GRACE_S, GRACE_S), (60.0, 30.0 * FENCE_SHARE)])
def test_who_has_not_left_by_then_is_killed_at_once(grace_s: float, fence_s: float) -> None:
    node = running(msg.CallTimeouts(SOFT_S, HARD_S, grace_s, 1.0, 30.0))
    node.guard.handle(CoordinatorGone("reset"), FROM)
    node.up(3, msg.RankLeaves(0, 3, fault=True, text="x"))
    assert node.at(fence_s - 0.1) == []
    (kill,) = node.at(fence_s)
    assert kill == Signal(2, (SIGCONT, SIGKILL), "it did not leave a call that is over")
    assert node.gone(2) == [], "there is nobody to tell"
    assert node.gone(3) == [GuardQuits()]


def test_who_is_ready_when_the_coordinator_is_lost_tells_nobody() -> None:
    node = running()
    node.down(ABORT)
    node.ready(2)
    node.guard.handle(CoordinatorGone("reset"), FROM)
    assert node.ready(3) == []


def test_a_call_that_failed_fences_as_well_and_one_that_finished_does_not() -> None:
    node = running()
    node.down(FAILED)
    assert node.deadline_s == GRACE_S
    assert [e.rank for e in node.at(GRACE_S) if isinstance(e, Signal)] == [2, 3]
    node = running()
    node.down(msg.Exit(finished=True))
    assert node.deadline_s is None


def test_evidence_is_not_waited_for_when_the_fence_falls() -> None:
    node = running(msg.CallTimeouts(SOFT_S, HARD_S, 0.5, BEAT_S, SILENCE_S), ranks=(2,))
    node.at(HARD_S)
    node.looked(2, 0.0)
    node.guard.handle(CoordinatorGone("reset"), node.now)
    (kill,) = node.at(HARD_S + 0.5)
    assert isinstance(kill, Signal)
    assert kill.signals == (SIGCONT, SIGKILL)
    assert "hard_timeout" in kill.why
    assert node.at(HARD_S + EVIDENCE_S) == []


def test_who_survives_the_fence_in_the_kernel_keeps_the_guard_no_longer() -> None:
    for end in (CoordinatorGone("reset"), FAILED):
        node = running(ranks=(2,))
        node.guard.handle(end, FROM)
        node.at(GRACE_S)
        assert node.deadline_s == GRACE_S + UNKILLABLE_S
        assert node.at(GRACE_S + UNKILLABLE_S) == [GuardQuits()]


def test_a_rank_that_was_killed_before_is_not_killed_again_by_the_fence() -> None:
    node = running(ranks=(2,))
    node.down(ABORT)
    node.down(msg.KillLateRanks(0, (2,), "late"))
    node.evidence(2)
    node.at(GRACE_S)
    node.guard.handle(CoordinatorGone("reset"), node.now)
    assert node.at(2 * GRACE_S) == []


# ---------------------------------------------------------------- what the launcher is told
HUNG = Cause(9, FaultKind.SOFT_TIMEOUT, "no progress")


def test_a_restart_is_told_to_the_launcher_when_the_function_is_entered_again() -> None:
    """Once, with all causes that are known by then; the first call of the function is none."""
    node = running()
    assert node.restarts == []
    node.now = FROM + 10
    assert [type(effect) for effect in node.down(ABORT)] == [TellRank, TellRank]
    node.now = FROM + 11
    node.down(ABORT)
    node.now = FROM + 12
    node.down(msg.Commit(1, 0, (), (*ABORT.causes, HUNG)))
    node.now = FROM + 20
    node.down(msg.Commit(2, 1, (), ()))

    causes = (
        Cause(9, FaultKind.EXCEPTION, "boom"),
        Cause(9, FaultKind.SOFT_TIMEOUT, "no progress"),
    )
    assert node.restarts == [RestartedInPlace(1, causes, 2, FROM + 10, FROM + 10, FROM + 12)]


def test_after_a_hang_the_last_progress_of_the_node_is_told_too() -> None:
    """As its pages have it before ranks are freed: of the rank that has made none for longest."""
    node = running()
    node.now = FROM + 70
    effects = node.down(msg.AbortEpoch(0, (HUNG,)))
    assert effects[:2] == [ReadPage(2), ReadPage(3)]
    assert [type(effect) for effect in effects[2:]] == [TellRank, TellRank]
    node.guard.handle(MarksRead(2, MainThreadMarks(FROM + 8)), node.now)
    node.guard.handle(MarksRead(3, MainThreadMarks(FROM + 50, manual=FROM + 9)), node.now)
    node.guard.handle(MarksRead(2, MainThreadMarks(FROM + 70)), node.now)  # it was freed
    node.now = FROM + 71
    node.down(msg.Commit(1, 0, (), (HUNG,)))

    [restart] = node.restarts
    assert (restart.progress_at, restart.noticed_at) == (FROM + 8, FROM + 70)
    assert restart.entered_at == FROM + 71


def test_of_the_causes_of_a_large_restart_the_first_are_told() -> None:
    """Sixty-four ranks of a lost node would fill the event."""
    node = running()
    node.down(ABORT)
    causes = tuple(Cause(rank, FaultKind.UNRESPONSIVE) for rank in range(64))
    node.down(msg.Commit(1, 0, (), causes))

    [restart] = node.restarts
    assert [cause.rank for cause in restart.causes] == list(range(CAUSES_MAX))
    assert restart.n_causes == 64


def test_what_the_launcher_is_told_fits_into_its_longest_request() -> None:
    """Eight causes whose texts are as long as a message may have them, and not of ASCII."""
    node = running()
    node.down(ABORT)
    causes = tuple(Cause(rank, FaultKind.EXCEPTION, "\u00fc" * 8000) for rank in range(CAUSES_MAX))
    node.down(msg.Commit(1, 0, (), causes))

    [restart] = node.restarts
    assert len(encode(codec.encode(restart))) < 1 << 16


# ----------------------------------------------------------- what the launcher is told of a call
def test_the_launcher_hears_when_its_ranks_enter_a_call_and_before_them_when_it_is_over() -> None:
    """Which ranks it can lose without losing the job; a restart in place is not a beginning."""
    node = Node()
    assert node.calls == []
    node.down(msg.Commit(0, -1, (), ()))
    assert node.calls == [CallBegan(5, (2, 3))]
    node.gone(3)
    node.down(msg.AbortEpoch(0, (Cause(3, FaultKind.TERMINATED),)))
    node.up(2, msg.RanksReady(0, (standing(2),)))
    node.down(msg.Commit(1, 0, (3,), ()))
    assert len(node.calls) == 1

    first = node.guard.handle(msg.Exit(finished=True), node.now)[0]
    assert first == CallEnded(5, (2,), finished=True)


def test_the_launcher_hears_that_a_call_has_failed() -> None:
    node = Node()
    node.down(msg.Commit(0, -1, (), ()))
    node.down(msg.Exit(finished=False, text="gave up"))
    assert node.calls[1:] == [CallEnded(5, (2, 3), finished=False)]


def test_the_launcher_hears_what_the_restart_began_with_that_a_hung_rank_holds_up() -> None:
    """The rank that is ended is not what went wrong first."""
    node = Node()
    node.down(msg.Commit(0, -1, (), ()))
    raised = Cause(0, FaultKind.EXCEPTION, "ValueError: bad batch")
    node.down(msg.AbortEpoch(0, (raised,)))
    began_at = node.now
    node.down(msg.KillLateRanks(0, (2,), "not back"))
    node.evidence(2)
    (ended,) = node.hung
    assert ended.began == Cause(0, FaultKind.EXCEPTION, "ValueError: bad batch")
    assert ended.began_at == began_at
