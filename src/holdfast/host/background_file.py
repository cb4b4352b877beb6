"""Append lines to a file from a thread of its own, so that a slow disk delays nobody."""

from __future__ import annotations

import os
import queue
import threading

_QUEUE_LINES_MAX = 10_000


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
