"""Ranks in words: short for jobs of any size."""

from __future__ import annotations

import pytest

from holdfast.events.run.run_words import done_in_short, named
from holdfast.watch.pure.monitor_messages import Signalled


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([5], "rank 5"),
        ([3, 1], "ranks 1, 3"),
        (range(8), "ranks 0, 1, 2, 3, 4, 5, 6, 7"),
        ([*range(77), *range(78, 1024)], "ranks 0-76,78-1023"),
    ],
)
def test_ranks_are_listed_or_where_they_are_many_given_as_ranges(ranks, text: str) -> None:
    assert named(ranks) == text


def test_what_was_done_to_each_rank_is_said_once_for_all() -> None:
    """A job of a thousand ranks has a thousand signals."""
    signals = [Signalled(0, rank, 100 + rank, 9, "hung") for rank in (1, 0, *range(2, 1000))]
    assert done_in_short([Signalled(0, 3, 103, 15, "hung"), *signals], 1) == [
        "SIGTERM to rank 3: hung",
        "SIGKILL to ranks 0-999: hung",
        "cycle 1 was started",
    ]
    assert done_in_short([], None) == []
