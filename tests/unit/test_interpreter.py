from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.interpreter import Verdict, judge, next_look

AGES = [
    (0.0, 0.0, Verdict.HEALTHY),
    (1.0, 1.0, Verdict.HEALTHY),  # at the limit, not above it
    (1.1, 0.0, Verdict.BLOCKED),
    (1.1, 1.0, Verdict.BLOCKED),
    (9.0, 1.1, Verdict.HELD),
    (0.5, 9.0, Verdict.HEALTHY),  # Python runs; the thread is only late
]


@pytest.mark.parametrize(("main_age", "thread_age", "expected"), AGES)
def test_two_ages_make_a_verdict(main_age: float, thread_age: float, expected: Verdict) -> None:
    """The main thread's stamp says whether, the other thread's says how."""
    now = 100.0
    assert judge(now - main_age, now - thread_age, now, limit_s=1.0) is expected


TIMES = st.floats(min_value=0, max_value=1e6)


@given(main_at=TIMES, thread_at=TIMES, now=TIMES, limit_s=st.floats(min_value=0.01, max_value=1e4))
def test_nobody_is_found_blocked_before_the_limit_and_everybody_after(
    main_at: float, thread_at: float, now: float, limit_s: float
) -> None:
    """H-1 and H-2: the next look is exactly the last instant of the verdict."""
    verdict = judge(main_at, thread_at, now, limit_s)
    assert (verdict is Verdict.HEALTHY) == (now <= main_at + limit_s)

    look_at = next_look(main_at, thread_at, now, limit_s)
    assert (look_at is None) == (verdict is Verdict.HELD)
    if look_at is not None:
        assert look_at >= now
        assert judge(main_at, thread_at, look_at, limit_s) is verdict
        later = look_at + max(1e-3, look_at * 1e-9)
        assert judge(main_at, thread_at, later, limit_s) is not verdict
