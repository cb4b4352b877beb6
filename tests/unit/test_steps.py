"""Optimizer steps as heartbeats: how long a pause may be, and what is done after it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.evidence import KINDS, Verdict
from holdfast.core.launch.rank_life import AwaitReport, MonitorSaid, RankLives
from holdfast.core.monitor import hang, monitor
from holdfast.core.monitor import monitor_messages as messages
from holdfast.core.monitor.hang import Limits, Snapshot
from holdfast.core.monitor.learned import TrippedLimits
from holdfast.core.monitor.steps import WARM_UP, is_hang, step_limit


@pytest.mark.parametrize(
    ("steps", "longest", "configured", "limit"),
    [
        (WARM_UP - 1, 1.0, 2700, None),
        (WARM_UP, -1.0, 2700, None),
        (WARM_UP, 0.2, 2700, 600),
        (WARM_UP, 100.0, 2700, 1000),
        (WARM_UP, 400.0, 2700, 2700),
        (WARM_UP, 400.0, None, 4000),
        (WARM_UP, 0.2, 60, 60),
    ],
)
def test_a_pause_may_be_ten_times_the_longest_within_floor_and_timeout(
    steps, longest, configured, limit
) -> None:
    assert step_limit(steps, longest, 600.0, configured) == limit


@given(st.floats(0, 1e6), st.floats(1, 1e4))
def test_a_pause_that_was_seen_is_never_too_long_unless_the_user_said_so(longest, floor) -> None:
    limit = step_limit(WARM_UP, longest, floor, None)
    assert limit is not None
    assert limit > longest or math.isclose(limit, longest)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_is_ended_for_its_steps_only_where_a_culprit_does_nothing(kind) -> None:
    goes_on = {"computing", "kernel", "slow", "unknown"}
    assert is_hang(Verdict((3,), kind, "", "high")) == (kind not in goes_on)
    assert not is_hang(Verdict((), kind))
    assert not is_hang(None)


# ------------------------------------------------------------------ the watch of such a rank
ARMED = 100.0
LIMITS = Limits(subsequent=2700.0)
SIGKILL = 9


def watch() -> monitor.Watch:
    return monitor.Watch(SIGKILL, 5.0, TrippedLimits(), step_floor_s=60.0)


def stepped(steps: int, at: float, longest_s: float = 0.2) -> monitor.Looked:
    return monitor.Looked(
        Snapshot(ARMED, heartbeat_at=at, steps=float(steps), longest_step_s=longest_s), LIMITS
    )


def found_late(one: monitor.Watch, look: monitor.Looked, now: float) -> list[monitor.Effect]:
    """Look twice, as the page has no lock."""
    assert one.handle(look, now) == [monitor.LookAgain()]
    return one.handle(look, now)


def test_a_rank_is_looked_at_again_while_its_steps_are_too_few_for_a_limit() -> None:
    one = watch()
    assert one.handle(stepped(3, ARMED), ARMED) == []
    assert one.next_deadline() == ARMED + 60
    assert one.handle(stepped(3, ARMED), ARMED + 1000) == []  # compiling takes what it takes


def test_a_pause_within_the_limit_is_looked_at_once() -> None:
    one = watch()
    one.handle(stepped(50, 200.0), 200.0)
    assert one.next_deadline() == 260.0


@pytest.mark.parametrize("is_hang", [True, False])
def test_a_rank_without_steps_is_ended_if_the_verdict_says_so_and_else_goes_on(is_hang) -> None:
    one, look = watch(), stepped(50, 200.0)
    one.handle(look, 200.0)
    (taking,) = found_late(one, look, 260.1)
    assert isinstance(taking, monitor.TakeEvidence)
    assert taking.overdue.clock == hang.STEP
    one.handle(monitor.EvidenceTaken(is_hang), 260.2)
    effects = one.handle(look, 260.2)
    if is_hang:
        assert [type(each) for each in effects] == [monitor.Conclude, monitor.Send, monitor.Send]
        return
    assert [(type(each), each.why) for each in effects] == [(monitor.Abandon, monitor.GOES_ON)]
    assert one.handle(look, 260.3) == []
    assert one.next_deadline() == 200.0 + 120.0  # twice as long: it is no longer news


def test_without_a_verdict_in_time_nobody_is_ended_for_missing_steps() -> None:
    one, look = watch(), stepped(50, 200.0)
    one.handle(look, 200.0)
    (taking,) = found_late(one, look, 260.1)
    (effect,) = one.handle(look, taking.until + 0.1)
    assert isinstance(effect, monitor.Abandon)


def test_a_first_rank_with_steps_alone_does_not_oblige_the_others_to_report() -> None:
    lives = RankLives()
    lives.start_cycle(0, 2, 0.0)
    armed = [messages.Armed(0, by_steps=True), messages.Armed(0)]
    assert lives.handle(MonitorSaid(0, armed[0]), 1.0) == []
    assert AwaitReport(1, 1.0) in lives.handle(MonitorSaid(0, armed[1]), 1.0)
