"""Snapshots on disk: a job ends, and another one goes on from where it was."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.real.harness import Job, Launcher
from tests.real.nodes import Nodes
from tests.real.test_launcher import may_mount
from tests.real.test_snapshots import LONG_S, TRAINING, began, ends, faulty, said
from tests.waiting import until

pytestmark = pytest.mark.timeout(900)


def snapshots(folder: Path) -> dict[int, Path]:
    """By step."""
    return {int(it.name.split("-")[1]): it for it in folder.iterdir()}


def start(ft: Launcher, folder: Path, faults: str = "", steps: int = 30, *more: str) -> Job:
    return ft.start(
        "--nproc-per-node=2", "--max-restarts=0", "--log-dir=logs",
        f"--ft-snapshot-dir={folder}", *more, ft.script(TRAINING),
        env={"FAULTS": faults, "STEPS": str(steps)},
    )  # fmt: skip


def failed_at(ft: Launcher, folder: Path, step: int) -> int:
    """A job that fails after so many steps; the step of the snapshot that it leaves."""
    before = set(snapshots(folder))
    job = start(ft, folder, f"raise:0:{step}:0")
    assert job.wait(LONG_S) == 1, job.stderr
    [left] = set(snapshots(folder)) - before
    assert f"the snapshot of step {left}, ranks 0,1 of 2, is in {folder}/" in job.stderr
    return left


def test_a_job_that_ends_in_failure_is_continued_by_the_next_one(
    ft: Launcher, tmp_path: Path
) -> None:
    """From the last step or the one before, with the weights of a job that nothing disturbed."""
    folder = tmp_path / "kept"
    folder.mkdir()
    step = failed_at(ft, folder, 20)
    assert step in (18, 19)
    [snapshot] = folder.iterdir()
    assert {it.name for it in snapshot.iterdir()} == {
        "rank-0.safetensors", "rank-1.safetensors", "ranks-0.json",
    }  # fmt: skip
    for file in snapshot.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600

    second = start(ft, folder)
    assert second.wait(LONG_S) == 0, second.stderr
    assert began(second, 0) == step
    [restored] = second.events("snapshot_restored")
    assert (restored["step"], restored["file"]) == (step, snapshot.name)
    assert list(folder.iterdir()) == [], "the same command begins anew after a success"

    undisturbed = start(ft, folder)
    assert undisturbed.wait(LONG_S) == 0, undisturbed.stderr
    assert began(undisturbed, 0) == 0
    assert ends(second) == ends(undisturbed)


def test_a_job_that_is_preempted_leaves_its_newest_snapshot_and_only_that(
    ft: Launcher, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    old = failed_at(ft, folder, 5)
    job = start(ft, folder, steps=1_000_000)
    until(lambda: said(job, "step10"), "it trains", LONG_S)
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.wait(LONG_S) == 1, job.stderr
    [step] = snapshots(folder)
    assert step >= 9 > old


def damaged(file: Path) -> None:
    """One byte of its tensors is another one."""
    content = bytearray(file.read_bytes())
    content[-8] ^= 1
    file.write_bytes(content)


def two_steps(ft: Launcher, folder: Path) -> tuple[int, int]:
    """A folder with two whole snapshots of one training; their steps."""
    aside = folder.with_name("aside")
    for it in (folder, aside):
        it.mkdir()
    older, newer = failed_at(ft, aside, 10), failed_at(ft, folder, 20)
    shutil.move(snapshots(aside)[older], folder)
    return older, newer


def test_a_file_that_was_altered_is_refused_by_all_and_an_older_snapshot_is_used(
    ft: Launcher, tmp_path: Path
) -> None:
    """It costs one restart, and no later job begins from it."""
    folder = tmp_path / "kept"
    older, newer = two_steps(ft, folder)
    damaged(snapshots(folder)[newer] / "rank-1.safetensors")
    job = start(ft, folder, "raise:1:15:0", 30, "--max-restarts=1")
    assert job.wait(LONG_S) == 1, job.stderr
    [refused] = job.events("snapshot_refused")
    assert (refused["rank"], refused["step"]) == (1, newer)
    assert "its bytes have changed" in refused["why"]
    assert began(job, 1) == older
    assert re.search(
        rf"all ranks begin from step {older} on disk; rank 1 could not use step {newer} on disk: "
        "its bytes have changed",
        job.stderr,
    ), job.stderr
    [left] = snapshots(folder)
    assert left in (13, 14)


def test_a_file_that_was_truncated_costs_no_restart(ft: Launcher, tmp_path: Path) -> None:
    """The launcher finds it before it starts ranks."""
    folder = tmp_path / "kept"
    older, newer = two_steps(ft, folder)
    os.truncate(snapshots(folder)[newer] / "rank-1.safetensors", 1000)
    job = start(ft, folder)
    assert job.wait(LONG_S) == 0, job.stderr
    assert began(job, 0) == older
    assert "the file of rank 1 has 1000 bytes, its list says" in job.stderr
    assert f"step {newer} on disk is not there for rank 1" in job.stderr


def test_a_bad_snapshot_is_not_used_for_ever(ft: Launcher, tmp_path: Path) -> None:
    """Not by the next job, although the first has no restart to learn from."""
    folder = tmp_path / "kept"
    folder.mkdir()
    step = failed_at(ft, folder, 20)
    for _ in range(2):
        job = start(ft, folder, f"raise:0:{step + 1}:0")  # before it takes a snapshot
        assert job.wait(LONG_S) == 1, job.stderr
        assert began(job, 0) == step
        assert set(snapshots(folder)) == {step}
    job = start(ft, folder)
    assert job.wait(LONG_S) == 0, job.stderr
    assert began(job, 0) == 0
    assert "is not used: 2 jobs have begun from it and got no further" in job.stderr


def test_a_job_that_is_killed_leaves_the_next_one_to_its_checkpoints(
    ft: Launcher, tmp_path: Path
) -> None:
    """They may be days newer than the snapshot that it began from."""
    folder = tmp_path / "kept"
    folder.mkdir()
    failed_at(ft, folder, 5)
    job = start(ft, folder, steps=1_000_000)
    until(lambda: said(job, "step10"), "it trains", LONG_S)
    os.kill(job.process.pid, signal.SIGKILL)
    job.wait(LONG_S)
    job = start(ft, folder)
    assert job.wait(LONG_S) == 0, job.stderr
    assert began(job, 0) == 0
    assert "a job has begun from it, and still runs or was killed" in job.stderr


FULL_FOLDER = 'mount -t tmpfs -o size=32k none "$KEPT" && exec "$@"'


@pytest.mark.skipif(not may_mount(), reason="needs the right to mount")
def test_a_full_disk_costs_a_line_and_the_exit_code_is_that_of_the_job(
    ft: Launcher, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    job = ft.start(
        "--nproc-per-node=2", "--max-restarts=0", "--log-dir=logs",
        f"--ft-snapshot-dir={folder}", ft.script(TRAINING),
        env={"FAULTS": "raise:0:20:0", "KEPT": str(folder)},
        prefix=["unshare", "--mount", "sh", "-c", FULL_FOLDER, "sh"],
    )  # fmt: skip
    assert job.wait(LONG_S) == 1, job.stderr
    assert re.search(
        r"the snapshot of step \d+ \(\d+ KiB\) is not written to \S+/kept: it needs "
        r"\d+ bytes, and \d+ are free",
        job.stderr,
    ), job.stderr


def test_a_folder_that_is_not_there_costs_two_lines(ft: Launcher, tmp_path: Path) -> None:
    folder = tmp_path / "none"
    job = start(ft, folder, "raise:0:20:0")
    assert job.wait(LONG_S) == 1, job.stderr
    assert f"--ft-snapshot-dir {folder}: No such file or directory" in job.stderr
    assert re.search(r"the snapshot of step \d+ .* is not written to .*/none: ", job.stderr)
    assert "Traceback" not in job.stderr.split("exit code 1")[-1]


@pytest.mark.parametrize("is_shared", [True, False])
def test_all_nodes_of_the_next_job_begin_from_one_step(
    ft: Launcher, nodes: Nodes, tmp_path: Path, is_shared: bool
) -> None:
    """They share a folder, or each has its own."""
    folders = [tmp_path / "kept" / ("0" if is_shared else str(n)) for n in range(2)]
    for it in folders:
        it.mkdir(parents=True, exist_ok=True)

    def job(of: Nodes, source: str) -> list[Job]:
        options = "--max-restarts=0", "--ft-snapshot-dir"
        return [of.add(source, "2", *options, str(it)) for it in folders]

    a, b = job(nodes, faulty("kill:0:20:1"))
    assert [it.wait(LONG_S) for it in (a, b)] == [1, 1], a.stderr + b.stderr
    with contextlib.closing(Nodes(ft, tmp_path)) as later:
        a, b = job(later, faulty(""))
        assert [it.wait(LONG_S) for it in (a, b)] == [0, 0], a.stderr + b.stderr
    first, second = began(a, 0), began(b, 0)
    assert first == second
    assert first in (18, 19)
    assert not any(list(it.iterdir()) for it in folders)
