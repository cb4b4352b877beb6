"""Hang verdicts: any running clock past its limit counts, and the deadline is exact."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.base.pure.excuse import Excuse
from holdfast.page.pure.clocks import (
    EXIT,
    FIRST_REPORT,
    HEARTBEAT,
    INITIAL_HEARTBEAT,
    MAIN_THREAD,
    OF_STEPS,
    OUTSIDE_SECTIONS,
    PAUSE,
    PING,
    SECTION,
    STEP,
    MainThreadMarks,
    RunningClock,
    Snapshot,
    Timeouts,
)
from holdfast.watch.pure.hang import (
    first_to_run_out,
    is_by_steps,
    next_deadline,
    overdue,
    running,
    running_in_place,
    shortest_limit,
)


def test_initial_heartbeat_runs_from_arming_until_the_first_beat() -> None:
    """H-1: at the limit the rank is healthy, strictly after it overdue."""
    limits = Timeouts(initial=10.0, subsequent=2.0)
    silent = Snapshot(armed_at=100.0)

    assert next_deadline(silent, limits) == 110.0
    assert overdue(silent, limits, now=110.0) is None
    assert overdue(silent, limits, now=110.001) == RunningClock(
        INITIAL_HEARTBEAT, None, 100.0, 10.0
    )

    beating = Snapshot(armed_at=100.0, heartbeat_at=109.0)

    assert next_deadline(beating, limits) == 111.0
    assert overdue(beating, limits, now=111.5) == RunningClock(HEARTBEAT, None, 109.0, 2.0)


def test_a_default_initial_limit_ends_with_the_first_section() -> None:
    """A rank that only opens sections sends no heartbeat; one that was chosen asks for it."""
    before = Snapshot(0.0, outside_since=0.0)
    after = Snapshot(0.0, outside_since=9.0, has_used_sections=True)
    default = Timeouts(initial=10.0, subsequent=5.0, section_ends_initial=True)
    chosen = Timeouts(initial=10.0, subsequent=5.0)

    assert overdue(before, default, now=11.0) == RunningClock(INITIAL_HEARTBEAT, None, 0.0, 10.0)
    assert next_deadline(after, default) is None
    assert overdue(after, default, now=1e6) is None
    assert overdue(after, chosen, now=11.0) == RunningClock(INITIAL_HEARTBEAT, None, 0.0, 10.0)
    beating = Snapshot(0.0, heartbeat_at=20.0, outside_since=9.0, has_used_sections=True)
    assert overdue(beating, default, now=25.5) == RunningClock(HEARTBEAT, None, 20.0, 5.0)


def test_in_place_the_older_of_two_marks_counts_and_none_that_is_switched_off() -> None:
    """``ping()`` counts once it was called in this epoch; no clock starts before the call does."""

    def found(marks: MainThreadMarks) -> RunningClock | None:
        return first_to_run_out(running_in_place(marks, 10.0, 5.0, 60.0))

    assert found(MainThreadMarks(12.0)) == RunningClock(MAIN_THREAD, None, 12.0, 60.0)
    assert found(MainThreadMarks(12.0, manual=4.0)) == RunningClock(MAIN_THREAD, None, 12.0, 60.0)
    assert found(MainThreadMarks(12.0, manual=11.0)) == RunningClock(PING, None, 11.0, 60.0)
    assert found(MainThreadMarks(3.0)) == RunningClock(MAIN_THREAD, None, 10.0, 60.0)
    assert found(MainThreadMarks(9.0, manual=8.0)) == RunningClock(MAIN_THREAD, None, 10.0, 60.0)
    assert found(MainThreadMarks(3.0, unlimited=True)) is None


def test_a_rank_that_never_reported_is_measured_from_the_report_of_another() -> None:
    """By the timeout of the initial heartbeat, and by no other clock."""
    awaited = Snapshot(100.0, is_awaited=True)

    assert next_deadline(awaited, Timeouts(initial=10.0, out_of_section=1.0)) == 110.0
    found = overdue(awaited, Timeouts(initial=10.0, out_of_section=1.0), now=110.5)
    assert found == RunningClock(FIRST_REPORT, None, 100.0, 10.0)
    assert next_deadline(awaited, Timeouts(out_of_section=1.0)) is None


IN_STEP = {"outside_since": None, "sections": {"step": 90.0}}


@pytest.mark.parametrize(
    ("shows", "limits", "judged"),
    [
        ({}, {}, PAUSE),
        ({"is_pause_known": True}, {}, STEP),
        ({"steps": 0.0}, {}, None),  # they are not counted
        ({}, {"steps": None}, None),
        ({}, {"out_of_section": 60.0}, OUTSIDE_SECTIONS),
        ({"warming_up": True}, {"out_of_section": 60.0}, PAUSE),
        (IN_STEP, {"sections": {"step": 50.0}}, SECTION),
        (IN_STEP, {"sections": {"step": None}}, PAUSE),
        (IN_STEP, {}, PAUSE),
        ({"heartbeat_at": 99.0}, {"subsequent": 50.0}, HEARTBEAT),
        ({"heartbeat_at": 99.0}, {}, PAUSE),
        ({"has_used_sections": False}, {"initial": 50.0}, INITIAL_HEARTBEAT),
        ({}, {"initial": 50.0}, PAUSE),
    ],
)
def test_steps_are_judged_only_while_no_timeout_that_was_chosen_runs(shows, limits, judged) -> None:
    """Between two sections, or in one without a timeout."""
    used = {"outside_since": 95.0, "has_used_sections": True, "steps": 30.0, "stepped_at": 94.0}
    snapshot = Snapshot(0.0, **{**used, **shows})
    timeouts = Timeouts(**{"steps": 60.0, "section_ends_initial": True, **limits})
    found = {clock.clock for clock in running(snapshot, timeouts)}
    assert found == ({judged} if judged else set())
    assert is_by_steps(snapshot, timeouts) == (judged in OF_STEPS)


def test_a_step_and_a_section_that_is_opened_or_closed_are_progress() -> None:
    limits = Timeouts(steps=60.0, sections={"step": None})
    signs = [
        {"stepped_at": 40.0},
        {"outside_since": 40.0},
        {"closed_at": 40.0},  # inside another section
        {"sections": {"step": 40.0}},
        {"heartbeat_at": 40.0},
    ]
    for sign in signs:
        shown = Snapshot(10.0, steps=9.0, **sign)
        assert next_deadline(shown, limits) == 100.0, sign
    assert next_deadline(Snapshot(10.0, steps=9.0), limits) == 70.0


def test_a_rank_that_has_left_is_measured_by_its_exit_alone() -> None:
    """Whatever it left open; without a limit, by nothing."""
    left = Snapshot(50.0, heartbeat_at=50.0, sections={"step": 50.0}, left_at=60.0)
    limits = Timeouts(1.0, 1.0, 1.0, {"step": 1.0}, exit=10.0)

    assert next_deadline(left, limits) == 70.0
    assert overdue(left, limits, now=70.5) == RunningClock(EXIT, None, 60.0, 10.0)
    assert overdue(left, Timeouts(1.0, 1.0, 1.0, {"step": 1.0}), now=1e9) is None


def test_an_outer_section_trips_although_a_younger_one_is_open_inside_it() -> None:
    """H-2: the verdict does not depend on what was opened last."""
    limits = Timeouts(sections={"step": 10.0, "checkpoint": 60.0})
    nested = Snapshot(armed_at=0.0, sections={"step": 0.0, "checkpoint": 9.0})

    assert overdue(nested, limits, now=11.0) == RunningClock(SECTION, "step", 0.0, 10.0)


def test_the_clock_that_ran_out_first_is_named() -> None:
    """Of several overdue clocks the one with the earliest deadline is the cause."""
    limits = Timeouts(subsequent=5.0, sections={"a": 4.0, "b": 1.0})
    stuck = Snapshot(armed_at=0.0, heartbeat_at=1.0, sections={"a": 1.0, "b": 3.0})

    found = overdue(stuck, limits, now=100.0)

    assert found == RunningClock(SECTION, "b", 3.0, 1.0)
    assert found is not None
    assert found.age_s(100.0) == 97.0


def test_time_outside_is_suspended_while_a_section_is_open() -> None:
    """A half-made opening (slot stored, stamp not yet cleared) is judged as open."""
    limits = Timeouts(out_of_section=1.0, sections={"step": None})

    assert overdue(Snapshot(0.0, outside_since=0.0, sections={"step": 0.5}), limits, 9.0) is None
    assert overdue(Snapshot(0.0, outside_since=None), limits, 9.0) is None
    assert overdue(Snapshot(0.0, outside_since=0.0), limits, 9.0) == RunningClock(
        OUTSIDE_SECTIONS, None, 0.0, 1.0
    )


def test_time_outside_is_not_judged_while_warming_up() -> None:
    """Other clocks are judged as ever."""
    limits = Timeouts(subsequent=3.0, out_of_section=1.0)
    warming = Snapshot(0.0, heartbeat_at=0.0, outside_since=0.0, warming_up=True)

    assert overdue(warming, limits, now=2.0) is None
    assert next_deadline(warming, limits) == 3.0


def test_none_never_trips() -> None:
    """Without limits there is no deadline, nothing shortest, and no verdict."""
    stuck = Snapshot(0.0, outside_since=0.0, sections={"unknown": 0.0})

    assert next_deadline(stuck, Timeouts()) is None
    assert shortest_limit(Timeouts(sections={"step": None})) is None
    assert overdue(stuck, Timeouts(), now=1e12) is None


def test_the_shortest_limit_is_the_shortest_of_all_kinds() -> None:
    """Whatever starts next has at least this long."""
    assert shortest_limit(Timeouts(9.0, 8.0, 7.0, {"a": None, "b": 6.0})) == 6.0
    assert shortest_limit(Timeouts(5.0, 8.0, 7.0, {"a": None, "b": 6.0})) == 5.0


@pytest.mark.parametrize(
    ("late_s", "deadline"),
    [(3.0, 203.0), (10.0, 210.0), (1e6, 210.0)],
    ids=["what was lost", "at most the limit", "not an hour for an hour"],
)
def test_a_late_monitor_gives_the_delay_back(late_s: float, deadline: float) -> None:
    """H-1 from the rank's side: it may have been held up by the same thing."""
    limits = Timeouts(subsequent=10.0)
    beat = Snapshot(0.0, heartbeat_at=100.0)
    excuse = Excuse(woke_at=200.0, late_s=late_s)

    assert next_deadline(beat, limits, excuse) == deadline
    assert overdue(beat, limits, deadline, excuse) is None
    assert overdue(beat, limits, deadline + 0.5, excuse) == RunningClock(
        HEARTBEAT, None, 100.0, 10.0
    )


def test_an_excuse_never_shortens_a_deadline() -> None:
    """A beat after the interruption counts from itself."""
    excuse = Excuse(woke_at=200.0, late_s=3.0)

    assert (
        next_deadline(Snapshot(0.0, heartbeat_at=201.0), Timeouts(subsequent=9.0), excuse) == 210.0
    )


NAMES = ("a", "b", "c")
# Halves are exact in binary, so that the model's sums and the code's agree to the last bit.
HALVES = st.integers(1, 40).map(lambda n: n / 2)
LIMIT = st.none() | HALVES


class HangMachine(RuleBasedStateMachine):
    """The naive model replays the whole history, half a second at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.limits = Timeouts()
        self.beats: list[float] = []
        self.open: dict[str, float] = {}
        self.outside = 0.0
        self.warming = False

    @rule(
        initial=LIMIT,
        subsequent=LIMIT,
        outside=LIMIT,
        sections=st.dictionaries(st.sampled_from(NAMES), LIMIT),
    )
    def set_limits(
        self,
        initial: float | None,
        subsequent: float | None,
        outside: float | None,
        sections: dict[str, float | None],
    ) -> None:
        self.limits = Timeouts(initial, subsequent, outside, sections)

    @rule(seconds=HALVES)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def beat(self) -> None:
        self.beats.append(self.now)

    @rule(name=st.sampled_from(NAMES))
    def open_section(self, name: str) -> None:
        self.open.setdefault(name, self.now)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close_section(self, data: st.DataObject) -> None:
        del self.open[data.draw(st.sampled_from(sorted(self.open)))]
        if not self.open:
            self.outside = self.now

    @rule(warming=st.booleans())
    def warm(self, *, warming: bool) -> None:
        self.warming = warming

    def snapshot(self) -> Snapshot:
        return Snapshot(
            0.0,
            self.beats[-1] if self.beats else None,
            None if self.open else self.outside,
            self.open,
            warming_up=self.warming,
        )

    def naive(self, now: float) -> bool:
        """Obviously right: one sentence of the specification per line."""
        limits = self.limits
        ages = [(now - opened, limits.sections.get(name)) for name, opened in self.open.items()]
        ages.append(
            (now - self.beats[-1], limits.subsequent) if self.beats else (now, limits.initial)
        )
        if not self.open and not self.warming:
            ages.append((now - self.outside, limits.out_of_section))
        return any(limit is not None and age > limit for age, limit in ages)

    @invariant()
    def agrees_with_the_naive_model(self) -> None:
        """H-1 and H-2, now and at every half second of the near future."""
        for ahead in range(45):
            now = self.now + ahead / 2
            assert (overdue(self.snapshot(), self.limits, now) is not None) == self.naive(now)

    @invariant()
    def deadline_is_exact(self) -> None:
        """Healthy at the deadline, overdue at once after it."""
        deadline = next_deadline(self.snapshot(), self.limits)
        if deadline is None:
            assert not self.naive(1e9)
            return
        assert overdue(self.snapshot(), self.limits, deadline) is None
        assert overdue(self.snapshot(), self.limits, deadline + 2**-20) is not None

    @invariant()
    def nothing_that_starts_now_runs_out_before_the_shortest_limit(self) -> None:
        """What lets a monitor sleep without being told of new clocks."""
        fresh = Snapshot(self.now, self.now, self.now)
        shortest = shortest_limit(self.limits)
        deadline = next_deadline(fresh, self.limits)
        assert deadline is None or (shortest is not None and deadline >= self.now + shortest)


TestHangMachine = HangMachine.TestCase
TestHangMachine.settings = settings(max_examples=60, stateful_step_count=30)
