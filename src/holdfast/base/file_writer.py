"""Write files from threads of their own: a full or hung file system holds up nothing else.

A file system that is slow but goes on is waited for; one that has not finished a write for
``PATIENCE_S`` is not: output meanwhile is dropped, and a message says when that begins and ends.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable

from holdfast.base import clock
from holdfast.base.bounded import start_thread

WAITING_BYTES_MAX = 16 << 20
"""Room for output that waits, in memory."""
PATIENCE_S = 5.0
"""A write that takes longer is taken for one of a file system that hangs."""
Report = Callable[[str], None]
"""Called, in any thread, with a line for people."""


class FileWriter:
    """A thread that makes calls which write files, in their order; and the queue of these calls.

    Args:
        where: The folder that it writes to, for messages.
        report: Called when that folder stops taking output, and when it takes it again.
        name: Of the thread.
        patience_s: How long a full queue is waited for while a write does not end.
    """

    def __init__(
        self,
        where: str,
        report: Report = lambda _: None,
        *,
        name: str = "holdfast-files",
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._where = where
        self._report = report
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._errands: deque[tuple[int, Callable[[], None]]] = deque()
        self._waiting_bytes = 0
        self._went_on_at = clock.monotonic()
        self._dropped_bytes = 0
        self._is_closing = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        start_thread(self._thread)

    def call(self, errand: Callable[[], None], n_bytes: int = 0) -> bool:
        """Call ``errand``, which writes ``n_bytes``, after those before it; False: it is dropped.

        Waits while the queue is full, as long as the file system goes on. It is never full for an
        errand of 0 bytes. Once all is written and closed, nothing is called any more.
        """
        with self._changed:
            if self._is_closed:
                return False
            if n_bytes and not self._wait_for_room(n_bytes):
                if not self._dropped_bytes:
                    self._report(
                        f"{self._where} takes no output (a write does not end): what the ranks "
                        "print is not kept there until it does"
                    )
                self._dropped_bytes += n_bytes
                return False
            if not self._errands:
                self._went_on_at = clock.monotonic()
            self._errands.append((n_bytes, errand))
            self._waiting_bytes += n_bytes
            self._changed.notify_all()
            return True

    def close(self, timeout_s: float) -> bool:
        """Write what waits, for ``timeout_s`` seconds at most; False: not all of it."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        # A call that raised has ended the thread: it and those behind it still wait.
        return not self._thread.is_alive() and not self._errands

    def _wait_for_room(self, n_bytes: int) -> bool:
        def has_room() -> bool:
            return not self._errands or self._waiting_bytes + n_bytes <= WAITING_BYTES_MAX

        while not has_room():
            left_s = self._went_on_at + self._patience_s - clock.monotonic()
            if left_s <= 0:
                return False
            self._changed.wait(left_s)
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._errands or self._is_closing)
                if not self._errands:
                    self._is_closed = True
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
                self._report(f"{self._where} takes output again; {dropped} bytes were not kept")


class _AppendedFile:
    """A file that its first write opens; its folder is made where that is missing. Never raises.

    Args:
        path: Missing folders are made.
        report: Called with an error.
        writer: Writes it; None: the caller does, and is blocked as long as the file system blocks.
    """

    def __init__(self, path: str, report: Report, writer: FileWriter | None = None) -> None:
        self._path = path
        self._report = report
        self._writer = writer
        self._descriptor = -1

    def _enqueue(self, errand: Callable[[], None], n_bytes: int = 0) -> None:
        if self._writer is None:
            errand()
        else:
            self._writer.call(errand, n_bytes)

    def _write_all(self, data: bytes) -> None:
        """Now, in the writer's thread; raises ``OSError``."""
        if self._descriptor < 0:
            try:
                self._descriptor = open_to_append(self._path)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                self._descriptor = open_to_append(self._path)
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def _close_now(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1

    def close(self) -> None:
        """Close the file; the next write would open it again."""
        self._enqueue(self._close_now)


def open_to_append(path: str) -> int:
    """Descriptor of a file, which is created if it is not there."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


class LogFile(_AppendedFile):
    """The output of one rank. It is there from the beginning, even where nothing is written."""

    def __init__(self, path: str, writer: FileWriter, report: Report) -> None:
        super().__init__(path, report, writer)
        self._has_failed = False
        self._enqueue(lambda: self._append(b""))

    def write(self, data: bytes) -> None:
        """Append, soon."""
        self._enqueue(lambda: self._append(data), len(data))

    def _append(self, data: bytes) -> None:
        try:
            self._write_all(data)
        except OSError as error:  # it may have room again later
            if not self._has_failed:
                self._report(
                    f"{self._path} cannot be written ({error.strerror}): what does not fit is lost"
                )
            self._has_failed = True
        else:
            self._has_failed = self._has_failed and not data


class LineLog(_AppendedFile):
    """One file that many write lines to: several ranks of a node, and several nodes at once.

    Written to in whole lines, so that lines of others never stand within one of them (on a local
    file system, and on network file systems as far as they append atomically). A file that cannot
    be written is reported once, and given up. Not for two threads at once.
    """

    _is_given_up = False

    def write(self, prefix: bytes, lines: Iterable[bytes]) -> None:
        """Append lines, each with ``prefix`` before it, whatever they end with."""
        data = b"".join(prefix + line.rstrip(b"\r\n") + b"\n" for line in lines)
        self._enqueue(lambda: self._append(data), len(data))

    def _append(self, data: bytes) -> None:
        if self._is_given_up:
            return
        try:
            self._write_all(data)
        except OSError as error:
            self._close_now()
            self._is_given_up = True
            self._report(
                f"{self._path} cannot be written ({error.strerror}): the output of the ranks of "
                "this node is no longer kept there; where else it goes, it still does"
            )


def cycle_path(base: str, cycle: int) -> str:
    """``/logs/run.log`` -> ``/logs/run_cycle3.log``; without an extension it gets ``.log``."""
    stem, extension = os.path.splitext(base)
    return f"{stem}_cycle{cycle}{extension or '.log'}"
