"""The soak test in short; ``make soak`` runs the long one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.soak import soak


@pytest.mark.slow
def test_one_fault_of_every_kind_is_recovered_from_and_leaves_nothing(tmp_path: Path) -> None:
    """Fresh order and moments every time; the seed is printed when it fails."""
    seed = random.randrange(1 << 32)
    print(f"repeat: python -m tests.soak --faults 15 --seed {seed}")

    print(soak(tmp_path, faults=15, seed=seed))
