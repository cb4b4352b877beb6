"""``holdfast rescue``: a snapshot of ranks that go on, in files."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.arena import snapshot_files, taken
from holdfast.arena.arena import ArenaMemory, create
from holdfast.arena.pure import layout
from holdfast.arena.pure.file_names import NodeSnapshotNames
from holdfast.arena.pure.slots import next_slot
from holdfast.arena.pure.snapshots import Held
from holdfast.arena.rescue import Rescue, RescueError, release_rescued
from holdfast.cli import main
from holdfast.tools import rescue as command

LIFE = "5f0c96aa61b2"


class RunningJob:
    """A launcher with two ranks, all of them this process."""

    def __init__(
        self, folder: Path, *, world_size: int = 2, first: int = 0, life: str = LIFE
    ) -> None:
        self.folder = str(folder)
        self.world_size = world_size
        self.first = first
        self.fds = [create("test") for _ in range(2)]
        self.ranks = [ArenaMemory(fd) for fd in self.fds]
        taken.show_node(self.folder, NodeSnapshotNames(first, 2, world_size, {"3": life}))
        for rank, fd in enumerate(self.fds):
            taken.show(self.folder, rank, fd)

    def take(self, rank: int, step: int, *, cycle: int = 3) -> bool:
        memory = self.ranks[rank]
        memory.words[layout.LAST_STEP] = step
        held = {it.slot: it.held.id for it in memory.all_held()}
        index = next_slot(range(2), held, (), memory.pins())
        if index is None:
            return False
        memory.reserve(index, 4096)
        memory.claim(index, step)
        assert memory.may_write(index)
        memory.begin(index)
        with memory.map_slot(index) as mapped:
            mapped[:4096] = bytes([self.first + rank, step]) * 2048
        memory.commit(index, Held(self.first + rank, self.world_size, cycle, 0, step), 4096)
        memory.unclaim()
        return True

    def train(self, *steps: int) -> None:
        for step in steps:
            for rank in (0, 1):
                self.take(rank, step)


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    (tmp_path / "runtime").mkdir()
    return tmp_path / "runtime"


@pytest.fixture
def job(runtime: Path) -> Iterator[RunningJob]:
    one = RunningJob(runtime)
    yield one
    for fd in one.fds:
        os.close(fd)


@pytest.fixture
def to(tmp_path: Path) -> Path:
    (tmp_path / "to").mkdir()
    return tmp_path / "to"


def rescue(to: Path, *words: str) -> int:
    return main(["rescue", "run", "--to", str(to), *words])


@pytest.fixture(autouse=True)
def _is_the_run(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    monkeypatch.setattr(command, "named_runs", lambda *_: [Path("run")])
    monkeypatch.setattr(command, "_runtime_dir", lambda _: str(runtime))
    monkeypatch.setattr(
        command,
        "signal",
        SimpleNamespace(signal=lambda *_: None, SIGTERM=0, SIGHUP=0, default_int_handler=0),
    )


def test_the_newest_snapshot_of_all_ranks_is_written(
    job: RunningJob, to: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.train(4, 5)
    job.take(0, 6)
    assert rescue(to) == 0
    [folder] = to.iterdir()
    assert folder.name == f"step-5-of-2-{LIFE}"
    found = snapshot_files.read_one(str(folder))
    assert {*found.files} == {0, 1}
    assert found.problems == ()
    assert (folder / "rank-1.safetensors").read_bytes() == bytes([1, 5]) * 2048
    said = capsys.readouterr().out
    assert f"rescued the snapshot of step 5, ranks 0,1 of 2: {folder} (8 KiB in " in said
    assert f"remove its file 'rescued' and start a job with --ft-snapshot-dir={to}\n" in said
    assert all(not memory.pins() for memory in job.ranks)


def test_no_job_begins_from_it_before_its_mark_is_removed(job: RunningJob, to: Path) -> None:
    """The job goes on, and may save checkpoints that are newer: invariant T-5."""
    job.train(5)
    rescue(to)
    [found] = snapshot_files.read(str(to))
    assert "rescued from a job that continued" in found.unused
    (to / found.on_disk.name / "rescued").unlink()
    assert snapshot_files.read(str(to))[0].unused == ""


def test_ranks_go_on_while_it_is_written(job: RunningJob, to: Path) -> None:
    """They take one more, and skip the next ones: there is no slot for them."""
    job.train(4, 5)
    with Rescue([job.folder]) as pinned:
        sources = pinned.newest()
        assert [job.take(0, step) for step in (6, 7)] == [True, False]
        assert pinned.write(sources, str(to), lambda: True).step == 5
    assert job.take(0, 8)


def test_a_step_to_come_is_awaited(job: RunningJob, to: Path) -> None:
    """So ranks on several hosts have the same one."""
    job.train(4, 5)
    with Rescue([job.folder]) as pinned:
        found: list[Any] = []
        waits = threading.Thread(target=lambda: found.append(pinned.at(7, 30.0)))
        waits.start()
        for step in (6, 7, 8, 9):
            while job.ranks[1].words[layout.RESCUE] != 7:
                pass
            job.train(step)
        waits.join()
        assert [it.slot.held.step for it in found[0]] == [7, 7]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--step", "3"], "ranks 0,1 have no snapshot of step 3 any more, or did not take it"),
        (["--step", "7"], "snapshots are taken of every 2. step, and 7 is none of those: choose 8"),
        (["--step", "8", "--timeout", "1"], "step 8 has not come within 1 s (last step: 6)"),
    ],
)
def test_a_step_that_is_not_taken_is_named(
    job: RunningJob, to: Path, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job.train(4, 6)
    if "7" in words:
        job.ranks[0].words[layout.EVERY] = 2
    assert rescue(to, *words) == 1
    assert why in capsys.readouterr().err
    assert list(to.iterdir()) == []
    assert all(not memory.pins() for memory in job.ranks)


def test_ranks_that_take_others_between_two_looks_are_looked_at_again(
    job: RunningJob, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 10 ms: what the first rank had is gone as the second one is looked at."""
    job.train(4, 5)
    look, looks = Rescue._ids, iter(range(100))

    def and_go_on(self: Rescue, memory: ArenaMemory) -> Any:
        found = look(self, memory)
        if next(looks) == 0:
            job.train(6, 7)
        return found

    monkeypatch.setattr(Rescue, "_ids", and_go_on)
    assert rescue(to) == 0
    assert [folder.name for folder in to.iterdir()] == [f"step-7-of-2-{LIFE}"]


def test_ranks_without_a_common_snapshot_have_none_to_be_rescued(
    job: RunningJob, to: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.take(0, 4)
    assert rescue(to) == 1
    assert "ranks 0,1 have no snapshot in common now (last step: 4)" in capsys.readouterr().err


def test_a_job_without_snapshots(
    runtime: Path, to: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rescue(to) == 1
    text = "nothing is rescued: its ranks take no snapshots (holdfast.snapshot.Snapshots)"
    assert text in capsys.readouterr().err


def test_a_job_of_several_hosts_needs_the_step(
    runtime: Path, to: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = RunningJob(runtime, world_size=4)
    job.train(5)
    assert rescue(to) == 1
    why = "only ranks 0,1 of 4 run on this host, ranks 2,3 on others. Run this on each host"
    assert why in capsys.readouterr().err
    assert rescue(to, "--step=5") == 0
    there = "ranks 2,3 run on other hosts: holdfast rescue --step 5 writes their parts there"
    assert there in capsys.readouterr().out
    [found] = snapshot_files.read(str(to))
    assert (found.on_disk.world_size, found.on_disk.ranks) == (4, "0,1")


@pytest.mark.parametrize("is_here", [True, False])
def test_all_launchers_of_the_job_on_this_host_are_rescued(
    runtime: Path, tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch, is_here: bool
) -> None:
    """By the name of their cycle. One of another job is left alone, also with the same run id."""
    (tmp_path / "other").mkdir()
    jobs = [
        RunningJob(runtime, world_size=4),
        RunningJob(tmp_path / "other", world_size=4, first=2, life=LIFE if is_here else "ab"),
    ]
    monkeypatch.setattr(
        command, "living_runtime_dirs", lambda: [str(runtime), str(tmp_path / "other")]
    )
    for job in jobs:
        job.train(4, 5)
    jobs[0].train(6)
    assert rescue(to) == (0 if is_here else 1)
    if is_here:
        [found] = snapshot_files.read(str(to))
        assert (found.on_disk.step, found.on_disk.ranks, found.problems) == (5, "0-3", ())
        [folder] = to.iterdir()
        assert (folder / "rank-3.safetensors").read_bytes() == bytes([3, 5]) * 2048
    assert not any(memory.pins() for job in jobs for memory in job.ranks)


def test_ranks_that_have_other_numbers_are_named(
    job: RunningJob, to: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a restart in place that left one out."""
    job.train(5)
    for memory in job.ranks:
        memory.words[layout.slot(0) + layout.RANK] = 1
    assert rescue(to) == 1
    text = "a restart in place has given ranks 0,1 other numbers (1, 1): their snapshots"
    assert text in capsys.readouterr().err


def test_a_full_disk_leaves_nothing(
    job: RunningJob, to: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job.train(5)
    full = SimpleNamespace(f_bavail=1, f_frsize=4096)
    monkeypatch.setattr(snapshot_files.os, "statvfs", lambda _: full)
    assert rescue(to) == 1
    assert "it needs 8192 bytes, and 4096 are free" in capsys.readouterr().err
    assert list(to.iterdir()) == []


def test_a_restart_meanwhile_is_noticed(
    job: RunningJob, to: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job.train(5)
    real = Rescue.write

    def write(*given: Any) -> Any:
        job.ranks[1].void(next(job.ranks[1].all_held()).slot)
        return real(*given)

    monkeypatch.setattr(Rescue, "write", write)
    assert rescue(to) == 1
    assert "rank 1 has taken another snapshot meanwhile" in capsys.readouterr().err
    assert list(to.iterdir()) == []


def test_one_rescue_at_a_time(job: RunningJob, to: Path) -> None:
    job.train(5)
    with Rescue([job.folder]) as first:
        first.newest()
        with pytest.raises(RescueError, match="another holdfast rescue of this job is running"):
            Rescue([job.folder])
        assert job.ranks[0].pins() == {5}, "the second one released what the first has pinned"
        release_rescued(job.ranks[0])
        assert job.ranks[0].pins() == {5}


def test_the_launcher_releases_the_pin_of_a_rescue_that_was_killed(job: RunningJob) -> None:
    job.train(5)
    pid = os.fork()
    if pid == 0:
        Rescue([job.folder]).newest()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert job.ranks[0].pins() == {5}
    release_rescued(job.ranks[0])
    assert job.ranks[0].pins() == set()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["rescue"], "--to FOLDER is needed"),
        (["rescue", "--to", "/nowhere"], "--to: /nowhere is not a folder"),
        (["rescue", "--to", "/", "--step", "0"], "--step: '0' is not a whole number above 0"),
        (["rescue", "--to", "/", "--stop"], "unknown option '--stop': did you mean --step?"),
    ],
)
def test_words_that_cannot_be_used(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert why in capsys.readouterr().err


def test_a_run_that_is_over(
    tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    assert main(["rescue", str(tmp_path), "--to", str(to)]) == 2
    assert "is neither the folder of a run nor a log folder" in capsys.readouterr().err
