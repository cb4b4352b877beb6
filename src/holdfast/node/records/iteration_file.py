"""The iteration of a job's latest checkpoint, from the file where the training writes it.

Checkpoints are on shared storage, which may take its time: nothing here is read in the thread that
the launcher waits in.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.net.loop import Loop

LOGGER = logging.getLogger("holdfast")


class IterationFile:
    """A file that holds one whole number. Says once if it does not."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._has_warned = False

    def read(self, *, quiet: bool = False) -> int | None:
        """The number; None: there is none.

        Args:
            quiet: That there is none is no surprise: nothing has been trained yet.
        """
        try:
            return int(self._path.read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            if not quiet and not self._has_warned:
                self._has_warned = True
                LOGGER.warning(
                    "no iteration can be read from %s (%s): whether the job makes progress is not "
                    "known, and does not count",
                    self._path,
                    error.strerror if isinstance(error, OSError) else "it is not a whole number",
                )
            return None


class IterationReader:
    """Reads it beside the loop's thread, when asked.

    Args:
        path: Of the file.
        loop: Woken when it has been read.
        on_read: Called by the loop with what was read.
    """

    def __init__(self, path: str, loop: Loop, on_read: Callable[[int | None], None]) -> None:
        self._file = IterationFile(path)
        self._on_read = on_read
        self._found: list[int | None] = []
        self._is_asked = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        loop.watch(self._wake_read, self._deliver)

    def ask(self, *, quiet: bool = False) -> None:
        """Read it once, soon; see :meth:`IterationFile.read`."""
        if self._is_asked:
            return  # stuck, or about to answer: one of them is enough
        self._is_asked = True
        threading.Thread(
            target=self._read, args=(quiet,), name="holdfast-iteration", daemon=True
        ).start()

    def _read(self, quiet: bool) -> None:  # noqa: FBT001 - Thread passes by position
        self._found.append(self._file.read(quiet=quiet))
        with contextlib.suppress(BlockingIOError):  # it has wake-ups enough
            os.write(self._wake_write, b"\0")

    def _deliver(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        while self._found:
            self._is_asked = False
            self._on_read(self._found.pop(0))
