"""A snapshot is for all ranks of a training, or for none; here the training has one."""

import logging

import pytest

from holdfast.integrations._agreement import begins_from_snapshot


def test_a_newer_checkpoint_is_named_as_the_launcher_has_named_the_snapshot(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The line of the restart says ``from step 23``: it would be believed."""
    caplog.set_level(logging.INFO)

    assert not begins_from_snapshot(23, 25, "cpu")
    assert caplog.messages == [
        "begins from the checkpoint of step 25: it is newer than the snapshot of step 23"
    ]


def test_a_snapshot_that_is_used_needs_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    assert begins_from_snapshot(25, 25, "cpu")
    assert begins_from_snapshot(25, None, "cpu")
    assert caplog.messages == []
