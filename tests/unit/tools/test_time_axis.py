"""Ticks of an axis: round, few, and all in one unit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.tools.report.time_axis import ticks


@pytest.mark.parametrize(
    ("start", "length", "labels"),
    [
        (0.0, 0.02, ["0", "5", "10", "15", "20 ms"]),
        (0.0, 2.6, ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5 s"]),
        (0.0, 21.1, ["0", "5", "10", "15", "20 s"]),
        (13.2, 105.6, ["20", "40", "60", "80", "100 s"]),
        (0.0, 600.0, ["0", "2", "4", "6", "8", "10 min"]),
        (0.0, 3600.0, ["0", "10", "20", "30", "40", "50", "60 min"]),
        (0.0, 50_000.0, ["0", "2", "4", "6", "8", "10", "12 h"]),
        (0.0, 2e6, ["0", "5", "10", "15", "20 d"]),
        (0.0, 0.0, []),
        (0.0, float("inf"), []),
    ],
)
def test_labels_are_round_and_the_last_has_the_unit(
    start: float, length: float, labels: list[str]
) -> None:
    assert [label for _, label in ticks(start, length)] == labels


@given(st.floats(0.0, 1e7), st.floats(1e-3, 1e8))
def test_there_are_two_to_nine_ticks_within_the_axis(start: float, length: float) -> None:
    found = ticks(start, length)
    assert 2 <= len(found) <= 9
    assert all(start - 1e-6 * length <= at <= start + (1 + 1e-6) * length for at, _ in found)
