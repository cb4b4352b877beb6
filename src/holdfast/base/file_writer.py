"""Append to files from threads of their own: a full or hung file system holds up nothing else.

What waits to be written is bounded. A file system that is slow but goes on is waited for; one that
has not finished a write for ``PATIENCE_S`` is not: what comes meanwhile is dropped, and one message
says so when that begins and when it ends.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable

from holdfast.base import clock

WAITING_BYTES_MAX = 16 << 20
"""What may wait, in memory."""
_QUEUE_LINES_MAX = 10_000
PATIENCE_S = 5.0
"""A write that takes longer is taken for one of a file system that hangs."""
Tell = Callable[[str], None]
"""Called, in any thread, with what a person should know."""


class FileWriter:
    """The thread, and what waits for it.

    Args:
        where: The folder that it writes to, for messages.
        tell: Told when that folder stops taking output, and when it takes it again.
    """

    def __init__(self, where: str, tell: Tell) -> None:
        self._where = where
        self._tell = tell
        self._changed = threading.Condition()
        self._errands: deque[tuple[int, Callable[[], None]]] = deque()
        self._waiting_bytes = 0
        self._went_on_at = clock.monotonic()
        self._dropped_bytes = 0
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="holdfast-files", daemon=True)
        self._thread.start()

    def call(self, errand: Callable[[], None], n_bytes: int = 0) -> None:
        """Call ``errand``, which writes ``n_bytes``, after what was asked for before.

        Waits while too much else waits, as long as the file system goes on.
        """
        with self._changed:
            if n_bytes and not self._wait_for_room(n_bytes):
                if not self._dropped_bytes:
                    self._tell(
                        f"{self._where} takes no output (a write does not end): what the ranks "
                        "print is not kept there until it does"
                    )
                self._dropped_bytes += n_bytes
                return
            if not self._errands:
                self._went_on_at = clock.monotonic()
            self._errands.append((n_bytes, errand))
            self._waiting_bytes += n_bytes
            self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Write what waits, for ``timeout_s`` seconds at most; False: not all of it."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _wait_for_room(self, n_bytes: int) -> bool:
        def has_room() -> bool:
            return not self._errands or self._waiting_bytes + n_bytes <= WAITING_BYTES_MAX

        while not has_room():
            left_s = self._went_on_at + PATIENCE_S - clock.monotonic()
            if left_s <= 0:
                return False
            self._changed.wait(left_s)
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._errands or self._is_closing)
                if not self._errands:
                    return
                n_bytes, errand = self._errands[0]  # it stays there until it is done
            errand()
            with self._changed:
                self._errands.popleft()
                self._waiting_bytes -= n_bytes
                self._went_on_at = clock.monotonic()
                dropped, self._dropped_bytes = self._dropped_bytes, 0
                self._changed.notify_all()
            if dropped and not self._is_closing:
                self._tell(f"{self._where} takes output again; {dropped} bytes were not kept")


class LogFile:
    """One file that a :class:`FileWriter` appends to. Its folder is made; never raises."""

    def __init__(self, path: str, writer: FileWriter, tell: Tell) -> None:
        self._path = path
        self._writer = writer
        self._tell = tell
        self._descriptor = -1
        self._has_failed = False
        writer.call(lambda: self._write(b""))

    def write(self, data: bytes) -> None:
        """Append, soon."""
        self._writer.call(lambda: self._write(data), len(data))

    def close(self) -> None:
        """Nothing more comes."""
        self._writer.call(self._close)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            if self._descriptor < 0:
                self._descriptor = open_log(self._path)
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:  # it may have room again later
            if not self._has_failed:
                self._tell(
                    f"{self._path} cannot be written ({error.strerror}): what does not fit is lost"
                )
            self._has_failed = True
        else:
            self._has_failed = self._has_failed and not data

    def _close(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def open_log(path: str) -> int:
    """Open a file for appending, and make its folder where that is missing.

    Raises:
        OSError: It cannot be opened.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o644)


class LineLog:
    """One file that many write lines to: several ranks of a node, and several nodes at once.

    Written to in whole lines, so that lines of others never stand within one of ours (on a local
    file system, and on network file systems as far as they append atomically). Opened with the
    first line; a file that cannot be written is told of once, and given up. Not for two threads at
    once.

    Args:
        path: Missing folders are made.
        tell: Called with what went wrong.
        writer: Writes it; None: the caller does, who is blocked as long as the file system blocks.
    """

    def __init__(self, path: str, tell: Tell, writer: FileWriter | None = None) -> None:
        self._path = path
        self._tell = tell
        self._writer = writer
        self._descriptor: int | None = None
        self._is_given_up = False

    def write(self, prefix: bytes, lines: Iterable[bytes]) -> None:
        """Append lines, each with ``prefix`` before it, whatever they end with."""
        data = b"".join(prefix + line.rstrip(b"\r\n") + b"\n" for line in lines)
        if self._writer is None:
            self._append(data)
        else:
            self._writer.call(lambda: self._append(data), len(data))

    def _append(self, data: bytes) -> None:
        if self._is_given_up:
            return
        try:
            if self._descriptor is None:
                self._descriptor = open_log(self._path)
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            self._close()
            self._is_given_up = True
            self._tell(
                f"{self._path} cannot be written ({error.strerror}): the output of the ranks of "
                "this node is no longer kept there; where else it goes, it still does"
            )

    def close(self) -> None:
        """Close the file; the next line would open it again."""
        if self._writer is None:
            self._close()
        else:
            self._writer.call(self._close)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def cycle_path(base: str, cycle: int) -> str:
    """``/logs/run.log`` -> ``/logs/run_cycle3.log``; without an extension it gets ``.log``."""
    stem, extension = os.path.splitext(base)
    return f"{stem}_cycle{cycle}{extension or '.log'}"


class BackgroundFile:
    """An append-only file. Each line is one ``write``, so that a crash cuts the last one at most.

    A line that finds ``_QUEUE_LINES_MAX`` others waiting is dropped and counted in ``dropped``.
    """

    def __init__(self, path: str) -> None:
        """Open ``path`` for appending, creating it.

        Raises:
            OSError: It cannot be opened.
        """
        self.dropped = 0
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        self._lines: queue.Queue[bytes | None] = queue.Queue(_QUEUE_LINES_MAX)
        self._thread = threading.Thread(target=self._run, name="holdfast-events", daemon=True)
        self._thread.start()

    def append(self, line: bytes) -> None:
        """Write ``line`` and a newline, soon."""
        try:
            self._lines.put_nowait(line + b"\n")
        except queue.Full:
            self.dropped += 1

    def close(self, timeout_s: float) -> None:
        """Write what is waiting; gives up after ``timeout_s``."""
        try:
            self._lines.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                os.write(self._descriptor, line)
            except OSError:  # disk full: the job matters more
                self.dropped += 1
        os.close(self._descriptor)
