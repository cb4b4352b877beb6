"""Carry the ranks' output: to the console, to files, and its last lines to the failure report.

One thread for all ranks; it waits for no console (``consoles.py``), and files are written by
threads of their own (``file_writer.py``). A rank that writes faster than its console can show waits
only if no file has its output, as under a plain shell. Everything a rank wrote before it died is
shown before its end is reported (:meth:`OutputPump.settle`).
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.base import clock, wait_for
from holdfast.base.bounded import start_thread
from holdfast.base.file_writer import FileWriter, LineLog, LogFile, Report
from holdfast.node.processes.consoles import Consoles

_CHUNK_BYTES = 1 << 16
_PIPE_BYTES_MAX = 1 << 20
"""The most that a pipe can hold (/proc/sys/fs/pipe-max-size)."""
TAIL_LINES = 300
"""Enough for an exception with the one that it was raised from, and what exit handlers write."""
TAIL_LINE_BYTES = 2000
HEAD_LINES = 20
"""Enough for the five that a report shows, with those that it leaves out."""
_PARTIAL_BYTES_MAX = 1 << 20
"""A line longer than this is passed on in pieces."""
_BUSY_S = 2.0
"""How long a pump is waited for: a busy machine has no CPU for it yet."""


@dataclass
class Stream:
    """One stream of one rank, on its way from a pipe to where it is wanted.

    Attributes:
        source: Reading end of the pipe; closed by the pump.
        console: Descriptor of the launcher's stdout or stderr, or None: not shown.
        prefix: Put before every line on the console; with a prefix whole lines are written.
        shows_prompts: But the start of a line is written at once: it may be a question.
        file: The log file, or None; closed by the pump.
        matches: Lines that contain one of these also go to ``matched_file``.
        matched_file: As ``file``.
        log: Gets every line, with ``log_prefix`` before it; shared with other streams.
    """

    source: int
    console: int | None = None
    prefix: bytes = b""
    shows_prompts: bool = False
    file: LogFile | None = None
    matches: Sequence[bytes] = ()
    matched_file: LogFile | None = None
    log: LineLog | None = None
    log_prefix: bytes = b""
    tail: deque[tuple[bytes, float]] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    """Its last lines, and when they came."""
    head: list[str] = field(default_factory=list)
    """Its first lines."""
    consoles: Consoles | None = None
    """The pump's, for all its streams."""
    _partial: bytearray = field(default_factory=bytearray)
    _n_ended: int = 0
    """Lines that have an end."""
    _received_at: float = 0.0
    _shown: int = 0
    """How much of it is on the console."""

    def pump(self) -> bool:
        """Pass on the available data; False at the end of the stream."""
        try:
            data = os.read(self.source, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        if not data:
            self._lines(b"", final=True)
            return False
        if self.file is not None:
            self.file.write(data)
        if self.console is not None and not self.prefix:
            self._write(data)
        self._lines(data, final=False)
        return True

    def drain(self) -> bool:
        """Pass on the data that is available now; False at the end of the stream."""
        for _ in range(_PIPE_BYTES_MAX // _CHUNK_BYTES):
            if not wait_for.readable(self.source, 0.0):
                break
            if not self.pump():
                return False
        return True

    def close(self) -> None:
        """Close pipe and files; an unfinished line ends here."""
        self._lines(b"", final=True)
        with contextlib.suppress(OSError):
            os.close(self.source)
        for file in (self.file, self.matched_file):
            if file is not None:
                file.close()

    @property
    def n_lines(self) -> int:
        """How many lines have come, an unfinished one included."""
        return self._n_ended + bool(self._partial)

    def last_lines(self) -> tuple[list[str], list[float]]:
        """The last lines, an unfinished one included, as text; and when they came (monotonic)."""
        kept = list(self.tail)
        if self._partial:
            kept.append((bytes(self._partial), self._received_at))
        kept = kept[-TAIL_LINES:]
        return [_text(line) for line, _ in kept], [at for _, at in kept]

    def _lines(self, data: bytes, *, final: bool) -> None:
        self._partial += data
        if data:
            self._received_at = clock.monotonic()
        end = self._partial.rfind(b"\n") + 1
        if final:
            end = len(self._partial)
        elif len(self._partial) - end > _PARTIAL_BYTES_MAX:
            end = _before_last_character(self._partial)
        lines = bytes(self._partial[:end]).splitlines(keepends=True)
        del self._partial[:end]
        if self.console is not None and self.prefix:
            self._show(lines)
        if not lines:
            return
        self._n_ended += len(lines)
        self.head += [_text(line) for line in lines[: HEAD_LINES - len(self.head)]]
        kept, at = lines[-TAIL_LINES:], self._received_at
        self.tail.extend((line[:TAIL_LINE_BYTES].rstrip(b"\r\n"), at) for line in kept)
        if self.log is not None:
            self.log.write(self.log_prefix, lines)
        if self.matched_file is not None:
            kept = [line for line in lines if any(match in line for match in self.matches)]
            if kept:
                self.matched_file.write(b"".join(kept))

    @property
    def is_in_file(self) -> bool:
        """The console may miss some of it."""
        return self.file is not None or self.log is not None

    def must_wait(self) -> bool:
        """Its console takes no more, and no file has it."""
        if self.console is None or self.consoles is None or self.is_in_file:
            return False
        return self.consoles.is_full(self.console)

    def _write(self, data: bytes) -> None:
        assert self.console is not None
        assert self.consoles is not None
        self.consoles.write(self.console, data, is_in_file=self.is_in_file)

    def _show(self, lines: Sequence[bytes]) -> None:
        """Whole lines, without the shown start of the first; the start of the next if wanted."""
        shown = b""
        if self._shown and lines:
            first, *lines = b"".join(lines)[self._shown :].splitlines(keepends=True) or [b"\n"]
            shown, self._shown = first, 0
        shown += b"".join(self.prefix + line for line in lines)
        if shown and not shown.endswith(b"\n"):
            shown += b"\n"
        if self.shows_prompts and len(self._partial) > self._shown:
            shown += (b"" if self._shown else self.prefix) + self._partial[self._shown :]
            self._shown = len(self._partial)
        if shown:
            self._write(shown)


def _before_last_character(data: bytearray) -> int:
    """Where to cut, so that no character of UTF-8 is cut in two: it may be there in part."""
    for back in range(1, 5):
        if data[-back] & 0xC0 != 0x80:  # not one of the bytes that follow the first
            return len(data) - back
    return len(data)  # it is not UTF-8


class OutputPump:
    """The thread that carries all streams. Start it once; add streams at every cycle.

    Attributes:
        ended: A descriptor that can be read when the thread has ended.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._streams: dict[int, Stream] = {}
        self._paused: set[int] = set()
        """Of streams that are not read: their console is full."""
        self._consoles = Consoles(self._epoll)
        self._errands: deque[Callable[[], None]] = deque()
        self._writers: dict[str, FileWriter] = {}
        self._closing = False  # the thread is to stop
        self._closed = False  # no call has an effect any more
        self.ended, self._end = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="holdfast-output", daemon=True)
        start_thread(self._thread)

    def log_as(self, as_line: Callable[[str], bytes]) -> None:
        """Say in such lines how much a console has missed."""
        self._consoles.as_line = as_line

    def writer(self, folder: str, report: Report) -> FileWriter:
        """Writes the files below ``folder`` (absolute); one for all calls, closed by the pump."""
        if folder not in self._writers:
            self._writers[folder] = FileWriter(folder, report)
        return self._writers[folder]

    def add(self, stream: Stream) -> None:
        """Carry ``stream`` from now on, to its end."""
        stream.consoles = self._consoles

        def register() -> None:
            self._streams[stream.source] = stream
            self._epoll.register(stream.source, select.EPOLLIN)

        self.call(register)

    def call(self, errand: Callable[[], None]) -> None:
        """Call ``errand`` in the pump's thread, after earlier ones, unless it is closed."""
        if self._closed:
            return
        self._errands.append(errand)
        with contextlib.suppress(BlockingIOError):  # it has wake-ups enough
            os.write(self._wake_write, b"\0")

    def write(self, descriptor: int, data: bytes) -> None:
        """Write the launcher's lines to ``descriptor``, in order with the output of the ranks.

        A progress bar of a rank has no end of line: the launcher's line begins below it.
        """

        def write() -> None:
            is_cut = descriptor in self._consoles.cut
            self._consoles.write(descriptor, b"\n" + data if is_cut else data)

        self.call(write)

    def settle(self, streams: Sequence[Stream], timeout_s: float) -> bool:
        """Wait until all that was written to ``streams`` so far has been passed on.

        For a rank that has just ended: its last output is in the pipe. Does not wait for the end of
        the stream, which a grandchild may hold open for ever, nor for a console. A pump that has
        had no CPU is waited for longer than ``timeout_s``: why the rank failed depends on its last
        lines.

        Returns:
            False: it has not been passed on, for the machine is very busy.
        """
        done = threading.Event()

        def drain() -> None:
            for stream in streams:
                if self._streams.get(stream.source) is stream and not stream.drain():
                    self._remove(stream)
            done.set()

        self.call(drain)
        give_up_at = clock.monotonic() + _BUSY_S
        while not done.wait(timeout_s):
            if self._closed or clock.monotonic() >= give_up_at:
                return done.is_set()
        return True

    def close(
        self, timeout_s: float, has_ended: Callable[[int, float], bool] = wait_for.readable
    ) -> None:
        """Pass on the available data and stop, within ``timeout_s``. Nothing the second time.

        Data that the consoles have not taken by then are passed on as long as this process lives.
        ``has_ended`` waits for :attr:`ended` for so many seconds at most; False: it gave up.
        """
        if self._closed:
            return

        def drain_all() -> None:
            for stream in list(self._streams.values()):
                stream.drain()
                self._remove(stream)
            self._closing = True

        self.call(drain_all)
        self._closed = True
        give_up_at = clock.monotonic() + timeout_s
        if has_ended(self.ended, timeout_s):
            self._thread.join()
        for writer in self._writers.values():
            writer.close(max(0.0, give_up_at - clock.monotonic()))
        self._release()

    @property
    def waits_for_reader(self) -> bool:
        """After :meth:`close`: the reader of a console pauses, and the end of it is not shown."""
        return self._consoles.is_awaited

    def release(self) -> None:
        """The thread has :attr:`ended`."""
        self._thread.join()
        self._release()

    def _release(self) -> None:
        if not self._thread.is_alive():
            self._consoles.close()
            self._epoll.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            os.close(self.ended)

    def _remove(self, stream: Stream) -> None:
        del self._streams[stream.source]
        if stream.source in self._paused:
            self._paused.remove(stream.source)
        else:
            self._epoll.unregister(stream.source)
        stream.close()

    def _run(self) -> None:
        while not (self._closing and self._consoles.is_done):
            for descriptor, _ in self._epoll.poll():
                if descriptor == self._wake_read:
                    os.read(self._wake_read, 4096)
                    while self._errands:
                        self._errands.popleft()()
                elif stream := self._streams.get(descriptor):
                    self._pump(stream)
                else:
                    self._consoles.may_be_written(descriptor)
            self._read_on()
        os.close(self._end)

    def _pump(self, stream: Stream) -> None:
        if not stream.pump():
            self._remove(stream)
        elif stream.must_wait():
            self._epoll.unregister(stream.source)
            self._paused.add(stream.source)

    def _read_on(self) -> None:
        for source in [it for it in self._paused if not self._streams[it].must_wait()]:
            self._paused.remove(source)
            self._epoll.register(source, select.EPOLLIN)


def _text(line: bytes) -> str:
    return line.rstrip(b"\r\n")[:TAIL_LINE_BYTES].decode(errors="replace")
