"""A trainer asks for the snapshot that waits before its model is complete, and may not use it."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from holdfast.arena.pure import layout
from holdfast.arena.pure.messages import Arena, FileToRestore, SnapshotUnusable
from holdfast.arena.pure.snapshots import OF_A_FILE, SnapshotId
from holdfast.base.pure.codec import encode
from holdfast.net.pure.frames import encode as frame
from holdfast.snapshot import SnapshotError
from holdfast.snapshot._waiting import has_launcher, waiting_snapshot
from tests.snapshot_launcher import SnapshotLauncher
from tests.unit.snapshot.conftest import Make
from tests.unit.snapshot.one_rank import again, take


def assert_told_and_restored(
    make: Make, model: nn.Linear, state: dict[str, object]
) -> tuple[nn.Linear, dict[str, object]]:
    """That of step 7; returns what it was restored into."""
    waiting = waiting_snapshot()
    assert waiting is not None
    assert (waiting.step, waiting.parts["state"]) == (7, state)
    other, empty = nn.Linear(3, 2), dict[str, object]()
    assert make(model=other, state=empty).restore() == 7
    assert empty == state
    assert torch.equal(other.weight, model.weight)
    return other, empty


def test_it_is_told_the_step_and_the_plain_parts_and_nothing_is_restored(
    make: Make, launcher: SnapshotLauncher
) -> None:
    assert has_launcher()
    assert waiting_snapshot() is None
    model, state = nn.Linear(3, 2), dict[str, object](epoch=4, name="x")
    snapshots = make(model=model, state=state)
    assert snapshots.restore() == 0
    take(snapshots, 7)
    again(launcher, snapshots)

    assert_told_and_restored(make, model, state)


def test_a_program_that_has_loaded_newer_state_itself_takes_snapshots_from_there_on(
    make: Make, launcher: SnapshotLauncher
) -> None:
    """What waited stays as it is until newer ones take its place."""
    model = nn.Linear(3, 2)
    snapshots = make(model=model)
    snapshots.restore()
    take(snapshots, 7)
    again(launcher, snapshots)

    nn.init.constant_(model.weight, 5.0)
    newer = make(model=model)
    newer.begin(9)
    assert bool((model.weight == 5.0).all())
    assert launcher.arena(0).words[layout.LAST_STEP] == 9
    assert not newer.take(9)
    take(newer, 10)
    assert again(launcher, newer) == SnapshotId(1, 0, 10)


def test_a_damaged_one_is_reported_so_that_another_is_chosen(
    make: Make, launcher: SnapshotLauncher
) -> None:
    snapshots = make(model=nn.Linear(3, 2))
    snapshots.restore()
    take(snapshots, 6)
    take(snapshots, 7)
    assert again(launcher, snapshots) == SnapshotId(0, 0, 7)
    newest = max(launcher.arena(0).all_held())
    launcher.arena(0).map_slot(newest.slot)[:8] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(SnapshotError, match="step 7 cannot be restored: its head cannot be read"):
        waiting_snapshot()
    said = launcher.requests[-1]
    assert isinstance(said, SnapshotUnusable)
    assert said.is_damaged
    assert launcher.next_cycle(1) == SnapshotId(0, 0, 6)
    waiting = waiting_snapshot()
    assert waiting is not None
    assert waiting.step == 6


def answers_with(
    launcher: SnapshotLauncher, cycle: int, file: FileToRestore
) -> Callable[[socket.socket], int]:
    """All ranks of the cycle begin from a snapshot on disk."""
    chosen = encode(Arena(2, cycle, SnapshotId(OF_A_FILE, 0, 7), file=file))
    fd = launcher.arena(0).fd
    return lambda caller: socket.send_fds(caller, [frame(chosen)], [fd])


def test_one_on_disk_is_told_and_restored_as_one_in_memory(
    make: Make, launcher: SnapshotLauncher, tmp_path: Path
) -> None:
    model, state = nn.Linear(3, 2), dict[str, object](epoch=4)
    snapshots = make(model=model, state=state)
    snapshots.restore()
    take(snapshots, 7)
    again(launcher, snapshots)
    [slot] = launcher.arena(0).all_held()
    content = bytes(launcher.arena(0).map_slot(slot.slot)[: slot.n_bytes])
    path = tmp_path / "rank_0.safetensors"
    path.write_bytes(content)
    file = FileToRestore(str(path), len(content), crc32=zlib.crc32(content))
    launcher.arena(0).void_others(None)
    launcher.answers = answers_with(launcher, 1, file)

    other, empty = assert_told_and_restored(make, model, state)

    launcher.answers = answers_with(launcher, 2, file.but(total=1))
    begin_anew = rf"or from the checkpoint\. To begin without it now, remove {tmp_path}$"
    with pytest.raises(SnapshotError, match=rf"its bytes have changed.* {begin_anew}"):
        make(model=other, state=empty).restore()
    path.write_bytes(b"{" * len(content))
    with pytest.raises(SnapshotError, match="step 7 cannot be restored: its head cannot be read"):
        waiting_snapshot()
    for said in (it for it in launcher.requests if isinstance(it, SnapshotUnusable)):
        assert not said.is_damaged, "a file has no other copy"


def test_without_a_launcher_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FT_LAUNCHER_IPC_SOCKET", raising=False)
    assert not has_launcher()
    assert waiting_snapshot() is None
