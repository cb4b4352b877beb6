"""Limits learned from intervals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.fault_tolerance.timeouts_calc import TimeoutsCalc
from holdfast.options.arguments import parse_args
from holdfast.page.pure import clocks
from holdfast.watch.pure.learned import (
    NEVER,
    OUTSIDE,
    LimitsInForce,
    TrippedLimits,
    learn,
    missing,
)
from holdfast.watch.rank.limits_state import Loaded, apply_loaded

seconds = st.floats(min_value=1e-3, max_value=1e5)


@pytest.mark.parametrize(
    ("longest_s", "floor_s", "current_s", "current_is_learned", "expected_s"),
    [
        (2.0, 0.0, None, False, 10.0),  # nothing was there
        (2.0, 0.0, 600.0, False, 10.0),  # a configured limit is replaced
        (2.0, 0.0, 30.0, True, 20.0),  # a learned one is averaged with
        (2.0, 0.0, None, True, 10.0),  # "learned: no limit" is no number to average with
        (0.5, 30.0, None, False, 30.0),  # a fast run stops at the floor
        (0.5, 30.0, 100.0, True, 65.0),  # which holds before the average is taken ...
        (0.5, 30.0, 2.0, True, 30.0),  # ... and after
    ],
)
def test_a_limit_is_a_multiple_of_the_longest_interval(
    longest_s, floor_s, current_s, current_is_learned, expected_s
) -> None:
    """Safety factor, then floor, then the average with what was learned before."""
    limit_s = learn(
        longest_s,
        safety_factor=5.0,
        floor_s=floor_s,
        current_s=current_s,
        current_is_learned=current_is_learned,
    )
    assert limit_s == expected_s


@given(seconds, seconds, st.none() | seconds, st.booleans())
def test_no_learned_limit_is_below_the_floor(longest_s, floor_s, current_s, learned) -> None:
    """Whatever was measured and whatever was in force."""
    limit_s = learn(
        longest_s,
        safety_factor=5.0,
        floor_s=floor_s,
        current_s=current_s,
        current_is_learned=learned,
    )
    assert limit_s >= floor_s


@given(seconds, seconds, st.none() | seconds, st.none() | seconds, st.booleans(), st.booleans())
def test_no_learned_limit_is_below_the_given_one(
    longest_s, floor_s, given_s, current_s, learned, may_shorten
) -> None:
    """Whatever was measured, whatever is in force and however it came about."""
    limit_s = learn(
        longest_s,
        safety_factor=5.0,
        floor_s=floor_s,
        current_s=current_s,
        current_is_learned=learned,
        given_s=given_s,
        may_shorten=may_shorten,
    )
    assert limit_s is None or limit_s >= max(floor_s, given_s or 0.0)
    if not may_shorten:
        assert (limit_s is None) == (current_s is None)
        assert limit_s is None or limit_s >= current_s


optional_seconds = st.none() | seconds


@given(
    given=st.builds(
        clocks.Timeouts,
        optional_seconds,
        optional_seconds,
        optional_seconds,
        st.fixed_dictionaries({"a": optional_seconds, "b": optional_seconds}),
    ),
    calls=st.lists(st.tuples(seconds, seconds, seconds, st.booleans()), min_size=1, max_size=5),
)
def test_no_history_of_calculations_goes_below_the_given_timeouts(given, calls) -> None:
    """Each starts from the limits of the one before; the first from the given ones."""
    limits = given
    saved = Loaded(
        clocks.Timeouts(
            1.0, 1.0, 1.0, {"a": 1.0, "b": 1.0}, clocks.Learned(True, True, ("a", "b"))
        ),
        heartbeats=True,
        sections=True,
    )
    for one_s, other_s, outside_s, may_shorten in calls:
        calc = TimeoutsCalc(
            initial_max=one_s,
            subsequent_max=other_s,
            section_max={"a": one_s, "b": other_s},
            out_of_section_max=outside_s,
            floor_s=1.0,
            given=given,
            may_shorten=may_shorten,
        )
        limits = calc.with_sections(calc.with_heartbeats(limits))
        for now in (limits, apply_loaded(saved, 1.0, given, limits)):
            assert is_at_least(now.out_of_section, given.out_of_section)
            assert all(is_at_least(now.sections[name], given.sections[name]) for name in "ab")
            assert is_at_least(now.initial, given.initial)
            assert is_at_least(now.subsequent, given.subsequent)


def is_at_least(limit_s: float | None, given_s: float | None) -> bool:
    return limit_s is None or given_s is None or limit_s >= given_s


@pytest.mark.parametrize(
    ("selected", "with_outside", "expected"),
    [
        (None, True, ["save", OUTSIDE]),
        ([], True, ["save", OUTSIDE]),  # empty asks for all, like None
        (["step"], True, [OUTSIDE]),
        (["step"], False, []),
        (["save"], False, ["save"]),
        (("save", "step"), False, ["save"]),
    ],
)
def test_what_is_missing_is_named(selected, with_outside, expected) -> None:
    """Only what is asked for has to be there."""
    longest_s = {"step": 1.0, "save": NEVER}
    assert missing(longest_s, NEVER, selected=selected, with_outside=with_outside) == expected


def test_an_unknown_section_is_a_key_error() -> None:
    """A typing mistake is not "not ready yet"."""
    with pytest.raises(KeyError, match="stp"):
        missing({"step": 1.0}, 1.0, selected=["stp"], with_outside=False)


def test_a_limit_that_tripped_is_doubled_once_it_comes_back() -> None:
    """Equal or shorter limits of the same clock are raised; nothing else is."""
    guard = TrippedLimits()
    guard.tripped("section", "step", 3.0)

    assert guard.raise_limit("section", "step", 2.9) == 6.0
    assert guard.raise_limit("section", "step", 3.0) == 6.0
    assert guard.raise_limit("section", "step", 3.1) == 3.1
    assert guard.raise_limit("section", "save", 2.0) == 2.0
    assert guard.raise_limit("heartbeat", None, 2.0) == 2.0


@given(st.lists(seconds, min_size=1), seconds)
def test_no_limit_trips_twice(tripped_s, limit_s) -> None:
    """The limit in force is always longer than every one that tripped."""
    guard = TrippedLimits()
    for each_s in tripped_s:
        guard.tripped("heartbeat", None, each_s)
    assert guard.raise_limit("heartbeat", None, limit_s) > max(tripped_s)


@pytest.mark.parametrize(("floor", "limit_s", "again_s"), [("0", 0.5, 0.5), ("30", 30.0, 60.0)])
def test_a_floor_of_0_gives_the_values_of_the_original(floor, limit_s, again_s) -> None:
    """Decision 6: the formula's value, also after it has ended a rank; by default neither."""
    args = parse_args([f"--ft-learned-timeout-floor={floor}", "x.py"], {})
    cfg = FaultToleranceConfig.from_args(args)
    calc = TimeoutsCalc(
        initial_max=0.1,
        subsequent_max=0.1,
        safety_factor=cfg.safety_factor,
        floor_s=cfg.learned_timeout_floor,
    )
    calculated = calc.with_heartbeats(clocks.Timeouts())
    assert calculated.subsequent == limit_s

    tripped = TrippedLimits()
    limits = LimitsInForce(tripped)
    limits.configure(cfg.to_wire())
    learned = clocks.Timeouts(limit_s, limit_s, learned=clocks.Learned(heartbeat=True))
    assert limits.update(learned) is None
    tripped.tripped(clocks.HEARTBEAT, None, limit_s)
    limits.update(learned)
    assert limits.limits.subsequent == again_s
