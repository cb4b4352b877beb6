"""Folders of a run: private, found orphaned only when they are, removed by one or by two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.host import proc, run_dirs


def dead_job() -> str:
    """As a launcher of our pid that was started a tick before us would have named it."""
    ticks = proc.start_ticks(os.getpid())
    assert ticks is not None
    return f"{os.getpid()}-{ticks - 1}-{proc.pid_namespace()}-00c0ffee"


@pytest.fixture(autouse=True)
def tmpfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Not the machine's."""
    monkeypatch.setattr(run_dirs, "_TMPFS", str(tmp_path))
    monkeypatch.setattr(run_dirs.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


def test_a_job_is_orphaned_when_its_launcher_is_dead_and_was_here() -> None:
    """Not while it lives, and not when it may live in another pid namespace."""
    pid, ticks, namespace, tail = dead_job().split("-")

    assert run_dirs.is_orphaned(dead_job())
    assert not run_dirs.is_orphaned(run_dirs.new_job())
    assert not run_dirs.is_orphaned(f"{pid}-{ticks}-{int(namespace) + 1}-{tail}")
    assert not run_dirs.is_orphaned("somebody's folder")
    assert not run_dirs.is_orphaned("a-b-c-d")


def test_what_a_killed_launcher_left_is_removed_and_nothing_else(tmpfs: Path) -> None:
    """The private folder of a living one stays, and so does what is not ours."""
    orphan = Path(run_dirs.make_runtime_dir(dead_job()))
    (orphan / "c0_r0.page").touch()
    alive = Path(run_dirs.make_runtime_dir(run_dirs.new_job()))
    foreign = tmpfs / "holdfast_notes"
    foreign.mkdir()

    run_dirs.remove_orphaned_runtime_dirs()

    assert set(tmpfs.iterdir()) == {alive, foreign}
    assert alive.stat().st_mode & 0o777 == 0o700


def test_what_has_no_other_place_is_kept_when_its_job_is_dead(tmpfs: Path) -> None:
    """Evidence that a full disk did not take; nobody takes its folder for an orphan."""
    runtime = Path(run_dirs.make_runtime_dir(dead_job()))
    (runtime / "evidence").mkdir()
    (runtime / "evidence" / "stacks.txt").touch()

    kept = Path(run_dirs.keep(str(runtime / "evidence"), dead_job()))
    run_dirs.remove_orphaned_runtime_dirs()

    assert list(tmpfs.iterdir()) == [kept]
    assert (kept / "stacks.txt").exists()


def test_two_launchers_may_remove_the_same_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that finds it gone goes on."""
    orphan = Path(run_dirs.make_runtime_dir(dead_job()))
    scan = os.scandir

    def scan_and_lose(path: str) -> list[os.DirEntry[str]]:
        entries = list(scan(path))
        orphan.rmdir()
        return entries

    monkeypatch.setattr(run_dirs.os, "scandir", scan_and_lose)

    run_dirs.remove_orphaned_runtime_dirs()
