"""The iteration of a job's latest checkpoint, from the file where the training writes it.

Checkpoints are on shared storage, which may take its time: nothing here is read in the thread that
the launcher waits in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from holdfast.base.bounded import CallInThread
from holdfast.net.loop import Loop
from holdfast.node.console import LOGGER


class IterationFile:
    """A file that holds one whole number. Says once if it does not."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._has_warned = False

    def read(self, *, quiet: bool = False) -> int | None:
        """The number; None: there is none, of which ``quiet`` logs nothing."""
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
    """Reads the file in a thread, when asked; the loop calls ``on_read`` with the iteration."""

    def __init__(self, path: str, loop: Loop, on_read: Callable[[int | None], None]) -> None:
        self._file = IterationFile(path)
        self._loop = loop
        self._on_read = on_read
        self._asked: CallInThread[int | None] | None = None

    def ask(self, *, quiet: bool = False) -> None:
        """Read it once, soon; see :meth:`IterationFile.read`."""
        if self._asked is None:  # else stuck, or about to answer: one of them is enough
            read = functools.partial(self._file.read, quiet=quiet)
            wake = functools.partial(self._loop.call_soon, self._deliver)
            self._asked = CallInThread(read, "holdfast-iteration", wake)

    def _deliver(self) -> None:
        assert self._asked is not None
        answered, self._asked = self._asked, None
        self._on_read(answered.result())
