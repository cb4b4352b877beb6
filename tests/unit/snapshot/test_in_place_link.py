"""What a rank that restarts in place begins from, where the call has no snapshot of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.arena.pure.messages import Arena
from holdfast.arena.pure.snapshots import SnapshotId
from holdfast.snapshot._in_place_link import InPlaceLink


@pytest.mark.parametrize(
    ("world", "has_launcher", "begins", "to_prove"),
    [(2, True, None, 7), (2, False, None, 1), (3, True, SnapshotId(0, 0, 18), None)],
)
def test_fewer_ranks_keep_the_snapshot_of_the_cycle_until_they_have_made_progress(
    monkeypatch: pytest.MonkeyPatch,
    world: int,
    has_launcher: bool,
    begins: SnapshotId | None,
    to_prove: int | None,
) -> None:
    """Its launcher, if it ends them before, begins the next cycle from it again."""
    monkeypatch.setenv("WORLD_SIZE", str(world))
    link: Any = object.__new__(InPlaceLink)
    link.rank, link.iteration = 1, 1
    link._launcher = object() if has_launcher else None
    link._session = SimpleNamespace(born_world=3, born=1, begin_from=lambda: None, arena_fd=-1)
    link._memory = lambda *_: (Arena(0, 1, restore=SnapshotId(0, 0, 18), progress=7), 5)

    answer, _ = link.open_arena(64, 2)

    assert (answer.restore, link.steps_to_prove) == (begins, to_prove)
