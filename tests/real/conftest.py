from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.forked_ranks import Forks
from tests.real.harness import Launcher, launcher
from tests.real.nodes import Nodes
from tests.real.ranks import RankStarter, rank_starter


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """For all tests of a session: torch is imported once for them."""
    one = Forks()
    yield one
    one.close()


@pytest.fixture
def ft(tmp_path: Path, forks: Forks) -> Iterator[Launcher]:
    """Starts launchers; whatever they leave ends with the test."""
    with launcher(tmp_path, forks) as jobs:
        yield jobs


@pytest.fixture
def ranks(tmp_path: Path, forks: Forks) -> Iterator[RankStarter]:
    """Starts ranks by hand; whatever they leave ends with the test."""
    with rank_starter(tmp_path, forks) as starter:
        yield starter


@pytest.fixture
def nodes(ft: Launcher, tmp_path: Path) -> Iterator[Nodes]:
    """Nothing of the launchers stays when the test is over."""
    several = Nodes(ft, tmp_path)
    yield several
    several.close()
