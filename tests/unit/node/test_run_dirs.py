"""Folders of a run: private, found orphaned only when they are, removed by one or by two."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base import clock
from holdfast.base.processes import child, job_name, proc
from holdfast.errors import LaunchError
from holdfast.events.run import run_links
from holdfast.node.records import run_dirs


def dead_job() -> str:
    """As a launcher of our pid that was started a tick before us would have named it."""
    pid, ticks, *rest = job_name.new_job().split("-")
    return "-".join([pid, str(int(ticks) - 1), *rest])


@pytest.fixture(autouse=True)
def tmpfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Not the machine's."""
    monkeypatch.setattr(run_links, "_TMPFS", str(tmp_path))
    monkeypatch.setattr(run_links, "_TEMP", str(tmp_path))
    monkeypatch.setattr(run_dirs.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


def test_a_job_is_orphaned_when_its_launcher_is_dead_and_was_here() -> None:
    """Not while it lives, and not where its pid and ticks may mean something else."""
    assert job_name.is_living(dead_job()) is False
    assert job_name.is_living(job_name.new_job()) is not False
    fields = dead_job().split("-")
    for place in (2, 3, 4):  # pid namespace, time namespace, boot
        elsewhere = [*fields[:place], "12345678", *fields[place + 1 :]]
        assert job_name.is_living("-".join(elsewhere)) is not False
    assert job_name.is_living("somebody's folder") is not False
    assert job_name.is_living("a-b-c-d") is not False
    assert job_name.is_living("-".join(["a", "b", *fields[2:]])) is not False


def test_a_launcher_that_is_not_reaped_is_dead() -> None:
    """Process 1 of many containers never reaps."""
    zombie = child.spawn(["/bin/true"], {}, {})
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    rest = job_name.new_job().split("-")[2:]
    job = "-".join([str(zombie), str(proc.start_ticks(zombie)), *rest])

    assert job_name.is_living(job) is False
    os.waitpid(zombie, 0)


def test_where_the_boot_is_not_known_no_job_is_orphaned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another host's job would look like one of ours: pid namespaces have the same numbers."""
    monkeypatch.setattr(proc, "boot_id", lambda: "")

    assert job_name.is_living(dead_job()) is not False


def test_sockets_have_short_paths_without_shared_memory_and_below_a_long_temp_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below it they would have more bytes than the system allows, and no job could start."""
    short, long = tmp_path / "tmp", tmp_path / ("scratch" * 20)
    short.mkdir()
    long.mkdir()
    monkeypatch.setattr(run_links, "_TMPFS", str(tmp_path / "none"))
    monkeypatch.setattr(run_links, "_TEMP", str(short))
    monkeypatch.setattr(run_dirs.tempfile, "gettempdir", lambda: str(long))

    made = run_dirs.make_runtime_dir(dead_job())
    assert Path(made).parent == short
    run_dirs.remove_orphaned_runtime_dirs()
    assert not Path(made).exists()

    short.rmdir()
    assert Path(run_dirs.make_runtime_dir(dead_job())).parent == long


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


@pytest.mark.parametrize(
    ("log_dir", "run_id"), [(None, "job7"), ("logs", "job7"), ("logs", "0123456789abcdef" * 2)]
)
def test_folders_of_runs_sort_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_dir: str | None, run_id: str
) -> None:
    """Of one job, or of all to which nobody gave an id; random letters told nothing."""
    base = None if log_dir is None else str(tmp_path / log_dir)
    made = []
    for wall in (999_999_999.0, 1_700_000_000.0, 1_700_000_000.002, 1_800_000_000.0):
        monkeypatch.setattr(clock, "wall", lambda wall=wall: wall)
        made.append(run_dirs.make_run_dir(base, run_id))
    assert made == sorted(made)
    assert "20231114T221320.002Z" in made[2]


def test_a_folder_of_a_run_begins_with_the_id_that_the_user_gave(tmp_path: Path) -> None:
    """As torchrun's does; scripts look for it by that."""
    made = Path(run_dirs.make_run_dir(str(tmp_path), "job/7"))
    assert made.name.startswith("job_7_")


def test_a_log_folder_that_cannot_be_made_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log_dir = tmp_path / "file" / "logs"
    words = f"no run folder can be made in {log_dir}: Not a directory. Name .* with --log-dir"
    with pytest.raises(LaunchError, match=words):
        run_dirs.make_run_dir(str(log_dir), "job")


def test_a_node_leaves_the_folders_of_another_that_shares_its_temp_folder(
    tmpfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose launcher may have a pid and a start time that nobody has here."""
    monkeypatch.setattr(proc, "boot_id", lambda: "f" * 32)
    theirs = Path(run_dirs.make_runtime_dir(dead_job()))
    monkeypatch.undo()
    monkeypatch.setattr(run_links, "_TMPFS", str(tmpfs))
    monkeypatch.setattr(run_dirs.tempfile, "gettempdir", lambda: str(tmpfs))

    run_dirs.remove_orphaned_runtime_dirs()

    assert list(tmpfs.iterdir()) == [theirs]


def test_a_temp_folder_that_hangs_keeps_no_launcher_from_its_start(
    tmpfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orphans are looked for elsewhere; a run folder that cannot be made is an error."""
    orphan = Path(run_dirs.make_runtime_dir(dead_job()))
    goes_on, scan = threading.Event(), os.scandir

    def hang(*_: object, **__: object) -> str:
        goes_on.wait()
        return ""

    def parents() -> Iterator[str]:
        monkeypatch.setattr(run_dirs, "_LOOK_S", 0.01)
        yield "/hung"
        monkeypatch.setattr(run_dirs, "_LOOK_S", 60.0)
        yield str(tmpfs)

    monkeypatch.setattr(run_links, "runtime_parents", parents)
    monkeypatch.setattr(run_dirs.os, "scandir", lambda p: hang() if p == "/hung" else scan(p))
    run_dirs.remove_orphaned_runtime_dirs()
    assert not orphan.exists()

    monkeypatch.setattr(run_dirs, "_MAKE_S", 0.01)
    monkeypatch.setattr(run_dirs.os, "makedirs", hang)
    with pytest.raises(
        TimeoutError, match=r"cannot make a folder for this run in /hung: no answer"
    ):
        run_dirs.make_run_dir("/hung", "job7")
    goes_on.set()
