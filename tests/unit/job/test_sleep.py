"""Whether a machine has slept, and for how long."""

from __future__ import annotations

import math

from holdfast.base.pure.excuse import Excuse
from holdfast.job.pure.sleep import SleepDetector


def test_a_machine_that_is_called_long_after_its_deadline_has_slept_since_its_last_event() -> None:
    one = SleepDetector(from_s=3.0)
    assert one.called(5.0) is None, "it has not been due"
    one.handled(5.0, 7.0)
    assert one.called(10.0) is None
    assert (one.woke_at, one.slept_s) == (-math.inf, 0.0)
    one.handled(10.0, 12.0)
    assert one.called(15.1) == Excuse(15.1, 15.1 - 12.0)
    assert (one.woke_at, one.slept_s) == (15.1, 15.1 - 10.0)
    one.handled(15.1, None)
    assert one.called(99.0) is None, "it was due at no time"
    assert one.woke_at == 15.1


def test_a_shorter_delay_may_be_a_sleep_where_that_matters() -> None:
    one = SleepDetector(from_s=3.0)
    one.handled(0.0, 2.0)
    assert one.called(3.0) is None
    assert one.called(3.0, 0.5) == Excuse(3.0, 1.0)


def test_to_be_called_before_the_deadline_is_no_sleep_however_long_nothing_came() -> None:
    one = SleepDetector(from_s=3.0)
    one.handled(0.0, 100.0)
    assert one.called(99.0) is None
