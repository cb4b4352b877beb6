"""The writer of events: one file per launcher, which may be on a slow disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.file_writer import BackgroundFile
from holdfast.events.pure.schema import Event, fields_of, kind_of

if TYPE_CHECKING:
    from holdfast.events.pure.schema import Body


class EventLog:
    """Writes the events of a launcher. Never blocks, never raises after construction.

    Attributes:
        on_event: Called with each event, too; None: events are only written.
    """

    on_event: Callable[[Event], None] | None = None

    def __init__(self, path: Path, node: str) -> None:
        """Append to ``path``.

        Raises:
            OSError: It cannot be opened.
        """
        self._file = BackgroundFile(str(path))
        self._node = node

    def write(self, body: Body, cycle: int) -> None:
        """Write an event, stamped now."""
        event = Event(clock.monotonic(), cycle, body, clock.wall(), self._node, kind_of(type(body)))
        if self.on_event is not None:
            self.on_event(event)
        self._file.append(json.dumps(fields_of(event), separators=(",", ":")).encode())

    def close(self, timeout_s: float = 2.0) -> None:
        """Write the events that wait; gives up after ``timeout_s`` seconds."""
        self._file.close(timeout_s)
