"""The writer of events: files of one launcher, which may be on a slow disk.

Each line is one ``write``, so that a crash cuts the last one at most. A line for which the queue
has no room is dropped. A file that has grown to its bound is continued in a next one
(``pure/event_files.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.file_writer import FileWriter, open_to_append
from holdfast.events.pure.event_files import PART_BYTES_MAX, part_name
from holdfast.events.pure.schema import Event, OtherKind, fields_of, kind_of

if TYPE_CHECKING:
    from holdfast.events.pure.schema import Body


class EventLog:
    """Writes the events of a launcher. Never blocks, never raises after construction.

    Attributes:
        on_event: Called with each event, too; None: events are only written.
    """

    on_event: Callable[[Event], None] | None = None

    def __init__(self, path: Path, node: str, part_bytes_max: int = PART_BYTES_MAX) -> None:
        """Append to ``path``; from ``part_bytes_max`` bytes on, to the next part.

        Raises:
            OSError: It cannot be opened.
        """
        self._path = path
        self._part, self._part_bytes_max = 1, part_bytes_max
        self._descriptor = open_to_append(str(path))
        self._n_bytes = 0
        self._writer = FileWriter(str(path), name="holdfast-events", patience_s=0.0)
        self._node = node

    def write(self, body: Body, cycle: int) -> None:
        """Write an event, stamped now."""
        event = Event(clock.monotonic(), cycle, body, clock.wall(), self._node, kind_of(type(body)))
        if self.on_event is not None:
            self.on_event(event)
        line = _line(event)
        self._writer.call(lambda: self._append(line), len(line))

    def write_late(self, kind: type[Body], make: Callable[[], Body], cycle: int) -> None:
        """The same of a record that ``make`` makes in the thread that writes.

        ``on_event`` does not get it. Where ``make`` raises, it is left out.
        """
        head = Event(clock.monotonic(), cycle, OtherKind(), clock.wall(), self._node, kind_of(kind))

        def make_and_append() -> None:
            with contextlib.suppress(Exception):  # the thread has other events to write
                self._append(_line(head.but(body=make())))

        self._writer.call(make_and_append)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write the events that wait; gives up after ``timeout_s`` seconds."""
        self._writer.call(lambda: os.close(self._descriptor))
        self._writer.close(timeout_s)

    def _append(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # disk full: the job matters more
            if self._n_bytes >= self._part_bytes_max:
                self._continue_in_next_part()
            self._n_bytes += os.write(self._descriptor, line)

    def _continue_in_next_part(self) -> None:
        """Where it cannot be opened, this part grows further."""
        path = self._path.with_name(part_name(self._path.name, self._part + 1))
        with contextlib.suppress(OSError):
            full, self._descriptor = self._descriptor, open_to_append(str(path))
            self._part, self._n_bytes = self._part + 1, 0
            os.close(full)


def _line(event: Event) -> bytes:
    return json.dumps(fields_of(event), separators=(",", ":")).encode() + b"\n"
