"""Reading how far a job's checkpoints are."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from holdfast.net.loop import Loop
from holdfast.node.records.iteration_file import IterationFile, IterationReader


@pytest.mark.parametrize(
    ("text", "number"), [("120", 120), (" 7\n", 7), ("release", None), ("", None), (None, None)]
)
def test_the_file_holds_one_whole_number(tmp_path: Path, text: str | None, number: int | None):
    """Anything else is as good as no file."""
    path = tmp_path / "latest"
    if text is not None:
        path.write_text(text)

    assert IterationFile(str(path)).read() == number


def test_a_file_that_cannot_be_read_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not at the start, when there may be no checkpoint yet."""
    file = IterationFile(str(tmp_path / "none"))

    file.read(quiet=True)
    assert caplog.messages == []
    file.read()
    file.read()
    (said,) = caplog.messages
    assert "does not count" in said
    assert "No such file" in said


def test_storage_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    """A pipe that is not written to is as slow as storage can be; one thread waits there."""
    path = tmp_path / "latest"
    os.mkfifo(path)
    before = set(threading.enumerate())
    with Loop() as loop:
        reader = IterationReader(str(path), loop, lambda _: None)
        reader.ask()
        reader.ask()
        assert len(set(threading.enumerate()) - before) == 1

    path.write_text("5")  # lets it go


def test_the_loop_gets_what_a_thread_has_read(tmp_path: Path) -> None:
    """Once for each question."""
    path = tmp_path / "latest"
    path.write_text("5")
    found: list[tuple[int | None, bool]] = []
    with Loop() as loop:

        def on_read(number: int | None) -> None:
            found.append((number, threading.current_thread() is threading.main_thread()))
            loop.stop()

        IterationReader(str(path), loop, on_read).ask()
        loop.run(lambda: None, lambda: None)

    assert found == [(5, True)]
