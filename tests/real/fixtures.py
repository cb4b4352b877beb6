"""Fixtures of more than one suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.harness import Launcher, launcher
from tests.real.ranks import RankStarter, rank_starter


@pytest.fixture
def ft(tmp_path: Path) -> Iterator[Launcher]:
    """Starts launchers; whatever they leave ends with the test."""
    with launcher(tmp_path) as jobs:
        yield jobs


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[RankStarter]:
    """Starts ranks by hand; whatever they leave ends with the test."""
    with rank_starter(tmp_path) as starter:
        yield starter
