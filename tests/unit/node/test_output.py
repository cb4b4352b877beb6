"""The thread that carries the ranks' output."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base import clock, wait_for
from holdfast.base.file_writer import LineLog, LogFile
from holdfast.node.processes import consoles
from holdfast.node.processes.output import HEAD_LINES, TAIL_LINES, OutputPump, Stream


@pytest.fixture
def pump() -> Iterator[OutputPump]:
    pump = OutputPump()
    yield pump
    pump.close(5.0)


class Pipe:
    """Where a rank writes, and a console to look at."""

    def __init__(self, tmp_path: Path, **options: object) -> None:
        source, self.write_end = os.pipe()
        os.set_blocking(source, False)
        self._console_path = tmp_path / "console"
        self._console = os.open(self._console_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.stream = Stream(source, console=self._console, **options)  # type: ignore[arg-type]

    def write(self, data: bytes) -> None:
        os.write(self.write_end, data)

    @property
    def console(self) -> bytes:
        return self._console_path.read_bytes()


def test_without_a_prefix_output_passes_as_it_is(pump: OutputPump, tmp_path: Path) -> None:
    """Progress bars and half lines appear at once."""
    pipe = Pipe(tmp_path)
    pump.add(pipe.stream)
    pipe.write(b"50%\r60%")

    assert pump.settle([pipe.stream], 5.0)
    assert pipe.console == b"50%\r60%"


def test_a_line_of_ours_begins_below_a_progress_bar(pump: OutputPump, tmp_path: Path) -> None:
    """In a file, a log line at the end of a bar is not found by its beginning."""
    pipe = Pipe(tmp_path)
    assert pipe.stream.console is not None
    pump.add(pipe.stream)
    for bar, ours in [(b"10%\r20%", b"one\n"), (b"", b"two\n"), (b"\r30%\n", b"three\n")]:
        pipe.write(bar)
        assert pump.settle([pipe.stream], 5.0)
        pump.write(pipe.stream.console, ours)
    assert pump.settle([pipe.stream], 5.0)
    assert pipe.console == b"10%\r20%\none\ntwo\n\r30%\nthree\n"
    os.close(pipe.write_end)


def test_a_question_is_on_the_console_before_its_line_ends(
    pump: OutputPump, tmp_path: Path
) -> None:
    """A rank that reads the terminal asks there; what follows goes on in the same line."""
    pipe = Pipe(tmp_path, prefix=b"0:", shows_prompts=True)
    pump.add(pipe.stream)
    shown = b""
    for written, adds in [
        (b"one\n(Pdb) ", b"0:one\n0:(Pdb) "),
        (b"x=1", b"x=1"),
        (b"\ntwo\n", b"\n0:two\n"),
        (b"10%\r", b"0:10%\r"),
        (b"20%\nthree\n", b"20%\n0:three\n"),
        (b"end", b"0:end"),
    ]:
        pipe.write(written)
        assert pump.settle([pipe.stream], 5.0)
        shown += adds
        assert pipe.console == shown
    os.close(pipe.write_end)
    pump.close(5.0)
    assert pipe.console == shown + b"\n"


def test_with_a_prefix_whole_lines_are_written(pump: OutputPump, tmp_path: Path) -> None:
    """Each line carries its rank; an unfinished last line is completed at the end."""
    pipe = Pipe(tmp_path, prefix=b"[default0]:")
    pump.add(pipe.stream)
    pipe.write(b"one\ntw")
    pump.settle([pipe.stream], 5.0)
    assert pipe.console == b"[default0]:one\n"

    pipe.write(b"o\nthree")
    os.close(pipe.write_end)
    pump.close(5.0)

    assert pipe.console == b"[default0]:one\n[default0]:two\n[default0]:three\n"


def test_everything_written_before_settling_has_been_passed_on(
    pump: OutputPump, tmp_path: Path
) -> None:
    """Although the pipe stays open (a grandchild holds it)."""
    log = tmp_path / "stderr.log"
    writer = pump.writer(str(tmp_path), pytest.fail)
    pipe = Pipe(tmp_path, file=LogFile(str(log), writer, pytest.fail))
    pump.add(pipe.stream)
    pipe.write(b"x" * 60_000 + b"\nlast\n")

    assert pump.settle([pipe.stream], 5.0)
    assert writer.close(5.0)
    assert log.read_bytes().endswith(b"x\nlast\n")
    assert pipe.stream.last_lines()[0][-1] == "last"


def test_the_last_lines_are_kept_for_the_report(pump: OutputPump, tmp_path: Path) -> None:
    """As many as a report needs, an unfinished one included."""
    pipe = Pipe(tmp_path)
    pump.add(pipe.stream)
    before = clock.monotonic()
    pipe.write(b"".join(b"line %d\n" % number for number in range(1000)))
    pump.settle([pipe.stream], 5.0)
    between = clock.monotonic()
    pipe.write(b"line 1000\nSegm")
    pump.settle([pipe.stream], 5.0)

    lines, times = pipe.stream.last_lines()
    assert len(lines) == len(times) == TAIL_LINES
    assert lines[-3:] == ["line 999", "line 1000", "Segm"]
    assert before <= times[-3] <= between <= times[-2] <= times[-1], "when they came"
    assert pipe.stream.head == [f"line {number}" for number in range(HEAD_LINES)]
    assert pipe.stream.n_lines == 1002


def test_matching_lines_are_duplicated(pump: OutputPump, tmp_path: Path) -> None:
    """--duplicate-stdout-filters: any of the texts."""
    kept = tmp_path / "filtered"
    writer = pump.writer(str(tmp_path), pytest.fail)
    pipe = Pipe(
        tmp_path,
        matches=[b"loss", b"grad"],
        matched_file=LogFile(str(kept), writer, pytest.fail),
    )
    pump.add(pipe.stream)
    pipe.write(b"loss 1\nhello\ngrad 2\n")
    pump.settle([pipe.stream], 5.0)
    assert writer.close(5.0)

    assert kept.read_bytes() == b"loss 1\ngrad 2\n"


def test_a_line_of_any_length_reaches_the_shared_log_in_whole_characters(
    pump: OutputPump, tmp_path: Path
) -> None:
    """In pieces above 1 MiB, each after its rank; one that is still open when all ends is kept."""
    path = tmp_path / "run_cycle0.log"
    log = LineLog(str(path), pytest.fail)
    pipe = Pipe(tmp_path, log=log, log_prefix=b"3: ")
    pipe.stream.console = None
    pump.add(pipe.stream)
    text = "x" + "\N{SNOWMAN}" * 500_000 + "\n" + "\N{SNOWMAN}"  # 3 bytes each
    data = text.encode()[:-1]  # the last one never comes whole
    for start in range(0, len(data), 50_000):
        pipe.write(data[start : start + 50_000])
    pump.settle([pipe.stream], 5.0)
    pump.close(5.0)

    lines = path.read_bytes().splitlines()
    assert all(line.startswith(b"3: ") for line in lines)
    pieces = [line.removeprefix(b"3: ") for line in lines]
    assert pieces.pop() == "\N{SNOWMAN}".encode()[:-1]
    assert len(pieces) == 2
    assert "".join(piece.decode() for piece in pieces) == text[:-2]
    log.close()


class PausedReader:
    """A pipe that only :meth:`read` reads."""

    def __init__(self) -> None:
        self.read_end, self.descriptor = os.pipe()

    def read(self, n_bytes: int) -> bytes:
        found = b""
        while len(found) < n_bytes:
            assert wait_for.readable(self.read_end, 30.0), f"{len(found)} bytes of {n_bytes}"
            found += os.read(self.read_end, 1 << 16)
        return found


@pytest.fixture(params=["opened again", "of another user"])
def paused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PausedReader:
    """It may be opened a second time, or not."""
    if request.param == "of another user":
        monkeypatch.setattr(consoles, "_opened_again", lambda _: None)
    return PausedReader()


def write_all(pipe: Pipe, pump: OutputPump, data: bytes) -> None:
    """As a rank does, which goes on as soon as that was taken."""
    for start in range(0, len(data), 60_000):
        pipe.write(data[start : start + 60_000])
        assert pump.settle([pipe.stream], 5.0)


def test_a_rank_whose_output_is_in_a_file_does_not_wait_for_a_console_that_pauses(
    pump: OutputPump, tmp_path: Path, paused: PausedReader
) -> None:
    """Nor do the launcher's lines; all come in order when the reader goes on."""
    writer = pump.writer(str(tmp_path), pytest.fail)
    log = tmp_path / "stdout.log"
    pipe = Pipe(tmp_path, prefix=b"0:", file=LogFile(str(log), writer, pytest.fail))
    pipe.stream.console = paused.descriptor
    pump.add(pipe.stream)
    lines = b"".join(b"line %d\n" % number for number in range(200_000))
    write_all(pipe, pump, lines)
    pump.write(paused.descriptor, b"ours\n")
    assert pipe.stream.last_lines()[0][-1] == "line 199999"

    shown = b"".join(b"0:" + line for line in lines.splitlines(keepends=True)) + b"ours\n"
    assert paused.read(len(shown)) == shown
    assert writer.close(5.0)
    assert log.read_bytes() == lines
    assert os.get_blocking(paused.descriptor), "as its other writers expect it"


def test_what_no_memory_is_left_for_is_in_the_file_alone_and_the_log_says_so(
    pump: OutputPump,
    tmp_path: Path,
    paused: PausedReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consoles, "SPARE_BYTES", 100_000)
    writer = pump.writer(str(tmp_path), pytest.fail)
    log = tmp_path / "stdout.log"
    pipe = Pipe(tmp_path, file=LogFile(str(log), writer, pytest.fail))
    pipe.stream.console = paused.descriptor
    pump.add(pipe.stream)
    write_all(pipe, pump, b"x" * 3_000_000)
    pump.write(paused.descriptor, b"ours\n")

    shown = paused.read(100_000)
    while not shown.endswith(b"files\n"):
        shown += paused.read(1)
    assert len(shown) < 300_000
    assert re.search(rb"\nours\n2\.\d MiB of the ranks' output are missing above", shown)
    assert writer.close(5.0)
    assert log.stat().st_size == 3_000_000


def test_a_rank_whose_output_is_in_no_file_waits_for_its_console(
    pump: OutputPump, tmp_path: Path, paused: PausedReader
) -> None:
    """As under a plain shell; nothing is lost."""
    pipe = Pipe(tmp_path)
    pipe.stream.console = paused.descriptor
    pump.add(pipe.stream)
    n_written = 0
    while wait_for.writable(pipe.write_end, 0.5):
        n_written += os.write(pipe.write_end, b"y" * 999 + b"\n")
        assert n_written < 10_000_000
    pump.write(paused.descriptor, b"ours\n")

    assert len(paused.read(n_written + 5)) == n_written + 5


def test_both_streams_of_a_launcher_keep_their_order_on_one_console(
    pump: OutputPump, paused: PausedReader
) -> None:
    """``2>&1``, and the reader pauses."""
    other = os.dup(paused.descriptor)
    written = b""
    for number in range(300):
        line = b"%d " % number * 200 + b"\n"
        pump.write((paused.descriptor, other)[number % 2], line)
        written += line
    assert paused.read(len(written)) == written
    os.close(other)


def test_a_console_whose_reader_is_gone_holds_up_nobody(
    pump: OutputPump, tmp_path: Path, paused: PausedReader
) -> None:
    pipe = Pipe(tmp_path)
    pipe.stream.console = paused.descriptor
    pump.add(pipe.stream)
    pump.write(paused.descriptor, b"z" * 200_000)
    assert pump.settle([pipe.stream], 5.0)
    os.close(paused.read_end)
    write_all(pipe, pump, b"z" * 1_000_000)


def test_a_pump_that_has_had_no_cpu_yet_is_waited_for(pump: OutputPump, tmp_path: Path) -> None:
    """Why a rank failed is in its last lines, and restarts depend on it: --ft-max-same-failures."""
    pipe = Pipe(tmp_path)
    pump.add(pipe.stream)
    pump.call(lambda: time.sleep(0.2))  # the thread, as on a busy machine
    pipe.write(b"KeyError: 'lr'\n")

    assert pump.settle([pipe.stream], 0.01)
    assert pipe.stream.last_lines()[0] == ["KeyError: 'lr'"]


def test_a_stream_without_end_does_not_hold_up_who_asks(pump: OutputPump) -> None:
    """A grandchild that prints all the time; why its rank has failed was said before."""
    stream = Stream(os.open("/dev/zero", os.O_RDONLY))
    pump.call(lambda: pump._streams.update({stream.source: stream}))  # epoll does not take it
    assert pump.settle([stream], 5.0)
    pump.call(pump._streams.clear)
    os.close(stream.source)


def test_a_line_without_its_end_is_as_old_as_what_came_of_it() -> None:
    """Else a progress bar that has stopped would look as if it went on."""
    read_end, write_end = os.pipe()
    stream = Stream(read_end)
    os.write(write_end, b"done\n 10%")
    stream.pump()

    assert stream.last_lines() == stream.last_lines()
    assert stream.last_lines()[0] == ["done", " 10%"]
    os.close(write_end)
    stream.close()
