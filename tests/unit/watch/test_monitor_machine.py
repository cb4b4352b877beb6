"""The life of a watch, on a virtual clock."""

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.base.pure.kill_ladder import (
    EVIDENCE_S,
    KILLED,
    SIGCONT,
    SIGKILL,
    SIGNALLED,
    STUCK,
    TAKING_EVIDENCE,
    UNKILLABLE_S,
)
from holdfast.page.pure.clocks import (
    EXIT,
    HEARTBEAT,
    OF_STEPS,
    SECTION,
    Learned,
    RunningClock,
    Snapshot,
    Timeouts,
)
from holdfast.watch.pure.hang import overdue, running
from holdfast.watch.pure.learned import TrippedLimits
from holdfast.watch.pure.monitor import (
    GRACE_OVER,
    HAS_LEFT,
    HUNG,
    IDLE,
    WATCHING,
    Abandon,
    Conclude,
    EvidenceTaken,
    LookAgain,
    LookAtState,
    PageRead,
    RankGone,
    ReportStuck,
    SendSignal,
    TakeEvidence,
    Watch,
)

SIGTERM = 15
LIMITS = Timeouts(subsequent=10.0)
BEAT = PageRead(Snapshot(armed_at=1.0, heartbeat_at=100.0), LIMITS)
DISARMED = PageRead(None, LIMITS)
OVERDUE = RunningClock(HEARTBEAT, None, 100.0, 10.0)


def watch(signal: int = SIGKILL) -> Watch:
    """One without memory of tripped limits."""
    return Watch(signal, grace_s=15.0, tripped=TrippedLimits())


def hung(signal: int = SIGKILL) -> Watch:
    """A watch that takes evidence since 110.1."""
    rank = watch(signal)
    assert rank.handle(BEAT, 100.0) == []
    assert rank.handle(BEAT, 110.1) == [LookAgain()]
    assert rank.handle(BEAT, 110.1) == [TakeEvidence(OVERDUE, 110.1 + EVIDENCE_S)]
    return rank


def test_a_watch_begins_when_the_rank_is_armed() -> None:
    """An idle watch never asks to be woken."""
    rank = watch()

    assert rank.handle(DISARMED, 5.0) == []
    assert (rank.state, rank.next_deadline()) == (IDLE, None)

    assert rank.handle(BEAT, 100.0) == []
    assert (rank.state, rank.next_deadline()) == (WATCHING, 110.0)


def test_it_wakes_at_the_deadline_or_after_the_shortest_limit() -> None:
    """H-2: a clock that starts right after a look is not missed."""
    rank = watch()
    limits = Timeouts(subsequent=10.0, sections={"step": 3.0})

    for now, wake_at in [(100.0, 103.0), (103.0, 106.0), (106.0, 109.0), (109.0, 110.0)]:
        rank.handle(PageRead(Snapshot(1.0, heartbeat_at=100.0), limits), now)
        assert rank.next_deadline() == wake_at


def test_without_limits_it_never_wakes() -> None:
    """Nothing can run out."""
    rank = watch()
    rank.handle(PageRead(Snapshot(1.0, heartbeat_at=100.0), Timeouts()), 100.0)

    assert (rank.state, rank.next_deadline()) == (WATCHING, None)


def test_one_look_is_not_enough_for_a_verdict() -> None:
    """H-1: the page has no lock, so what one reading shows must be confirmed."""
    rank = watch()
    rank.handle(BEAT, 100.0)

    assert rank.handle(BEAT, 110.5) == [LookAgain()]
    assert rank.handle(PageRead(Snapshot(1.0, heartbeat_at=110.4), LIMITS), 110.5) == []
    assert rank.next_deadline() == 120.4


def test_a_different_clock_on_the_second_look_needs_a_third() -> None:
    """Two readings agree only on the same clock since the same instant."""
    rank = watch()
    limits = Timeouts(sections={"a": 1.0, "b": 1.0})
    rank.handle(PageRead(Snapshot(1.0), limits), 100.0)
    a = PageRead(Snapshot(1.0, sections={"a": 100.0}), limits)
    b = PageRead(Snapshot(1.0, sections={"b": 100.0}), limits)

    assert rank.handle(a, 101.1) == [LookAgain()]
    assert rank.handle(b, 101.1) == [LookAgain()]
    found = RunningClock(SECTION, "b", 100.0, 1.0)
    assert rank.handle(b, 101.1) == [TakeEvidence(found, 101.1 + EVIDENCE_S)]


def test_evidence_comes_before_the_signal() -> None:
    """K-2, and a SIGKILL needs nothing after it."""
    rank = hung()
    assert rank.handle(EvidenceTaken(), 110.2) == []
    assert rank.next_deadline() == 110.2

    effects = rank.handle(BEAT, 110.2)

    assert effects == [Conclude(), SendSignal(SIGCONT, HUNG), SendSignal(SIGKILL, HUNG)]
    assert rank.state == KILLED
    assert rank.handle(RankGone(), 110.3) == []
    assert (rank.state, rank.next_deadline()) == (IDLE, None)


def test_evidence_that_does_not_come_does_not_hold_up_the_kill() -> None:
    """Bounded: a second."""
    rank = hung()

    assert rank.handle(BEAT, 111.0) == []
    assert rank.handle(BEAT, 111.1) == [
        Conclude(),
        SendSignal(SIGCONT, HUNG),
        SendSignal(SIGKILL, HUNG),
    ]


def test_stop_is_polite_then_forced() -> None:
    """A rank that survives the configured signal is killed when its grace runs out, once."""
    rank = hung(SIGTERM)
    rank.handle(EvidenceTaken(), 110.2)
    assert rank.handle(BEAT, 110.2) == [
        Conclude(),
        SendSignal(SIGCONT, HUNG),
        SendSignal(SIGTERM, HUNG),
    ]
    assert (rank.state, rank.next_deadline()) == (SIGNALLED, 125.2)

    assert rank.handle(BEAT, 125.1) == []
    assert rank.handle(BEAT, 125.2) == [SendSignal(SIGKILL, GRACE_OVER)]
    assert rank.handle(BEAT, 126.0) == []


def test_a_rank_that_outlives_sigkill_is_reported_once() -> None:
    """It sits in the kernel; nobody can end it from outside."""
    rank = hung()
    rank.handle(EvidenceTaken(), 110.2)
    rank.handle(BEAT, 110.2)

    assert rank.handle(BEAT, 110.2 + UNKILLABLE_S) == [ReportStuck()]
    assert (rank.state, rank.next_deadline()) == (STUCK, None)
    assert rank.handle(BEAT, 1e6) == []


@pytest.mark.parametrize("event", [RankGone(), DISARMED], ids=["died", "disarmed"])
def test_a_verdict_is_dropped_where_there_is_nothing_left_to_kill(
    event: RankGone | PageRead,
) -> None:
    """A rank that died or left while evidence was taken gets no signal."""
    rank = hung()

    (abandoned,) = rank.handle(event, 110.3)

    assert isinstance(abandoned, Abandon)
    assert (rank.state, rank.next_deadline()) == (IDLE, None)
    assert rank.handle(EvidenceTaken(), 110.4) == []


def test_a_rank_that_was_armed_anew_in_its_grace_is_not_killed() -> None:
    """A user's handler of the configured signal may restart training in the same process."""
    rank = hung(SIGTERM)
    rank.handle(EvidenceTaken(), 110.2)
    rank.handle(BEAT, 110.2)
    again = PageRead(Snapshot(armed_at=115.0, heartbeat_at=115.0), LIMITS)

    (abandoned,) = rank.handle(again, 116.0)

    assert isinstance(abandoned, Abandon)
    assert (rank.state, rank.next_deadline()) == (WATCHING, 125.0)
    assert rank.handle(again, 125.1) == [LookAgain()]


def test_a_heartbeat_during_the_verdict_does_not_undo_it() -> None:
    """One verdict per watch: what was reported is carried out."""
    rank = hung()
    rank.handle(EvidenceTaken(), 110.5)
    late_beat = PageRead(Snapshot(armed_at=1.0, heartbeat_at=110.4), LIMITS)

    assert SendSignal(SIGKILL, HUNG) in rank.handle(late_beat, 110.5)


def test_a_monitor_that_was_late_gives_the_delay_back() -> None:
    """Suspended for 4 s beyond its wake-up: no verdict in the next 4 s."""
    rank = watch()
    rank.handle(BEAT, 100.0)

    assert rank.handle(BEAT, 114.0) == []
    assert rank.next_deadline() == 118.0
    assert rank.handle(BEAT, 118.1) == [LookAgain()]
    assert rank.handle(BEAT, 118.1) == [TakeEvidence(OVERDUE, 118.1 + EVIDENCE_S)]


def test_a_little_late_is_not_late() -> None:
    """Scheduling noise must not postpone verdicts."""
    rank = watch()
    rank.handle(BEAT, 100.0)

    assert rank.handle(BEAT, 110.4) == [LookAgain()]


def test_a_learned_limit_trips_once_at_one_value() -> None:
    """The next watch with the same learned limit gets a longer one; configured ones stay."""
    rank = watch()
    limits = Timeouts(subsequent=10.0, sections={"s": 90.0}, learned=Learned(heartbeat=True))
    beat = PageRead(Snapshot(1.0, heartbeat_at=100.0), limits)
    rank.handle(beat, 100.0)
    rank.handle(beat, 110.1)
    rank.handle(beat, 110.1)
    rank.handle(RankGone(), 111.0)

    rank.handle(PageRead(Snapshot(200.0, heartbeat_at=200.0), limits), 200.0)
    raised = rank.tripped.raised(limits)

    assert raised.subsequent == 20.0
    assert raised.sections == {"s": 90.0}
    assert rank.handle(PageRead(Snapshot(200.0, heartbeat_at=200.0), limits), 215.0) == []


def left(at: float) -> PageRead:
    return PageRead(Snapshot(at, left_at=at), LIMITS)


def test_a_rank_that_has_left_must_end() -> None:
    """By a clock of its own; what the page still says of other limits does not count."""
    rank = Watch(SIGKILL, 15.0, TrippedLimits(), exit_s=60.0)
    rank.handle(BEAT, 100.0)

    assert rank.handle(left(105.0), 105.0) == []
    assert (rank.state, rank.next_deadline()) == (WATCHING, 165.0)
    assert rank.handle(left(105.0), 165.1) == [LookAgain()]
    found = RunningClock(EXIT, None, 105.0, 60.0)
    assert rank.handle(left(105.0), 165.1) == [TakeEvidence(found, 165.1 + EVIDENCE_S)]


def test_a_rank_that_comes_back_need_not_end() -> None:
    """It initialised again, as a restart in place does, even when it was found late."""
    rank = Watch(SIGKILL, 15.0, TrippedLimits(), exit_s=60.0)
    again = PageRead(Snapshot(armed_at=160.0, heartbeat_at=164.0), LIMITS)
    rank.handle(left(100.0), 100.0)
    assert rank.handle(again, 165.0) == []
    assert rank.next_deadline() == 174.0

    rank = Watch(SIGKILL, 15.0, TrippedLimits(), exit_s=60.0)
    rank.handle(left(100.0), 100.0)
    rank.handle(left(100.0), 160.1)
    rank.handle(left(100.0), 160.1)
    assert [type(e) for e in rank.handle(again, 165.0)] == [Abandon]
    assert rank.state == WATCHING


def test_a_rank_that_leaves_during_a_verdict_is_let_go_and_must_end() -> None:
    """It is not said to have been restarted in place."""
    rank = Watch(SIGKILL, 15.0, TrippedLimits(), exit_s=60.0)
    for now in (100.0, 110.1, 110.1):
        rank.handle(BEAT, now)

    assert rank.handle(left(110.2), 110.3) == [Abandon(HAS_LEFT)]
    assert rank.next_deadline() == 170.2


def test_without_a_limit_a_rank_that_has_left_is_not_watched() -> None:
    """For ever."""
    rank = watch()
    assert rank.handle(left(105.0), 105.0) == []
    assert rank.next_deadline() is None


HALVES = st.integers(1, 30).map(lambda n: n / 2)


class WatchMachine(RuleBasedStateMachine):
    """A shell that does what it is told, with a rank that does what it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.limits = Timeouts(initial=8.0, subsequent=5.0, sections={"a": 3.0})
        self.watch = Watch(
            SIGTERM, grace_s=4.0, tripped=TrippedLimits(), exit_s=6.0, step_floor_s=4.0
        )
        self.snapshot: Snapshot | None = None
        self.log: list[object] = []  # effects of the current watch
        self.excused = False
        self.has_proof = False

    def feed(self) -> None:
        for _ in range(5):
            effects = self.watch.handle(PageRead(self.snapshot, self.limits), self.now)
            for effect in effects:
                if isinstance(effect, TakeEvidence) and effect.overdue.clock in OF_STEPS:
                    assert self.snapshot is not None
                    assert not running(self.snapshot, self.limits), "a chosen timeout judges"
            self.log += [it for it in effects if not isinstance(it, LookAtState)]
            if LookAgain() not in effects:
                return
        raise AssertionError("asks to look again for ever")

    @precondition(lambda self: self.snapshot is None)
    @rule()
    def arm(self) -> None:
        self.snapshot = Snapshot(self.now, outside_since=self.now, sections={})
        self.log.clear()
        self.excused = False
        self.feed()

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def leave(self) -> None:
        self.snapshot = Snapshot(self.now, sections={}, left_at=self.now)
        self.log.clear()
        self.excused = False
        self.feed()
        self.log = [effect for effect in self.log if not isinstance(effect, Abandon)]

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def disarm(self) -> None:
        self.snapshot = None
        self.feed()

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def die(self) -> None:
        self.snapshot = None
        self.log += self.watch.handle(RankGone(), self.now)

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def beat(self) -> None:
        assert self.snapshot is not None
        self.snapshot = Snapshot(**{**vars(self.snapshot), "heartbeat_at": self.now})

    @precondition(lambda self: self.snapshot is not None)
    @rule(is_open=st.booleans())
    def section(self, *, is_open: bool) -> None:
        assert self.snapshot is not None
        self.place("a", is_open=is_open)

    def place(self, name: str, *, is_open: bool) -> None:
        assert self.snapshot is not None
        if is_open:
            self.snapshot.sections.setdefault(name, self.now)
            self.snapshot = self.snapshot.but(outside_since=None)
        elif self.snapshot.sections.pop(name, None):
            since = None if self.snapshot.sections else self.now
            self.snapshot = self.snapshot.but(closed_at=self.now, outside_since=since)

    @rule(is_hang=st.booleans())
    def evidence_arrives(self, *, is_hang: bool) -> None:
        self.has_proof = is_hang
        self.log += self.watch.handle(EvidenceTaken(is_hang), self.now)
        self.feed()

    @rule(seconds=HALVES)
    def time_passes_and_the_shell_wakes_when_asked(self, seconds: float) -> None:
        until = self.now + seconds
        while (wake_at := self.watch.next_deadline()) is not None and wake_at < until:
            self.now = max(self.now, wake_at) + 2**-10
            self.feed()
        self.now = until
        if self.watch.next_deadline() == until:
            self.feed()

    @rule(seconds=HALVES)
    def the_monitor_is_frozen(self, seconds: float) -> None:
        self.now += seconds
        self.excused = True
        self.feed()

    @invariant()
    def evidence_before_signals_and_each_step_once(self) -> None:
        """K-2."""
        steps = [type(e) for e in self.log if not isinstance(e, LookAgain)]
        order = [TakeEvidence, Conclude, SendSignal, SendSignal, SendSignal, ReportStuck]
        if Abandon in steps:
            steps = steps[: steps.index(Abandon)]
        assert steps == order[: len(steps)]

    @invariant()
    def without_a_proof_no_rank_is_ended_for_missing_steps(self) -> None:
        """D-1."""
        of_steps = [e for e in self.log if isinstance(e, TakeEvidence)][-1:]
        is_ended = bool(of_steps) and any(isinstance(e, SendSignal) for e in self.log)
        if is_ended and of_steps[0].overdue.clock in OF_STEPS:
            assert self.has_proof

    @invariant()
    def never_early_never_forgotten(self) -> None:
        """H-1, and H-2 unless the monitor itself was held up."""
        if self.snapshot is None:
            assert self.watch.state == IDLE
            return
        verdicts = [e for e in self.log if isinstance(e, TakeEvidence)]
        assert all(v.until - EVIDENCE_S > v.overdue.deadline for v in verdicts)
        if self.watch.state == WATCHING and not self.excused:
            limits = Timeouts(exit=6.0) if self.snapshot.left_at is not None else self.limits
            late = overdue(self.snapshot, limits, self.now)
            # What the rank did at this very instant is seen at the next wake-up.
            wake_at = self.watch.next_deadline()
            assert late is None or (wake_at is not None and wake_at <= late.deadline + 2**-9)

    @invariant()
    def a_verdict_in_progress_has_a_deadline(self) -> None:
        """Nothing waits for an event that may never come."""
        if self.watch.state in (WATCHING, TAKING_EVIDENCE, SIGNALLED, KILLED):
            assert self.watch.next_deadline() is not None


class SectionsMachine(WatchMachine):
    """A rank that makes steps, and may be in no section, or in one without a timeout."""

    leave = disarm = die = None  # type: ignore[assignment]  # as above; a stall takes its time

    def __init__(self) -> None:
        super().__init__()
        self.limits = Timeouts(subsequent=50.0, sections={"a": 3.0, "free": None})

    @precondition(lambda self: self.snapshot is not None)
    @rule(is_open=st.booleans())
    def free_section(self, *, is_open: bool) -> None:
        self.place("free", is_open=is_open)

    @precondition(lambda self: self.snapshot is not None and self.snapshot.left_at is None)
    @rule()
    def step(self) -> None:
        assert self.snapshot is not None
        steps = self.snapshot.steps + 1
        self.snapshot = self.snapshot.but(steps=steps, stepped_at=self.now)

    @rule(is_out=st.booleans())
    def the_time_outside_sections_has_a_timeout(self, *, is_out: bool) -> None:
        self.limits = self.limits.but(out_of_section=20.0 if is_out else None)
        self.feed()


TestWatchMachine = WatchMachine.TestCase
TestWatchMachine.settings = settings(max_examples=80, stateful_step_count=30)
TestSectionsMachine = SectionsMachine.TestCase
TestSectionsMachine.settings = settings(max_examples=80, stateful_step_count=40)


def test_a_signal_without_a_grace_is_followed_by_nothing() -> None:
    """Whoever starts monitors in a program stops its ranks itself."""
    rank = Watch(SIGTERM, math.inf, TrippedLimits())
    rank.handle(BEAT, 100.0)
    rank.handle(BEAT, 110.1)
    rank.handle(BEAT, 110.1)
    rank.handle(EvidenceTaken(), 110.2)
    sent = [Conclude(), SendSignal(SIGCONT, HUNG), SendSignal(SIGTERM, HUNG)]
    assert rank.handle(BEAT, 110.2) == sent
    for now in (125.3, 1e6):
        assert rank.handle(BEAT, now) == []
    assert (rank.state, rank.next_deadline()) == (SIGNALLED, math.inf)


def test_of_a_rank_that_was_asked_to_end_only_new_sections_count() -> None:
    """It may be saving its work; a verdict that was begun before is carried out."""
    rank = watch()
    limits = Timeouts(subsequent=10.0, out_of_section=10.0, sections={"step": 3.0, "save": 300.0})
    before = Snapshot(1.0, heartbeat_at=100.0, sections={"step": 100.0})
    rank.handle(PageRead(before, limits), 100.0)
    rank.stopping_at = 101.0
    for now in (103.5, 106.0, 109.0, 112.0):
        assert rank.handle(PageRead(before, limits), now) == []
    saves = PageRead(Snapshot(1.0, 100.0, sections={"step": 100.0, "save": 112.0}), limits)
    while now < 412.0:
        assert rank.handle(saves, now) == []
        now = rank.next_deadline() or 0.0
    assert now == 412.0
    assert rank.handle(saves, 412.1) == [LookAgain()]
    assert isinstance(rank.handle(saves, 412.1)[0], TakeEvidence)

    condemned = hung()
    condemned.stopping_at = 105.0
    condemned.handle(EvidenceTaken(), 110.2)
    assert SendSignal(SIGKILL, HUNG) in condemned.handle(BEAT, 110.2)


def test_a_hung_rank_that_had_no_processor_has_its_grace_nevertheless() -> None:
    """A handler that saves its work on a busy machine."""
    rank = hung(SIGTERM)
    rank.handle(EvidenceTaken(), 110.2)
    rank.handle(BEAT, 110.2)
    late = PageRead(BEAT.snapshot, LIMITS, waited_s=9.0)
    assert rank.handle(late, 125.2) == []
    assert rank.next_deadline() == pytest.approx(134.2)
    assert rank.handle(late, 134.2) == [SendSignal(SIGKILL, GRACE_OVER)]
