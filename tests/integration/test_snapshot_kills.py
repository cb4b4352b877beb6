"""A rank that is killed while it takes a snapshot leaves the one before, whole."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from tests.snapshot_kills import killer, started_zygote


@pytest.fixture(scope="module")
def zygote() -> Iterator[subprocess.Popen[str]]:
    """For all tests: it imports torch once."""
    with started_zygote() as process:
        yield process


MODES = pytest.mark.parametrize("mode", ["step", "beside"])


@MODES
def test_a_rank_killed_before_each_store_of_a_commit_leaves_whole_snapshots(
    zygote: subprocess.Popen[str], mode: str
) -> None:
    """COMMIT := 0, SUMMED := 0, six facts, COMMIT := step + 1; at the tenth, the next begins."""
    with killer(mode, zygote) as one:
        for stores in range(10):
            one.kill(None, stores)
    found = one.found
    assert (found.inconsistent, found.lost, found.wrongly_restored) == (0, 0, 0)
    assert found.kills == 10
    assert found.in_mid_copy >= 8


@MODES
def test_a_rank_killed_at_random_moments_leaves_whole_snapshots(
    zygote: subprocess.Popen[str], mode: str
) -> None:
    order = random.Random(1)
    with killer(mode, zygote) as one:
        for each in range(20):
            into_copy_s = order.uniform(0.0, 0.0001) if each % 2 else -1.0
            one.kill(order.uniform(0.0, 0.02), into_copy_s=into_copy_s)
    found = one.found
    assert (found.inconsistent, found.lost, found.wrongly_restored) == (0, 0, 0)
    assert found.in_mid_copy > 0
