"""One file for the output of all ranks of a cycle."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.base.file_writer import LineLog, cycle_path


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("/logs/run.log", "/logs/run_cycle3.log"),
        ("/logs/run.txt", "/logs/run_cycle3.txt"),
        ("/logs/run", "/logs/run_cycle3.log"),
        ("/logs/v1.2/run", "/logs/v1.2/run_cycle3.log"),
    ],
)
def test_each_cycle_has_a_file_of_its_own(base: str, path: str) -> None:
    """Specification 11."""
    assert cycle_path(base, 3) == path


def test_lines_are_appended_whole_with_their_prefix(tmp_path: Path) -> None:
    """Whatever they end with; what is there stays: another node may have written it."""
    path = tmp_path / "new" / "folder" / "run_cycle0.log"
    ours, theirs = (LineLog(str(path), pytest.fail) for _ in range(2))
    ours.write(b" 0: ", [b"one\n", b"two\r\n", b"50%\r"])
    theirs.write(b"12: ", [b"other\n"])
    ours.write(b" 0: ", [b"unfinished"])
    ours.close()
    theirs.close()
    assert path.read_bytes() == b" 0: one\n 0: two\n 0: 50%\n12: other\n 0: unfinished\n"


def test_a_closed_log_is_opened_again_by_who_writes_late(tmp_path: Path) -> None:
    """A process that a rank left behind."""
    log = LineLog(str(tmp_path / "x"), pytest.fail)
    for word in (b"in time", b"late"):
        log.write(b"0: ", [word])
        log.close()
    assert (tmp_path / "x").read_bytes() == b"0: in time\n0: late\n"


def test_a_file_that_cannot_be_written_is_told_of_once(tmp_path: Path) -> None:
    """And nothing is raised where output is carried."""
    told: list[str] = []
    (tmp_path / "file").touch()
    log = LineLog(str(tmp_path / "file" / "run.log"), told.append)
    log.write(b"0: ", [b"a\n"])
    log.write(b"0: ", [b"b\n"])
    assert len(told) == 1
    assert "run.log cannot be written (Not a directory)" in told[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_told_of_once() -> None:
    told: list[str] = []
    log = LineLog("/dev/full", told.append)
    log.write(b"0: ", [b"a\n"])
    log.write(b"0: ", [b"b\n"])
    assert len(told) == 1
    assert "No space left on device" in told[0]
