"""The files of events of a run folder: in their order, line by line, and the first event."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.events.pure import event_files, schema


def files_of_events(folder: Path) -> list[Path]:
    """Those of a run folder; parts of one file in the order in which they were written."""
    paths = folder.glob(schema.PATTERN)
    return sorted(paths, key=lambda path: event_files.order(path.name))


def parse(line: bytes | str) -> dict[str, Any] | None:
    """The JSON object of a line; None: it is none."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def first_event(folder: Path) -> schema.Event | None:
    """Of a launcher; None: there is none that can be read."""
    with suppress(OSError), (folder / schema.LAUNCHER_FILE).open("rb") as file:
        return schema.event_of(parse(file.readline()))
    return None
