from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.harness import Launcher, launcher


@pytest.fixture
def ft(tmp_path: Path) -> Iterator[Launcher]:
    """Starts launchers; whatever they leave ends with the test."""
    with launcher(tmp_path) as jobs:
        yield jobs
