from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cluster.__main__ import INSIDE
from tests.cluster.slurm import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests."""
    if os.environ.get(INSIDE) != "1":
        pytest.skip("runs by `make cluster`")
    started = Cluster(tmp_path_factory.mktemp("slurm"))
    yield started
    started.close()
