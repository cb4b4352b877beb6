"""The soak test in short; ``make soak`` runs the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import soak


@pytest.mark.slow
def test_one_fault_of_every_kind_is_recovered_from_and_leaves_nothing(
    tmp_path: Path, first_seed: int
) -> None:
    """In an order and at moments that the seed gives."""
    print(f"repeat: python -m tests.soak --faults 15 --seed {first_seed}")

    print(soak(tmp_path, faults=15, seed=first_seed))
