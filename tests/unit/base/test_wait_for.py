"""Waits for descriptors take any number of seconds that a user may configure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.base import wait_for
from holdfast.net.descriptors import Descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe: (to read, to write)."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("timeout_s", [1e9, float("inf"), None, 30.0])
def test_a_wait_may_be_as_long_as_anyone_likes(
    pipe: tuple[int, int], timeout_s: float | None
) -> None:
    """A timeout of 1e9 s means "never" to a user, and too many milliseconds to poll(2)."""
    to_read, to_write = pipe
    os.write(to_write, b"x")

    assert wait_for.readable(to_read, timeout_s)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_a_wait_that_is_over_looks_and_returns(pipe: tuple[int, int], timeout_s: float) -> None:
    """A negative number would be "for ever" to poll(2)."""
    assert not wait_for.any_readable(pipe[:1], timeout_s)


@pytest.mark.parametrize("timeout_s", [1e9, float("inf"), None])
def test_a_loop_sleeps_for_as_long_as_anyone_likes(
    pipe: tuple[int, int], timeout_s: float | None
) -> None:
    """The monitor's and the launcher's loops."""
    to_read, to_write = pipe
    called: list[str] = []
    descriptors = Descriptors()
    descriptors.watch(to_read, lambda: called.append("called"))
    os.write(to_write, b"x")

    descriptors.wait(timeout_s)

    assert called == ["called"]
