"""When a trainer's state is whole, so that a snapshot of it may be taken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.integrations._pure.snapshot_moments import (
    Position,
    SnapshotMoments,
    is_snapshot_newer,
)


def taken(n_epochs: int, n_batches: int, accumulate: int, begin: Position) -> Iterator[Position]:
    """Positions of the snapshots of a training that begins somewhere, in order."""
    moments = SnapshotMoments(begin)
    for epoch in range(begin.epoch, n_epochs):
        assert moments.at.epoch == epoch
        for batch in range(moments.at.batches, n_batches):
            is_last = batch + 1 == n_batches
            moments.batch_ended(has_stepped=is_last or (batch + 1) % accumulate == 0)
            if moments.step_done(is_last=is_last):
                yield moments.at
        if moments.epoch_done(is_over=epoch + 1 == n_epochs):
            yield moments.at


def test_a_snapshot_is_taken_after_each_step_and_at_the_end_of_an_epoch_instead_of_its_last() -> (
    None
):
    assert list(taken(2, 3, 1, Position())) == [
        Position(0, 1),
        Position(0, 2),
        Position(1, 0),
        Position(1, 1),
        Position(1, 2),
        Position(2, 0, is_over=True),
    ]


def test_between_batches_whose_gradients_are_added_up_none_is_taken() -> None:
    assert list(taken(1, 5, 2, Position())) == [
        Position(0, 2),
        Position(0, 4),
        Position(1, 0, is_over=True),
    ]


@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 4), st.data())
def test_a_training_that_goes_on_from_any_snapshot_takes_those_that_were_left(
    n_epochs: int, n_batches: int, accumulate: int, data: st.DataObject
) -> None:
    whole = list(taken(n_epochs, n_batches, accumulate, Position()))
    index = data.draw(st.integers(0, len(whole) - 1))
    assert list(taken(n_epochs, n_batches, accumulate, whole[index])) == whole[index + 1 :]


def test_a_trainer_that_stops_within_an_epoch_takes_none_before_that_epoch_has_ended() -> None:
    moments = SnapshotMoments(Position())
    moments.batch_ended(has_stepped=True)
    assert not moments.step_done(is_last=True)
    assert moments.epoch_done(is_over=True)
    assert moments.at == Position(1, 0, is_over=True)


@pytest.mark.parametrize(
    ("snapshot", "checkpoint", "newer"),
    [(5, None, True), (5, 4, True), (5, 5, True), (5, 6, False)],
)
def test_the_newer_of_snapshot_and_checkpoint_is_used(
    snapshot: int, checkpoint: int | None, newer: bool
) -> None:
    """At the same step the snapshot: no file is read for it."""
    assert is_snapshot_newer(snapshot, checkpoint) is newer
