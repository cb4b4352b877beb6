"""Folders of a run: private, found orphaned only when they are, removed by one or by two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.host import child, job_name, proc, run_dirs


def dead_job() -> str:
    """As a launcher of our pid that was started a tick before us would have named it."""
    pid, ticks, *rest = job_name.new_job().split("-")
    return "-".join([pid, str(int(ticks) - 1), *rest])


@pytest.fixture(autouse=True)
def tmpfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Not the machine's."""
    monkeypatch.setattr(run_dirs, "_TMPFS", str(tmp_path))
    monkeypatch.setattr(run_dirs.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


def test_a_job_is_orphaned_when_its_launcher_is_dead_and_was_here() -> None:
    """Not while it lives, and not where its pid and ticks may mean something else."""
    assert job_name.is_orphaned(dead_job())
    assert not job_name.is_orphaned(job_name.new_job())
    fields = dead_job().split("-")
    for place in (2, 3, 4):  # pid namespace, time namespace, boot
        elsewhere = [*fields[:place], "12345678", *fields[place + 1 :]]
        assert not job_name.is_orphaned("-".join(elsewhere))
    assert not job_name.is_orphaned("somebody's folder")
    assert not job_name.is_orphaned("a-b-c-d")
    assert not job_name.is_orphaned("-".join(["a", "b", *fields[2:]]))


def test_a_launcher_that_is_not_reaped_is_dead() -> None:
    """Process 1 of many containers never reaps."""
    zombie = child.spawn(["/bin/true"], {}, {})
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    rest = job_name.new_job().split("-")[2:]
    job = "-".join([str(zombie), str(proc.start_ticks(zombie)), *rest])

    assert job_name.is_orphaned(job)
    os.waitpid(zombie, 0)


def test_where_the_boot_is_not_known_no_job_is_orphaned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another host's job would look like one of ours: pid namespaces have the same numbers."""
    monkeypatch.setattr(proc, "boot_id", lambda: "")

    assert not job_name.is_orphaned(dead_job())


def test_folders_of_runs_cost_a_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds may lie in the temp folder; only a name of a job is worth a look at the host."""

    def look(*_: object) -> str:
        raise AssertionError("it looks at the host")

    monkeypatch.setattr(proc, "boot_id", look)
    monkeypatch.setattr(proc, "namespace", look)
    for name in ("run_none_k2j4", "run_a-b-c-d-e-f", "kept_1-2-3-4-5", "", "1-2-3-4-5", "-----"):
        assert job_name.launcher_of(name) is None


def test_paths_of_sockets_are_short_enough() -> None:
    """The kernel takes 107 bytes."""
    longest = "-".join(["4194304", "9" * 10, "f" * 8, "f" * 8, "f" * 8, "f" * 6])
    assert len(job_name.new_job()) <= len(longest)
    assert len(f"/dev/shm/holdfast_{longest}/_ft_launcher4194304_rmon127.socket") <= 107


def test_what_a_killed_launcher_left_is_removed_and_nothing_else(tmpfs: Path) -> None:
    """The private folder of a living one stays, and so does what is not ours."""
    orphan = Path(run_dirs.make_runtime_dir(dead_job()))
    (orphan / "c0_r0.page").touch()
    alive = Path(run_dirs.make_runtime_dir(job_name.new_job()))
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
