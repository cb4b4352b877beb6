"""Events: one JSON object per line, one file per process, in the run directory.

Everything a person sees of a run can be derived from them. Fields of every event:

    t      seconds of CLOCK_MONOTONIC of this host, to subtract
    wall   seconds since 1970, to show
    kind   what happened
    node   host name
    cycle  0, 1, 2 ...

and whatever else the kind says. A reader takes what it can: the last line of a crashed process may
be cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.base import clock
from holdfast.base.file_writer import BackgroundFile

LAUNCHER_FILE = "events-launcher.jsonl"
PATTERN = "events-*.jsonl"


class EventLog:
    """Where one process writes its events. Never blocks, never raises after construction.

    Attributes:
        on_event: Given each event, too; None: nobody else wants them.
    """

    on_event: Callable[[Mapping[str, Any]], None] | None = None

    def __init__(self, path: Path, node: str) -> None:
        """Append to ``path``.

        Raises:
            OSError: It cannot be opened.
        """
        self._file = BackgroundFile(str(path))
        self._node = node

    def write(self, kind: str, cycle: int, **fields: Any) -> None:
        """Write one event, stamped now."""
        event = {
            "t": clock.monotonic(),
            "wall": clock.wall(),
            "kind": kind,
            "node": self._node,
            "cycle": cycle,
            **fields,
        }
        self.append(event)

    def append(self, event: Mapping[str, Any]) -> None:
        """Write an event that another process has stamped."""
        if self.on_event is not None:
            self.on_event(event)
        self._file.append(json.dumps(event, separators=(",", ":")).encode())

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is waiting; gives up after ``timeout_s`` seconds."""
        self._file.close(timeout_s)


def read_events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Events of one file; lines that are none (cut by a crash) are passed over."""
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def read_run(run_dir: Path) -> list[dict[str, Any]]:
    """All events of a run directory, in order of time."""
    events: list[dict[str, Any]] = []
    for path in run_dir.glob(PATTERN):
        with path.open(encoding="utf-8", errors="replace") as file:
            events += read_events(file)
    return sorted(events, key=lambda event: float(event.get("t", 0.0)))
