"""How long a monitor sleeps: never past the deadline by more than the kernel's slack allows."""

import pytest

from holdfast.watch.monitor.monitor_main import sleep_s


@pytest.mark.parametrize(
    ("deadline", "slept_s"),
    [
        (None, None),
        (100.0, 0.0),
        (99.0, 0.0),
        (100.5, 0.5),
        (110.0, 9.95),
        (160.0, 59.9),
        (1e12, 86400.0),
        (float("inf"), 86400.0),
    ],
)
def test_long_sleeps_aim_early(deadline: float | None, slept_s: float | None) -> None:
    """By the slack that the kernel may add; short ones are exact; none overflows epoll."""
    assert sleep_s(deadline, now=100.0) == pytest.approx(slept_s)
