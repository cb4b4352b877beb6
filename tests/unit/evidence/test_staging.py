"""Evidence reaches the run directory, and nobody who takes it waits for that."""

from __future__ import annotations

import errno
import os
import queue
import shutil
import threading
from pathlib import Path

import pytest

from holdfast.evidence.staging import Staging


def stage(staging: Staging, cycle: int, name: str, text: str) -> None:
    path = Path(staging.folder(cycle)) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_what_was_staged_is_delivered_under_the_same_path(tmp_path: Path) -> None:
    """And the memory it took is freed when its cycle is over."""
    staging = Staging(str(tmp_path / "staged"), str(tmp_path / "run"))
    stage(staging, 0, "attempt_0/1/stacks.txt", "Thread 1")
    staging.deliver(0)
    stage(staging, 0, "incidents/cycle0_rank1.json", "{}")
    staging.deliver(0, over=True)
    stage(staging, 1, "attempt_1/0/stacks.txt", "")
    staging.close(10.0)

    assert (tmp_path / "run/attempt_0/1/stacks.txt").read_text() == "Thread 1"
    assert (tmp_path / "run/incidents/cycle0_rank1.json").read_text() == "{}"
    assert not Path(staging.folder(0)).exists()
    assert Path(staging.folder(1)).exists()


def test_a_file_that_nothing_was_written_into_is_no_evidence(tmp_path: Path) -> None:
    """Each rank opens one for its stacks; an empty one looks like evidence that is lost."""
    staging = Staging(str(tmp_path / "staged"), str(tmp_path / "run"))
    stage(staging, 0, "attempt_0/0/stacks.txt", "")
    stage(staging, 0, "attempt_0/1/stacks.txt", "Thread 1")
    staging.deliver(0, over=True)
    staging.close(10.0)

    assert [path.parent.name for path in tmp_path.glob("run/attempt_0/*/*")] == ["1"]


def test_a_run_directory_that_takes_nothing_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that hangs is what hangs ranks."""
    healed = threading.Event()
    monkeypatch.setattr("shutil.copy2", lambda *_, **__: healed.wait())
    staging = Staging(str(tmp_path / "staged"), str(tmp_path / "run"))
    stage(staging, 0, "stacks.txt", "Thread 1")

    staging.deliver(0, over=True)
    staging.deliver(1)
    assert not staging.close(0.05)

    assert Path(staging.folder(0), "stacks.txt").read_text() == "Thread 1", "not lost, either"
    healed.set()


def test_a_full_run_directory_loses_nothing_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With path and errno; what it did not take is tried again with whatever comes next."""
    copy, full = shutil.copy2, threading.Event()
    full.set()

    def copy_if_there_is_space(source: str, target: str) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as the kernel: no name
        copy(source, target)

    monkeypatch.setattr("shutil.copy2", copy_if_there_is_space)
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    staging = Staging(str(tmp_path / "staged"), str(tmp_path / "run"), told.put)
    stage(staging, 0, "attempt_0/0/stacks.txt", "Thread 1")
    staging.deliver(0)
    staging.deliver(0, over=True)
    text = told.get(timeout=30)
    full.clear()

    assert staging.close(30.0)

    target = tmp_path / "run/attempt_0/0/stacks.txt"
    assert target.read_text() == "Thread 1"
    assert f"{target}: No space left on device (ENOSPC)" in text
    assert told.empty()
    assert not Path(staging.folder(0)).exists()


def test_what_is_never_taken_stays_staged(tmp_path: Path) -> None:
    """For whoever closes to keep it; a file where a folder should be is such a case."""
    (tmp_path / "run").write_text("")
    told: list[str] = []
    staging = Staging(str(tmp_path / "staged"), str(tmp_path / "run"), told.append)
    stage(staging, 0, "stacks.txt", "Thread 1")
    staging.deliver(0, over=True)

    assert not staging.close(30.0)
    assert Path(staging.folder(0), "stacks.txt").read_text() == "Thread 1"
    assert len(told) == 1


def test_nothing_staged_is_no_error(tmp_path: Path) -> None:
    """Most cycles end without evidence."""
    staging = Staging(str(tmp_path / "staged"), str(tmp_path / "run"))

    staging.deliver(7, over=True)
    staging.close(10.0)

    assert not (tmp_path / "run").exists()


def test_whoever_reads_a_file_that_is_delivered_again_finds_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of --ft-on-incident once found an incident.json that was empty."""
    copy, seen = shutil.copy2, list[str | None]()
    target = tmp_path / "run" / "incident.json"

    def copy_and_read(source: str, part: str) -> None:
        copy(source, part)
        seen.append(target.read_text() if target.exists() else None)

    monkeypatch.setattr("shutil.copy2", copy_and_read)
    for text in ("first", "second"):
        staging = Staging(str(tmp_path / "staged"), str(tmp_path / "run"))
        stage(staging, 0, "incident.json", text)
        staging.deliver(0)
        assert staging.close(30.0)
        assert target.read_text() == text
    assert seen == [None, "first"]
    assert [path.name for path in target.parent.iterdir()] == ["incident.json"]
