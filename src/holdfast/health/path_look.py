"""Touch paths that may hang, side by side, each in a process of its own.

As long as a process that hangs in a dead file system exists, its path is not touched again. So hung
file systems cost one process per path, and no waiting.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.base import clock, wait_for
from holdfast.base.processes import file_read
from holdfast.base.processes.file_read import FileRead


@dataclass(frozen=True)
class Touch:
    """A path to be touched.

    Attributes:
        path: Absolute.
        bound_s: How long that may take.
        reads: Read this file; otherwise its status and, of a folder, its first entry.
    """

    path: str
    bound_s: float
    reads: bool = False


@dataclass(frozen=True)
class Answer:
    """The outcome of a touch.

    Attributes:
        is_late: It did not come back in time.
        error: ``errno`` of what went wrong; None: no error, or it is not known.
        text: The text that was read, or the error.
        is_unknown: The path was not touched: no process could be started for it.
    """

    is_late: bool = False
    error: int | None = None
    text: str = ""
    is_unknown: bool = False


class PathLook:
    """Touches paths. Not for two threads at once."""

    def __init__(self) -> None:
        self._hung: dict[Touch, int] = {}
        """Processes that did not come back."""

    def touch(self, touches: Iterable[Touch]) -> dict[Touch, Answer]:
        """All of them at once; returns when all have answered or are late."""
        answers: dict[Touch, Answer] = {}
        reads: dict[Touch, FileRead] = {}
        hung = file_read.readers()
        for touch in touches:
            pid = self._hung.get(touch)
            if pid in hung:
                text = f"a look before this one still hangs (process {pid})"
                answers[touch] = Answer(is_late=True, text=text)
            else:
                reads[touch] = FileRead(
                    [touch.path],
                    bound_s=touch.bound_s,
                    touches=not touch.reads,
                    awaits_late=False,  # many may hang at once
                )
        while due := [at for read in reads.values() if (at := read.next_deadline()) is not None]:
            open_reads = [read for read in reads.values() if not read.is_done]
            descriptors = [read.fileno() for read in open_reads]
            wait_for.any_readable(descriptors, min(due) - clock.monotonic())
            for read in open_reads:
                read.step()
        self._hung.update({touch: read.pid for touch, read in reads.items() if read.late})
        return answers | {touch: _answer(touch, read) for touch, read in reads.items()}


def _answer(touch: Touch, read: FileRead) -> Answer:
    path = touch.path
    if error := read.errors.get(path):
        return Answer(error=error, text=os.strerror(error))
    if (text := read.found.get(path)) is not None:
        return Answer(text=text.decode(errors="replace"))
    if path in read.late:
        return Answer(is_late=True, text=f"no answer within {touch.bound_s:g} s")
    return Answer(text=read.problem, is_unknown=True)
