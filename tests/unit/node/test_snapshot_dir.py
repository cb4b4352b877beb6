"""The folder in which snapshots outlive the job: what it says, and that nothing waits for it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.arena import snapshot_files
from holdfast.arena.arena import ArenaMemory, create
from holdfast.arena.pure.file_names import Mark, NamedSnapshot, life_name
from holdfast.arena.pure.snapshots import (
    OF_A_FILE,
    Beginning,
    Held,
    Holdings,
    Restore,
    SnapshotId,
)
from holdfast.arena.snapshot_files import SlotOfRank
from holdfast.events.pure.schema import SnapshotWritten
from holdfast.job.pure.membership import CyclePlace, Round
from holdfast.node import snapshot_dir
from holdfast.node.snapshot_dir import SnapshotDir
from tests.waiting import BOUND_S

PROGRESS = 10


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast")


@pytest.fixture
def arena() -> Iterator[ArenaMemory]:
    memory = ArenaMemory(create("test"))
    memory.reserve(0, 4096)
    yield memory
    os.close(memory.fd)


class Job:
    """A job of one rank with this folder; ``number`` is its own."""

    def __init__(self, folder: Path, number: int, timeout_s: float = BOUND_S) -> None:
        self.written: list[SnapshotWritten] = []
        self.folder = SnapshotDir(str(folder), timeout_s, PROGRESS, self.written.append)
        self._number = number
        self.folder.look()

    def offers(self) -> list[int]:
        return [it.step for it in self.folder.files()]

    def begin(self, *given_up: str) -> None:
        """From the newest on disk."""
        newest = max(self.folder.files(), key=lambda it: it.step, default=None)
        restore = None
        if newest is not None:
            restore = Restore(SnapshotId(OF_A_FILE, 0, newest.step), 1, file=newest.name)
        beginning = Beginning(restore, given_up=given_up)
        place = CyclePlace("n0", 0, 1, 0, "a")
        leader = f"host-{self._number}"
        self.folder.begin(Round(0, (place,), leader=leader, beginning=beginning), place)

    def fail(
        self,
        arena: ArenaMemory,
        step: int | None,
        *,
        signalled: bool = False,
        is_over: bool = True,
    ) -> None:
        sources = []
        if step is not None:
            arena.commit(0, Held(0, 1, 0, 0, step), 100)
            sources = [SlotOfRank(arena, held) for held in arena.all_held()]
            self.folder.note_steps(Holdings(last_step=step))
        self.folder.failed(sources, (), is_signalled=signalled, is_over=is_over)


def test_the_next_job_begins_from_what_the_last_one_wrote_and_a_success_leaves_nothing(
    tmp_path: Path, arena: ArenaMemory, caplog: pytest.LogCaptureFixture
) -> None:
    first = Job(tmp_path, 1)
    first.begin()
    first.fail(arena, 7)
    assert "the snapshot of step 7, rank 0 of 1, is in" in caplog.text
    [written] = first.written
    assert (written.step, written.n_bytes, written.why) == (7, 100, "")
    assert (tmp_path / written.file).is_dir()
    second = Job(tmp_path, 2)
    assert second.offers() == [7]
    [name] = [it.name for it in second.folder.files()]
    file = second.folder.file_of(name, 0)
    assert file is not None
    assert (Path(file.path).stat().st_size, file.n_bytes) == (100, 100)
    assert second.folder.file_of(name, 1) is None
    second.begin()
    second.folder.succeeded()
    assert list(tmp_path.iterdir()) == []


def rescued(folder: Path, job: int, step: int, arena: ArenaMemory) -> Path:
    """``holdfast rescue`` has written a snapshot of a job that goes on."""
    name = NamedSnapshot(step, 1, life_name(f"host-{job}", 0, 0))
    (folder / str(name)).mkdir()
    snapshot_files.mark(str(folder), str(name), Mark.RESCUED)
    arena.commit(0, Held(0, 1, 0, 0, step), 100)
    snapshot_files.write(str(folder), name, [SlotOfRank(arena, *arena.all_held())], lambda: True)
    return folder / str(name)


def test_a_snapshot_that_was_rescued_from_a_job_goes_with_its_success(
    tmp_path: Path, arena: ArenaMemory
) -> None:
    """The same command begins anew, as always; one of another job stays."""
    job = Job(tmp_path, 1)
    job.begin()
    rescued(tmp_path, 1, 7, arena)
    other = rescued(tmp_path, 2, 8, arena)
    assert Job(tmp_path, 3).offers() == []
    job.folder.succeeded()
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize("step", [7, 9])
def test_a_job_that_fails_leaves_its_newest_snapshot_in_place_of_a_rescued_one(
    tmp_path: Path, arena: ArenaMemory, step: int
) -> None:
    """Also if that is the very one: no checkpoint is newer any more."""
    job = Job(tmp_path, 1)
    job.begin()
    rescued(tmp_path, 1, 7, arena)
    job.fail(arena, step)
    assert Job(tmp_path, 2).offers() == [step]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_newer_snapshot_takes_the_place_of_the_one_before(
    tmp_path: Path, arena: ArenaMemory
) -> None:
    for number, step in enumerate((7, 9, 40)):
        job = Job(tmp_path, number)
        job.begin()
        job.fail(arena, step)
        assert Job(tmp_path, 99).offers() == [step]


def test_no_job_begins_from_a_snapshot_that_a_running_or_killed_one_has_begun_from(
    tmp_path: Path, arena: ArenaMemory, caplog: pytest.LogCaptureFixture
) -> None:
    """Invariant T-5."""
    job = Job(tmp_path, 1)
    job.begin()
    job.fail(arena, 7)
    killed = Job(tmp_path, 2)
    killed.begin()
    killed.folder._waited(lambda: None, BOUND_S)  # its thread has marked it
    assert Job(tmp_path, 3).offers() == []
    assert "is not used: a job has begun from it" in caplog.text


def test_a_launcher_without_a_free_descriptor_says_so_and_ends_as_it_would(
    tmp_path: Path,
    arena: ArenaMemory,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_is_free(_fd: int) -> int:
        raise OSError(24, "Too many open files")

    job = Job(tmp_path, 1)
    job.begin()
    monkeypatch.setattr(snapshot_dir.os, "dup", none_is_free)
    job.fail(arena, 7)
    assert "no snapshot is written" in caplog.text
    assert "Too many open files" in caplog.text
    assert Job(tmp_path, 2).offers() == []


@pytest.mark.parametrize("signalled", [False, True])
def test_a_job_that_got_no_further_releases_it_and_two_that_failed_do_not(
    tmp_path: Path, arena: ArenaMemory, signalled: bool
) -> None:
    """A scheduler may preempt jobs as often as it likes."""
    job = Job(tmp_path, 1)
    job.begin()
    job.fail(arena, 7)
    for number in (2, 3):
        job = Job(tmp_path, number)
        assert job.offers() == [7]
        job.begin()
        job.fail(arena, None, signalled=signalled)
    assert Job(tmp_path, 4).offers() == ([7] if signalled else [])


def test_a_node_that_leaves_a_job_does_not_release_what_that_has_begun_from(
    tmp_path: Path, arena: ArenaMemory
) -> None:
    """The others may get days further: T-5."""
    job = Job(tmp_path, 1)
    job.begin()
    job.fail(arena, 7)
    job = Job(tmp_path, 2)
    job.begin()
    job.fail(arena, None, signalled=True, is_over=False)
    assert Job(tmp_path, 3).offers() == []


def test_one_that_got_further_and_could_not_write_does_not_release_it(
    tmp_path: Path, arena: ArenaMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints are newer: T-5."""
    job = Job(tmp_path, 1)
    job.begin()
    job.fail(arena, 7)
    job = Job(tmp_path, 2)
    job.begin()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot_files, "write", full)
    job.fail(arena, 7 + PROGRESS)
    assert Job(tmp_path, 3).offers() == []
    assert [(it.step, it.why) for it in job.written] == [(17, "[Errno 28] No space left on device")]


def test_a_job_of_which_a_rank_gave_its_snapshots_up_does_not_release_it(
    tmp_path: Path, arena: ArenaMemory
) -> None:
    """The steps that it has made since are not counted: T-5."""
    job = Job(tmp_path, 1)
    job.begin()
    job.fail(arena, 7)
    job = Job(tmp_path, 2)
    job.begin()
    job.folder.note_steps(Holdings(last_step=8, void_until=SnapshotId(0, 0, 8)))
    job.fail(arena, None, signalled=True)
    assert Job(tmp_path, 3).offers() == []


def test_a_copy_of_a_cycle_without_this_node_is_not_written(
    tmp_path: Path, arena: ArenaMemory, caplog: pytest.LogCaptureFixture
) -> None:
    """It came from another node, and only launchers of that cycle know its name on disk."""
    job = Job(tmp_path, 1)
    job.begin()
    arena.commit(0, Held(0, 1, 3, 0, 7), 100)
    sources = [SlotOfRank(arena, held) for held in arena.all_held()]
    job.folder.failed(sources, (), is_signalled=False, is_over=True)
    why = "it is of cycle 3, in which this node had no ranks"
    assert [(it.step, it.file, it.why) for it in job.written] == [(7, "", why)]
    assert why in caplog.text


def test_what_the_leader_has_given_up_is_given_up_for_all_jobs(
    tmp_path: Path, arena: ArenaMemory
) -> None:
    job = Job(tmp_path, 1)
    job.begin()
    job.fail(arena, 7)
    job = Job(tmp_path, 2)
    [name] = [it.name for it in job.folder.files()]
    job.begin(name)
    assert job.offers() == []
    job.fail(arena, None)
    assert Job(tmp_path, 3).offers() == []


def test_a_dead_file_system_holds_up_neither_the_start_nor_the_end(
    tmp_path: Path,
    arena: ArenaMemory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    thaws = threading.Event()

    def stuck(*_: object) -> list[snapshot_files.Filed]:
        thaws.wait(BOUND_S)
        return []

    monkeypatch.setattr(snapshot_files, "read", stuck)
    monkeypatch.setattr(snapshot_dir, "LOOK_S", 0.01)
    try:
        job = Job(tmp_path, 1, timeout_s=0.02)
        assert "its file system has not done that within 0.01 s" in caplog.text
        job.begin()
        job.fail(arena, 7)
        assert (
            f"the snapshot of step 7 is not written to {tmp_path}: its file system has not done "
            "that within 0.02 s (--ft-snapshot-dir-timeout)"
        ) in caplog.text
        why = "its file system has not done that within 0.02 s"
        assert [(it.step, it.why) for it in job.written] == [(7, why)]
    finally:
        thaws.set()
