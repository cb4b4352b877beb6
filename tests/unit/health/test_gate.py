"""How a host is checked before it may have ranks, on a virtual clock."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.base.pure.common_events import Begin, Note, TimePassed
from holdfast.health.pure.gate import (
    DEATHS,
    Answered,
    Ask,
    Asked,
    Checked,
    Effect,
    Event,
    Found,
    HealthGate,
    HealthProcessDied,
    HostUnhealthy,
    KillHealthProcess,
    Noticed,
    Start,
)
from holdfast.health.pure.health import Finding, Fitness, why_unfit

LOST = Finding("gpu", "GPU 3", Fitness.UNHEALTHY, "is lost", device=3)
NO_DRIVER = Finding("gpu", "driver", Fitness.UNKNOWN, "there is no driver")
WELL = Finding("gpu", "GPU 3", Fitness.HEALTHY)
FULL = Finding("host", "/tmp", Fitness.SUSPECT, "98 % full")


def asked(*, after_ranks: bool = False) -> HealthGate:
    """A gate that has asked its first question at t=0."""
    gate = HealthGate(limit_s=40.0, memory_limit_s=60.0)
    assert gate.handle(Asked(after_ranks), 0.0) == [Start(), Ask(1, after_ranks)]
    return gate


def test_who_will_be_asked_gets_ready_before() -> None:
    gate = HealthGate(limit_s=40.0)
    assert gate.handle(Begin(), 0.0) == [Start()]
    assert gate.handle(Asked(after_ranks=False), 0.1) == [Ask(1, after_ranks=False)]


def test_only_what_is_known_to_be_broken_keeps_a_node_out() -> None:
    """What cannot be determined is healthy."""
    assert why_unfit([NO_DRIVER, WELL, FULL]) is None
    assert why_unfit([NO_DRIVER, LOST]) == "gpu GPU 3: is lost"


def test_a_host_with_nothing_wrong_is_fit() -> None:
    gate = asked()
    assert gate.handle(Found(1, WELL), 1.0) == []
    assert gate.handle(Answered(1), 1.0) == [Checked(None)]
    assert gate.next_deadline() is None


def test_a_broken_host_is_not_fit_and_everything_broken_is_named() -> None:
    gate = asked()
    other = Finding("nic", "mlx5_0", Fitness.UNHEALTHY, "is down")
    assert gate.handle(Found(1, LOST), 1.0) == [Note("error", "gpu GPU 3: is lost")]
    gate.handle(Found(1, other), 1.0)
    problem = "gpu GPU 3: is lost; nic mlx5_0: is down"
    assert gate.handle(Answered(1), 1.0) == [Checked(problem)]


def test_what_is_not_known_or_not_quite_right_is_said_once_until_it_changes() -> None:
    gate = asked()
    assert gate.handle(Found(1, NO_DRIVER), 1.0) == [Note("info", str(NO_DRIVER))]
    assert gate.handle(Found(1, FULL), 1.0) == [Note("warning", str(FULL))]
    gate.handle(Answered(1), 1.0)
    assert gate.handle(Asked(after_ranks=True), 2.0) == [Ask(2, after_ranks=True)]
    assert gate.handle(Found(2, NO_DRIVER), 2.0) == []
    gate.handle(Found(2, Finding("host", "/tmp", Fitness.HEALTHY)), 2.0)
    assert gate.handle(Noticed(FULL), 3.0) == [Note("warning", str(FULL))]


def test_an_answer_to_an_earlier_question_is_none() -> None:
    gate = asked()
    gate.handle(Asked(after_ranks=False), 1.0)
    assert gate.handle(Found(1, LOST), 1.0) == []
    assert gate.handle(Answered(1), 1.0) == []
    assert gate.handle(Answered(2), 2.0) == [Checked(None)]


def test_a_check_that_takes_too_long_is_ended_and_what_is_known_by_then_counts() -> None:
    """A driver may hang for ever. After ranks have ended, their memory has its own time."""
    gate = asked()
    gate.handle(Found(1, LOST), 1.0)
    assert gate.next_deadline() == 40.0
    kill, note, checked, another = gate.handle(TimePassed(), 40.0)
    assert (kill, checked) == (KillHealthProcess(), Checked("gpu GPU 3: is lost"))
    assert "took too long" in getattr(note, "text", "")
    assert another == Start(), "who watches while ranks run"
    assert gate.handle(Asked(after_ranks=False), 50.0) == [Ask(2, after_ranks=False)]

    assert asked(after_ranks=True).next_deadline() == 100.0


def test_a_check_that_dies_is_tried_once_more() -> None:
    gate = asked()
    gate.handle(Found(1, LOST), 1.0)
    assert gate.handle(HealthProcessDied("exit code -11"), 1.0) == [
        Start(),
        Ask(2, after_ranks=False),
    ]
    note, checked, another = gate.handle(HealthProcessDied("exit code -11"), 2.0)
    assert checked == Checked(None), "the first did not get to its end"
    assert another == Start(), "who watches while ranks run"
    assert "twice without an answer (exit code -11)" in getattr(note, "text", "")


def test_who_watches_is_replaced_until_it_is_hopeless() -> None:
    gate = asked()
    gate.handle(Answered(1), 1.0)
    for _ in range(DEATHS):
        assert gate.handle(HealthProcessDied("exit code 1"), 2.0) == [Start()]
    [note] = gate.handle(HealthProcessDied("exit code 1"), 3.0)
    assert "are not noticed while ranks run" in getattr(note, "text", "")
    assert gate.handle(Asked(after_ranks=False), 4.0)[0] == Start(), "who asks gets another"


def test_what_breaks_under_ranks_is_told_once() -> None:
    """Again only after it has been well."""
    gate = asked()
    gate.handle(Answered(1), 1.0)
    assert gate.handle(Noticed(LOST), 2.0) == [Note("error", str(LOST)), HostUnhealthy(LOST)]
    assert gate.handle(Noticed(LOST), 3.0) == []
    assert gate.handle(Noticed(WELL), 4.0) == []
    assert gate.handle(Noticed(LOST), 5.0)[-1] == HostUnhealthy(LOST)


def test_what_broke_and_was_fit_again_at_the_check_is_news_when_it_breaks_again() -> None:
    """A link that was lost and came back keeps no node out; when it is lost again, ranks end."""
    gate = asked()
    gate.handle(Answered(1), 1.0)
    lost = Finding("nic", "mlx5_0", Fitness.UNHEALTHY, "lost its link")
    gate.handle(Noticed(lost), 2.0)
    gate.handle(Asked(after_ranks=True), 3.0)
    gate.handle(Answered(2), 4.0)
    assert gate.handle(Noticed(lost), 5.0) == [Note("error", str(lost)), HostUnhealthy(lost)]


class GateLife(RuleBasedStateMachine):
    """Any order of events: each question is answered once, in bounded time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.gate = HealthGate(limit_s=40.0, memory_limit_s=60.0)
        self.is_running = self.is_asked = False
        self.number = 0

    def feed(self, event: Event) -> None:
        self.now += 0.25
        effects: list[Effect] = self.gate.handle(event, self.now)
        for effect in effects:
            match effect:
                case Start():
                    assert not self.is_running
                    self.is_running = True
                case Ask(number):
                    assert self.is_running
                    assert number > self.number
                    self.number = number
                case KillHealthProcess():
                    assert self.is_running
                    self.is_running = False
                case Checked():
                    assert self.is_asked, "an answer to no question"
                    self.is_asked = False

    @rule()
    def begin(self) -> None:
        self.feed(Begin())

    @rule(after_ranks=st.booleans())
    def ask(self, after_ranks: bool) -> None:
        self.is_asked = True
        self.feed(Asked(after_ranks))

    @rule(back=st.integers(0, 2), finding=st.sampled_from([LOST, NO_DRIVER, WELL, FULL]))
    def find(self, back: int, finding: Finding) -> None:
        self.feed(Found(self.number - back, finding))

    @rule(back=st.integers(0, 2))
    def answer(self, back: int) -> None:
        self.feed(Answered(self.number - back))

    @rule(finding=st.sampled_from([LOST, NO_DRIVER, WELL, FULL]))
    def notice(self, finding: Finding) -> None:
        self.feed(Noticed(finding))

    @precondition(lambda self: self.is_running)
    @rule()
    def die(self) -> None:
        self.is_running = False
        self.feed(HealthProcessDied("exit code 1"))

    @rule()
    def the_deadline_comes(self) -> None:
        if (deadline := self.gate.next_deadline()) is not None:
            self.now = max(self.now, deadline)
            self.feed(TimePassed())
            assert not self.is_asked

    @invariant()
    def a_question_is_bounded(self) -> None:
        assert self.is_asked == (self.gate.next_deadline() is not None)


TestGateLife = GateLife.TestCase
TestGateLife.settings = settings(max_examples=100, stateful_step_count=40)
