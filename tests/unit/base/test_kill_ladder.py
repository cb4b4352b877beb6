"""How a process is ended, step by step, on a virtual clock."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.base.pure.kill_ladder import (
    AT_REST,
    EVIDENCE_S,
    KILLED,
    LONGEST_GRACE,
    SIGCONT,
    SIGKILL,
    SIGNALLED,
    SIGTERM,
    STUCK,
    TAKING_EVIDENCE,
    KillLadder,
)

GRACE_S, STUCK_S = 10.0, 20.0


def steps(ladder: KillLadder) -> list[tuple[float | None, str, tuple[int, ...]]]:
    """What follows when nothing but time happens: when, which step, what it sends."""
    found = []
    while (at := ladder.due_at) is not None:
        assert ladder.climb(at - 2**-10) is None
        assert ladder.climb(at) == ladder.step
        found.append((at, ladder.step, ladder.signals))
    return found


@pytest.mark.parametrize(
    ("begin", "signal", "follows"),
    [
        (
            KillLadder.take_evidence,
            SIGTERM,
            [
                (101.0, SIGNALLED, (SIGCONT, SIGTERM)),
                (111.0, KILLED, (SIGKILL,)),
                (131.0, STUCK, ()),
            ],
        ),
        (
            KillLadder.take_evidence,
            SIGKILL,
            [(101.0, KILLED, (SIGCONT, SIGKILL)), (121.0, STUCK, ())],
        ),
        (KillLadder.send, SIGTERM, [(110.0, KILLED, (SIGKILL,)), (130.0, STUCK, ())]),
        (KillLadder.send, SIGKILL, [(120.0, STUCK, ())]),
        (KillLadder.kill, SIGTERM, [(120.0, STUCK, ())]),
    ],
    ids=["evidence", "evidence, then SIGKILL", "signal", "SIGKILL is the signal", "at once"],
)
def test_each_step_follows_when_the_time_of_the_one_before_is_over(begin, signal, follows) -> None:
    """Wherever it begins, it goes on to the end."""
    ladder = KillLadder("hung", signal, GRACE_S, STUCK_S)
    assert (ladder.step, ladder.due_at, ladder.climb(99.0)) == (AT_REST, None, None)
    begin(ladder, 100.0)
    assert steps(ladder) == follows


def test_evidence_that_has_come_makes_the_signal_due_and_nothing_else() -> None:
    """Late evidence shortens no grace."""
    ladder = KillLadder("hung", SIGTERM, GRACE_S, STUCK_S)
    ladder.take_evidence(100.0)
    ladder.evidence_taken(100.25)
    assert (ladder.step, ladder.due_at) == (TAKING_EVIDENCE, 100.25)
    ladder.climb(100.25)
    ladder.evidence_taken(100.5)
    assert ladder.due_at == 100.25 + GRACE_S


@pytest.mark.parametrize(
    "first", [KillLadder.take_evidence, KillLadder.send], ids=["evidence", "signal"]
)
def test_a_kill_at_once_wakes_a_process_only_if_no_signal_has(first) -> None:
    """SIGKILL ends a stopped process as it is; the one before it has had its SIGCONT."""
    ladder = KillLadder("fenced", SIGTERM, GRACE_S, STUCK_S)
    first(ladder, 100.0)
    was_signalled = ladder.step == SIGNALLED
    ladder.kill(100.5)
    assert ladder.signals == ((SIGKILL,) if was_signalled else (SIGCONT, SIGKILL))
    assert ladder.due_at == 100.5 + STUCK_S


def test_a_caller_that_looks_twice_has_a_look_in_the_middle_of_the_time_before_stuck() -> None:
    """It is due from there on if it has slept until then, and from the middle if not."""
    for comes_at, due_at in (110.0, 120.0), (110.5, 120.0), (119.0, 129.0):
        ladder = KillLadder("hung", SIGKILL, GRACE_S, STUCK_S, looks=2)
        ladder.send(100.0)
        assert ladder.due_at == 110.0
        assert ladder.climb(comes_at) is None
        assert ladder.due_at == due_at
        assert ladder.climb(due_at) == STUCK


class LadderMachine(RuleBasedStateMachine):
    """Somebody ends a process, and changes their mind about how fast."""

    ORDER = (AT_REST, TAKING_EVIDENCE, SIGNALLED, KILLED, STUCK)

    @initialize(signal=st.sampled_from([SIGTERM, SIGKILL]), grace_s=st.sampled_from([0.0, 4.0]))
    def make(self, signal: int, grace_s: float) -> None:
        self.now = 100.0
        self.ladder = KillLadder("hung", signal, grace_s, stuck_s=8.0)
        self.entered: list[tuple[str, float, tuple[int, ...]]] = []
        self.evidence_due: float | None = None

    def note(self) -> None:
        """The step, when it is a new one."""
        ladder = self.ladder
        if ladder.step != (self.entered[-1][0] if self.entered else AT_REST):
            self.entered.append((ladder.step, self.now, ladder.signals))

    @precondition(lambda self: self.ladder.step == AT_REST)
    @rule()
    def evidence_is_asked_for(self) -> None:
        self.evidence_due = self.ladder.take_evidence(self.now)
        assert self.evidence_due == self.now + EVIDENCE_S
        self.note()

    @rule()
    def evidence_comes(self) -> None:
        if self.ladder.step == TAKING_EVIDENCE:
            self.evidence_due = self.now
        self.ladder.evidence_taken(self.now)
        self.wake()

    @rule()
    def a_signal_is_sent_now(self) -> None:
        self.evidence_due = None
        self.ladder.send(self.now)
        self.note()

    @rule()
    def it_is_killed_now(self) -> None:
        self.evidence_due = None
        self.ladder.kill(self.now)
        self.note()

    @rule(seconds=st.integers(1, 24).map(lambda n: n / 2))
    def time_passes(self, seconds: float) -> None:
        until = self.now + seconds
        while (at := self.ladder.due_at) is not None and at <= until:
            self.now = max(self.now, at)
            self.wake()
        self.now = until

    def wake(self) -> None:
        before = self.ladder.step
        is_due = self.ladder.due_at is not None and self.now >= self.ladder.due_at
        assert (self.ladder.climb(self.now) is not None) == is_due
        assert (self.ladder.step != before) == is_due
        if is_due and before == TAKING_EVIDENCE:
            assert self.now == self.evidence_due, "K-2: evidence has its time"
        self.note()

    @invariant()
    def each_step_is_taken_once_and_upwards(self) -> None:
        places = [self.ORDER.index(step) for step, *_ in self.entered]
        assert places == sorted(set(places))

    @invariant()
    def signals_come_in_order_with_one_sigcont_before_all(self) -> None:
        sent = [signum for *_, signals in self.entered for signum in signals]
        first = () if self.ladder.signal == SIGKILL else (self.ladder.signal,)
        whole = [SIGCONT, *first, SIGKILL]
        assert sent in ([], whole, whole[:2], [SIGCONT, SIGKILL])

    @invariant()
    def each_step_that_is_begun_has_an_end(self) -> None:
        """And the time of each is its own: the grace, and what SIGKILL may take."""
        ladder = self.ladder
        assert (ladder.due_at is None) == (ladder.step in (AT_REST, STUCK))
        if ladder.step in (SIGNALLED, KILLED):
            allowed = ladder.grace_s if ladder.step == SIGNALLED else ladder.stuck_s
            assert ladder.due_at == self.entered[-1][1] + allowed


TestLadderMachine = LadderMachine.TestCase


def test_a_grace_is_time_in_which_the_process_could_run() -> None:
    """It is lengthened by the time for which no processor was free for it, as often as it takes."""
    ladder = KillLadder("over", SIGTERM, GRACE_S, STUCK_S)
    ladder.send(100.0)
    assert ladder.is_grace_over(109.9) is False
    assert ladder.is_grace_over(110.0) is True
    assert ladder.climb(110.0, waited_s=8.0) is None
    assert ladder.due_at == 118.0
    assert ladder.climb(118.0, waited_s=14.0) is None
    assert ladder.due_at == 124.0
    assert ladder.climb(124.0, waited_s=14.05) == KILLED, "so little is nothing"
    assert ladder.signals == (SIGKILL,)


def test_a_grace_ends_where_a_process_always_waits() -> None:
    """Its own threads may be more than there are processors."""
    ladder = KillLadder("over", SIGTERM, GRACE_S, STUCK_S)
    ladder.send(0.0)
    while ladder.step == SIGNALLED:
        assert ladder.due_at is not None
        now = ladder.due_at
        ladder.climb(now, waited_s=0.99 * now)
    assert now == pytest.approx(LONGEST_GRACE * GRACE_S)
