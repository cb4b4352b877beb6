from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.fixtures import ft, ranks
from tests.real.harness import Launcher
from tests.real.nodes import Nodes

__all__ = ["ft", "nodes", "ranks"]


@pytest.fixture
def nodes(ft: Launcher, tmp_path: Path) -> Iterator[Nodes]:
    """Nothing of the launchers stays when the test is over."""
    several = Nodes(ft, tmp_path)
    yield several
    several.close()
