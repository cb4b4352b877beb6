"""The events of a run while they are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.events.pure import schema
from holdfast.events.run.event_lines import files_of_events, parse

_CHUNK_BYTES = 1 << 20
_LINE_BYTES_MAX = 16 << 20


class Follower:
    """The events of one run folder: each once, in the order of each file.

    Args:
        run_dir: The folder; files may appear in it later.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._read: dict[Path, tuple[int, bytes]] = {}

    def fresh(self) -> Iterator[schema.Event]:
        """Events written since the last call; a line that has not ended yet comes later."""
        return (
            event
            for fields in self.fresh_fields()
            if (event := schema.event_of(fields)) is not None
        )

    def fresh_fields(self) -> Iterator[dict[str, Any]]:
        """The same as JSON objects, of which some may be no events."""
        for path in files_of_events(self._run_dir):
            at, rest = self._read.get(path, (0, b""))
            try:
                with path.open("rb") as file:
                    file.seek(at)
                    while data := file.read(_CHUNK_BYTES):
                        at += len(data)
                        *lines, rest = (rest + data).split(b"\n")
                        rest = rest if len(rest) <= _LINE_BYTES_MAX else b""  # no event is so long
                        self._read[path] = at, rest
                        yield from filter(None, map(parse, lines))
            except OSError:
                continue
