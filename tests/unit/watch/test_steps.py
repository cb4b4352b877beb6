"""Optimizer steps as heartbeats: how long a pause may be, and what is done after it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.evidence.pure.evidence import Verdict
from holdfast.node.pure.rank_life import MonitorSaid, RankLives, ToMonitors
from holdfast.page.pure import clocks
from holdfast.page.pure.clocks import Snapshot, Timeouts
from holdfast.watch.pure import monitor
from holdfast.watch.pure import monitor_messages as messages
from holdfast.watch.pure.learned import TrippedLimits
from holdfast.watch.pure.steps import WARM_UP, StepProgress

ARMED = 100.0


class Rank:
    """A rank that makes steps and waits, on a virtual clock; its watch looks when it wants to."""

    def __init__(self, floor_s: float, configured_s: float | None = None) -> None:
        self.tripped = TrippedLimits()
        self.watch = monitor.Watch(9, 5.0, self.tripped, step_floor_s=floor_s)
        self.limits = Timeouts(subsequent=configured_s)
        self.found: list[float] = []  # limits that ran out
        self.pauses: list[float] = []  # the same, of what is only said in the log
        self.is_hang = False
        self.is_ended = False
        self.total = -1
        self.looks = 0
        self.by_timeout: list[float] = []  # when a chosen one has run out
        self.begin(ARMED)

    def begin(self, now: float) -> None:
        """A new cycle: its page is empty, its monitor is the same."""
        self.now = self.armed_at = now
        self.steps, self.step_at, self.longest_s = 1.0, None, -1.0
        self.is_ended = False
        self.look()

    def snapshot(self) -> Snapshot:
        at = {"stepped_at": self.step_at, "steps": self.steps, "longest_s": self.longest_s}
        return Snapshot(self.armed_at, **at)

    def shown(self) -> monitor.PageRead:
        return monitor.PageRead(self.snapshot(), self.limits)

    def look(self) -> None:
        self.looks += 1
        effects = self.watch.handle(self.shown(), self.now)
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, monitor.LookAgain):
                effects += self.watch.handle(self.shown(), self.now)
            elif isinstance(effect, monitor.LookAtState) and effect.asks:
                self.watch.handle(monitor.CollectivesCounted(self.total), self.now)
            elif isinstance(effect, monitor.TakeEvidence):
                if effect.overdue.clock not in clocks.OF_STEPS:
                    self.by_timeout.append(self.now)
                    self.is_ended = True
                    return
                found = self.pauses if effect.overdue.clock == clocks.PAUSE else self.found
                found.append(effect.overdue.limit_s)
                is_hang = self.is_hang and found is self.found
                self.watch.handle(monitor.EvidenceTaken(is_hang), self.now)
                effects += self.watch.handle(self.shown(), self.now)
            elif isinstance(effect, monitor.SendSignal):
                self.is_ended = True

    def passes(self, seconds: float) -> None:
        """Nothing happens for so long, but what the watch wants."""
        until = self.now + seconds
        while not self.is_ended:
            due = self.watch.next_deadline()
            assert due is not None
            if due >= until:
                break
            self.now = max(self.now, due) + 1e-6
            self.look()
        self.now = max(self.now, until)

    def step(self, after_s: float) -> None:
        self.passes(after_s)
        if self.step_at is not None:
            self.longest_s = max(self.longest_s, self.now - self.step_at)
        self.step_at, self.steps = self.now, self.steps + 1

    def train(self, steps: int, step_s: float) -> None:
        for _ in range(steps):
            self.step(step_s)

    def collectives(self, seconds: float, every_s: float) -> None:
        for _ in range(int(seconds / every_s)):
            self.passes(every_s)
            self.total += 1

    @property
    def limit_s(self) -> float | None:
        """Of a stall."""
        progress = self.watch.progress
        if not progress.is_pause_known:
            progress.judged(self.now, 0.0, is_pause=True)
        return progress.limit_s(self.limits.subsequent)


def test_the_first_steps_are_watched_and_teach_nothing() -> None:
    """They compile. A rank that is stopped in them is seen."""
    rank = Rank(600.0)
    rank.train(WARM_UP - 2, 400.0)
    rank.passes(700.0)
    assert rank.pauses[0] == 60.0
    assert rank.found == [600.0]
    rank.step(1.0)
    rank.step(1.0)
    rank.passes(700.0)
    assert rank.found == [600.0, 600.0]


@pytest.mark.parametrize(
    ("step_s", "configured_s", "limit_s"),
    [(0.2, 2700, 600), (100, 2700, 1000), (400, 2700, 2700), (400, None, 4000), (0.2, 60, 60)],
)
def test_a_pause_may_be_ten_times_a_usual_one_within_floor_and_timeout(
    step_s, configured_s, limit_s
) -> None:
    rank = Rank(600.0, configured_s)
    rank.train(60, step_s)
    rank.look()
    if rank.found:  # steps of 400 s, and a timeout of 60 s that the first of them has tripped
        return
    assert rank.watch.progress.stall_s(configured_s) == pytest.approx(limit_s)
    assert rank.limit_s == pytest.approx(limit_s)


def test_one_long_pause_of_many_does_not_make_the_limit_ten_times_as_long() -> None:
    rank = Rank(600.0)
    rank.train(200, 30.0)
    rank.step(500.0)
    rank.train(200, 30.0)
    rank.look()
    assert rank.limit_s == pytest.approx(1000.0)


@given(st.floats(0.1, 5e3), st.floats(0.01, 50.0), st.integers(20, 60), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_pause_that_returns_is_learned_whatever_its_length(
    pause_s, step_s, steps, is_restarted
) -> None:
    """An evaluation after every so many steps is found too long in the beginning at most."""
    rank = Rank(100.0)
    rank.train(60, step_s)
    for _ in range(3):
        rank.step(pause_s)
        rank.train(steps, step_s)
    if is_restarted:
        rank.begin(rank.now + 5.0)
        rank.train(60, step_s)
    before = list(rank.found)
    for _ in range(3):
        rank.train(steps, step_s)
        rank.step(pause_s * 1.2)
    assert rank.found == before


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_pause_is_looked_at_less_and_less_often(data: st.DataObject) -> None:
    """Whatever came before: once in the beginning, at the limit, and when it has doubled."""
    rank = Rank(10.0, data.draw(st.sampled_from([None, 20.0, 100.0])))
    rank.train(data.draw(st.integers(0, 30)), data.draw(st.floats(0.01, 5.0)))
    rank.step(data.draw(st.floats(0.01, 1e2)))
    rank.pauses.clear()
    rank.found.clear()
    rank.passes(5e3)
    assert len(rank.pauses) == 1
    assert rank.found[0] >= 10.0
    assert all(after >= 1.99 * before for before, after in pairwise(rank.found)), rank.found


@pytest.mark.parametrize(("again_s", "looks"), [(0.0, [600, 1200]), (65.0, [600, 665])])
def test_another_look_follows_when_it_may_tell_more(again_s: float, looks: list[float]) -> None:
    progress = StepProgress(600.0)
    progress.looked(Snapshot(ARMED, stepped_at=ARMED, steps=30.0))
    assert progress.limit_s(2700.0) == 60.0
    progress.judged(ARMED + 60.0, 0.0, is_pause=True)
    assert progress.limit_s(2700.0) == looks[0]
    progress.judged(ARMED + 600.0, again_s, is_pause=False)
    assert progress.limit_s(2700.0) == pytest.approx(looks[1])
    progress.looked(Snapshot(ARMED, stepped_at=ARMED + 601.0, steps=31.0))
    assert progress.limit_s(2700.0) < 600.0, "a step ends the pause"


def test_what_another_ranks_look_has_shown_is_not_looked_for_again() -> None:
    """Ranks learn of their collectives up to a minute apart."""
    one, look = watch(), stepped(50, 200.0)
    one.handle(look, 200.0)
    one.handle(Verdict(is_pause=True), 206.0)
    one.handle(Verdict(is_stall=True), 255.0)
    go_on(one, look, 309.0)
    assert without_looks(one.handle(look, 310.1)) == [monitor.LookAgain()]


# ------------------------------------------------------------------ collectives
def test_collectives_without_steps_are_progress() -> None:
    """An evaluation of three hours, whose ranks reduce something every second."""
    rank = Rank(600.0)
    rank.train(50, 1.0)
    rank.collectives(10_000.0, 1.0)
    assert rank.found == []
    assert rank.limit_s == 600.0
    rank.passes(700.0)
    assert rank.found == [pytest.approx(600.0)]


def test_a_rank_without_steps_has_warmed_up_after_some_looks_that_saw_collectives() -> None:
    rank = Rank(60.0)
    rank.passes(1000.0)
    rank.collectives(13.0, 1.0)
    assert not rank.watch.progress.is_warm
    rank.collectives(30.0, 1.0)
    assert rank.watch.progress.is_warm
    rank.found.clear()
    rank.passes(100.0)
    assert rank.found == [pytest.approx(60.0)]


@given(st.floats(0.001, 600.0), st.floats(1.0, 50.0))
@settings(max_examples=30, deadline=None)
def test_a_rank_is_asked_once_a_second_at_most_and_not_while_it_makes_steps(
    floor_s, step_s
) -> None:
    progress = StepProgress(floor_s)
    progress.looked(Snapshot(ARMED, stepped_at=ARMED, steps=1.0))
    asked = [
        now
        for now in (ARMED + 0.1 * tick for tick in range(200))
        if progress.is_look_due(now) and progress.is_question_due(now)
    ]
    assert all(after - before >= 0.999 for before, after in pairwise(asked))
    rank = StepProgress(60.0)
    for step in range(50):
        at = ARMED + step * min(step_s, 5.0)
        rank.looked(Snapshot(ARMED, stepped_at=at, steps=step + 1.0))
        assert not rank.is_look_due(at)


# ------------------------------------------------------------------ a rank that uses sections
class RankWithSections(Rank):
    """The time outside sections has no timeout, unless the test gives one."""

    def __init__(self, floor_s: float, **timeouts: float | None) -> None:
        self.open: dict[str, float] = {}
        self.outside_s, self.outside_since = -1.0, ARMED
        self.closed_at: float | None = None
        super().__init__(floor_s)
        self.limits = Timeouts(subsequent=2700.0, sections={"step": 100.0, **timeouts})

    def snapshot(self) -> Snapshot:
        """As ``PageView`` reads it."""
        longest_s, limits = self.longest_s, self.limits.sections
        if not self.open:
            longest_s = min(
                longest_s, max(self.outside_s, (self.step_at or 0) - self.outside_since)
            )
        elif all(limits[name] is not None for name in self.open):
            longest_s = min(longest_s, self.outside_s)
        return (
            super()
            .snapshot()
            .but(
                outside_since=None if self.open else self.outside_since,
                sections=dict(self.open),
                has_used_sections=True,
                closed_at=self.closed_at,
                longest_s=longest_s,
            )
        )

    def enter(self, name: str) -> None:
        if not self.open:
            self.outside_s = max(self.outside_s, self.now - self.outside_since)
        self.open[name] = self.now

    def leave(self, name: str) -> None:
        del self.open[name]
        self.closed_at = self.now
        if not self.open:
            self.outside_since = self.now

    def train(self, steps: int, step_s: float) -> None:
        """A tenth of each step outside of its section, for its data."""
        for _ in range(steps):
            self.passes(0.1 * step_s)
            self.enter("step")
            self.step(0.8 * step_s)
            self.passes(0.1 * step_s)
            self.leave("step")


def test_a_hang_between_two_sections_is_a_stall() -> None:
    rank = RankWithSections(600.0)
    rank.train(100, 1.0)
    rank.passes(605.0)
    assert (rank.pauses, rank.found, rank.by_timeout) == ([60.0], [600.0], [])
    assert not rank.is_ended, "nothing is proved"
    rank.is_hang = True
    rank.passes(700.0)
    assert rank.is_ended


def test_in_a_section_its_own_timeout_judges_alone() -> None:
    rank = RankWithSections(60.0)
    rank.train(100, 1.0)
    rank.enter("step")
    rank.passes(99.9)
    assert (rank.pauses, rank.found) == ([], [])
    rank.passes(1.0)
    assert rank.by_timeout == [pytest.approx(rank.open["step"] + 100.0)]


def test_a_chosen_time_outside_sections_judges_alone() -> None:
    rank = RankWithSections(60.0)
    rank.limits = rank.limits.but(out_of_section=500.0)
    rank.train(100, 1.0)
    rank.passes(1000.0)
    assert (rank.pauses, rank.found) == ([], [])
    assert rank.by_timeout == [pytest.approx(rank.outside_since + 500.0)]


def test_the_end_of_a_section_is_progress_also_inside_one_without_a_timeout() -> None:
    rank = RankWithSections(600.0, epoch=None, validation=7200.0)
    rank.enter("epoch")
    rank.train(100, 1.0)
    rank.enter("validation")
    rank.passes(5000.0)
    rank.leave("validation")
    rank.passes(599.0)
    assert rank.found == []
    rank.passes(10.0)
    assert rank.found == [pytest.approx(600.0)]


@given(st.floats(1.0, 3000.0), st.floats(0.01, 30.0), st.booleans())
@settings(max_examples=40, deadline=None)
def test_only_pauses_outside_sections_are_learned(pause_s, step_s, is_inside) -> None:
    """A save of half an hour in its section leaves the limit where it is."""
    rank = RankWithSections(600.0, save=3600.0)
    rank.train(60, step_s)
    for _ in range(3):
        if is_inside:
            rank.enter("save")
        rank.passes(pause_s)
        if is_inside:
            rank.leave("save")
        rank.train(30, step_s)
    rank.look()
    before = len(rank.found)
    limit_s = rank.watch.progress.stall_s(2700.0)
    if is_inside:
        assert limit_s == 600.0
        return
    assert limit_s >= min(2700.0, max(600.0, 1.99 * pause_s))
    rank.passes(1.2 * pause_s)
    assert len(rank.found) == before or 1.2 * pause_s > 2700.0


def test_sections_whose_timeouts_run_cost_no_more_looks_than_without_steps() -> None:
    """But while the rank is outside of them."""
    looks = []
    for counts in (False, True):
        rank = RankWithSections(600.0, long=10_000.0)
        rank.limits = rank.limits.but(sections={"long": 10_000.0, "step": 300.0})
        rank.steps = float(counts)
        rank.enter("long")
        for _ in range(50):
            rank.passes(100.0)
            if counts:
                rank.steps += 1
                rank.step_at = rank.now
        looks.append(rank.looks)
    assert looks[0] == looks[1] > 10


def test_a_pause_that_ends_while_evidence_is_taken_is_over() -> None:
    """The section that has ended it may hang, and has a timeout."""
    one, look = watch(), stepped(50, 200.0)
    one.handle(look, 200.0)
    one.handle(look, 206.1)
    (taking,) = without_looks(one.handle(look, 206.1))
    assert isinstance(taking, monitor.TakeEvidence)
    opened = Snapshot(ARMED, stepped_at=200.0, steps=50.0, sections={"step": 206.2})
    limits = LIMITS.but(sections={"step": 0.1})
    effects = one.handle(monitor.PageRead(opened, limits), 206.4)
    assert without_looks(effects) == [monitor.Abandon(monitor.GOES_ON), monitor.LookAgain()]
    assert monitor.LookAgain() in one.handle(monitor.PageRead(opened, limits), 206.4)
    (taking,) = without_looks(one.handle(monitor.PageRead(opened, limits), 206.4))
    assert taking.overdue.clock == clocks.SECTION


def test_a_rank_that_is_woken_for_its_stacks_after_a_proof_does_not_get_away() -> None:
    one, look = watch(), stepped(50, 200.0)
    one.handle(look, 200.0)
    assert found_late(one, look, 260.1)
    one.handle(Verdict(is_hang=True), 260.2)
    woken = stepped(51, 260.3)
    assert without_looks(one.handle(woken, 260.4)) == []
    one.handle(monitor.EvidenceTaken(is_hang=True), 260.5)
    assert monitor.SendSignal in map(type, one.handle(woken, 260.5))


# ------------------------------------------------------------------ the watch of such a rank
LIMITS = Timeouts(subsequent=2700.0)
SIGKILL = 9


def watch() -> monitor.Watch:
    return monitor.Watch(SIGKILL, 5.0, TrippedLimits(), step_floor_s=60.0)


def stepped(steps: int, at: float, longest_s: float = 0.2) -> monitor.PageRead:
    return monitor.PageRead(
        Snapshot(ARMED, stepped_at=at, steps=float(steps), longest_s=longest_s), LIMITS
    )


def found_late(one: monitor.Watch, look: monitor.PageRead, now: float) -> list[monitor.Effect]:
    """Look whenever the watch wants to, then twice, as the page has no lock."""
    one.handle(Verdict(is_pause=True), now - 59.0)
    go_on(one, look, now)
    assert without_looks(one.handle(look, now)) == [monitor.LookAgain()]
    return without_looks(one.handle(look, now))


def go_on(one: monitor.Watch, look: monitor.PageRead, now: float) -> None:
    while (due := one.next_deadline()) is not None and due < now - 0.2:
        assert without_looks(one.handle(look, due)) == []


def without_looks(effects: list[monitor.Effect]) -> list[monitor.Effect]:
    return [each for each in effects if not isinstance(each, monitor.LookAtState)]


@pytest.mark.parametrize("is_hang", [True, False])
def test_a_rank_without_steps_is_ended_if_the_verdict_says_so_and_else_goes_on(is_hang) -> None:
    one, look = watch(), stepped(50, 200.0)
    one.handle(look, 200.0)
    (taking,) = found_late(one, look, 260.1)
    assert isinstance(taking, monitor.TakeEvidence)
    assert taking.overdue.clock == clocks.STEP
    one.handle(monitor.EvidenceTaken(is_hang), 260.2)
    effects = without_looks(one.handle(look, 260.2))
    if is_hang:
        assert [type(each) for each in effects] == [
            monitor.Conclude,
            monitor.SendSignal,
            monitor.SendSignal,
        ]
        return
    written, abandoned, again = effects
    assert type(written) is monitor.Conclude  # of a stall there is evidence of all ranks
    assert (type(abandoned), abandoned.why) == (monitor.Abandon, monitor.GOES_ON)
    assert again == monitor.LookAgain()  # or nobody would wake up for it any more
    one.handle(look, 260.2)
    go_on(one, look, 320.0)  # twice as long: it is no longer news
    assert again in one.handle(look, 320.5)


def test_a_proof_that_comes_late_is_asked_for_again_and_carried_out() -> None:
    """The rank was not ended, and has made no step since: it need not wait for twice as long."""
    one, look = watch(), stepped(50, 200.0)
    one.handle(look, 200.0)
    (taking,) = found_late(one, look, 260.1)
    late = taking.until + 0.1
    assert monitor.LookAgain() in one.handle(look, late)
    one.handle(look, late)
    proof = Verdict(is_hang=True)
    assert one.is_late(proof)
    assert one.handle(proof, late + 0.1) == []
    assert not one.is_late(proof)
    assert without_looks(one.handle(look, late + 0.1)) == [monitor.LookAgain()]
    (taking,) = without_looks(one.handle(look, late + 0.1))
    assert not one.is_late(proof), "it is awaited"
    one.handle(monitor.EvidenceTaken(is_hang=True), late + 0.2)
    effects = without_looks(one.handle(look, late + 0.2))
    assert monitor.SendSignal in map(type, effects)


def test_a_proof_that_comes_after_a_step_ends_nobody() -> None:
    one, look = watch(), stepped(50, 200.0)
    one.handle(look, 200.0)
    (taking,) = found_late(one, look, 260.1)
    one.handle(look, taking.until + 0.1)
    moved = stepped(51, taking.until + 0.2)
    one.handle(moved, taking.until + 0.3)
    assert not one.is_late(Verdict(is_hang=True))
    one.handle(Verdict(is_hang=True), taking.until + 0.4)
    assert without_looks(one.handle(moved, taking.until + 0.5)) == []


def test_without_a_verdict_in_time_nobody_is_ended_for_missing_steps() -> None:
    one, look = watch(), stepped(50, 200.0)
    one.handle(look, 200.0)
    (taking,) = found_late(one, look, 260.1)
    effects = without_looks(one.handle(look, taking.until + 0.1))
    assert [type(it) for it in effects][1:] == [monitor.Abandon, monitor.LookAgain]


def test_a_first_rank_with_steps_alone_does_not_oblige_the_others_to_report() -> None:
    lives = RankLives(awaits_reports=True)
    lives.start_cycle(0, range(2), 0.0)
    armed = [messages.WatchBegan(0, by_steps=True), messages.WatchBegan(0)]
    assert lives.handle(MonitorSaid(0, armed[0]), 1.0) == []
    awaited = ToMonitors({1: messages.Await(0, 1, 0, 1.0)})
    assert awaited in lives.handle(MonitorSaid(0, armed[1]), 1.0)
