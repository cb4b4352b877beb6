"""Files that are appended to by a thread, whatever their file system does."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from holdfast.base import file_writer
from holdfast.base.bounded import call_within
from holdfast.base.file_writer import FileWriter, LogFile
from tests.waiting import until


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_calls_behind_one_that_raises_are_not_reported_as_written() -> None:
    """The folder in memory, which may then hold the only copy, must be named."""
    writer = FileWriter("/logs")
    writer.call(lambda: os.close(-1))
    writer.call(lambda: None)
    assert not writer.close(30.0)


def test_a_writer_that_is_closed_twice_has_still_written_all() -> None:
    """What comes after the end is refused, and nobody waits for it."""
    written: list[str] = []
    writer = FileWriter("/logs")
    assert writer.call(lambda: written.append("in time"))
    assert writer.close(30.0)
    assert not writer.call(lambda: written.append("too late"))
    assert writer.close(30.0)
    assert written == ["in time"]


def test_what_a_hung_file_system_does_not_take_is_dropped_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once when it begins, and once, with the number, when it is over."""
    monkeypatch.setattr(file_writer, "WAITING_BYTES_MAX", 100)
    told: list[str] = []
    written: list[int] = []
    goes_on = threading.Event()
    writer = FileWriter("/logs", told.append, patience_s=0.01)

    writer.call(goes_on.wait, 60)
    for number in range(3):
        writer.call(lambda number=number: written.append(number), 30)

    assert len(told) == 1
    assert told[0].startswith("/logs takes no output (a write does not end)")
    goes_on.set()
    until(lambda: len(told) == 2, "the end of it")
    assert told[1] == "/logs takes output again; 60 bytes were not kept"
    assert writer.close(30.0)
    assert written == [0]


def test_a_slow_file_system_is_waited_for_as_long_as_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_writer, "WAITING_BYTES_MAX", 10)
    written: list[int] = []
    writer = FileWriter("/logs", pytest.fail, patience_s=30.0)
    for number in range(50):
        writer.call(lambda number=number: written.append(number), 10)
    assert writer.close(30.0)
    assert written == list(range(50))


def test_a_log_file_appears_at_once_and_its_folders_with_it(tmp_path: Path) -> None:
    """A user may follow it before the rank has printed anything."""
    writer = FileWriter(str(tmp_path), pytest.fail)
    path = tmp_path / "attempt_0" / "0" / "stdout.log"
    log = LogFile(str(path), writer, pytest.fail)
    until(path.exists, "the file")
    log.write(b"one\n")
    log.write(b"two\n")
    log.close()
    assert writer.close(30.0)
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_file_that_cannot_be_written_is_reported_once_and_tried_again(tmp_path: Path) -> None:
    """Its disk may have room again."""
    told: list[str] = []
    path = tmp_path / "folder" / "stdout.log"
    (tmp_path / "folder").touch()
    writer = FileWriter(str(tmp_path), pytest.fail)
    log = LogFile(str(path), writer, told.append)
    log.write(b"lost\n")
    tried = threading.Event()
    writer.call(tried.set)
    assert tried.wait(30.0)
    (tmp_path / "folder").unlink()
    log.write(b"kept\n")
    log.close()
    assert writer.close(30.0)
    assert path.read_bytes() == b"kept\n"
    assert told == [f"{path} cannot be written (Not a directory): what does not fit is lost"]


def test_a_call_that_does_not_come_back_is_left_behind() -> None:
    """One that does returns or raises what it would have."""
    assert call_within(30.0, os.getpid) == os.getpid()
    with pytest.raises(FileNotFoundError):
        call_within(30.0, Path("/no/such/file").stat)
    goes_on = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0.01 s"):
        call_within(0.01, goes_on.wait)
    goes_on.set()
