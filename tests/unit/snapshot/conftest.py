from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from holdfast.snapshot import Snapshots
from tests.snapshot_launcher import SnapshotLauncher

Make = Callable[..., Snapshots]


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SnapshotLauncher]:
    """Of a job of one rank, which is this process."""
    with SnapshotLauncher(tmp_path) as serving:
        for name, value in serving.env(0, 1).items():
            monkeypatch.setenv(name, value)
        yield serving


@pytest.fixture
def make(launcher: SnapshotLauncher) -> Iterator[Make]:
    """Snapshots that are closed at the end."""
    made: list[Snapshots] = []

    def one(**parts: Any) -> Snapshots:
        made.append(Snapshots(**parts))
        return made[-1]

    yield one
    for each in made:
        each.close()
