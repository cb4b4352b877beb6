"""The reader of event files, whatever they hold.

A run may go on, its launcher may have been killed in the middle of a line, its disk may have been
full, its folder copied from another host or written by another version. A line that is no event is
passed over and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.events.pure.schema import (
    LAUNCHER_FILE,
    PATTERN,
    SCHEMA_VERSION,
    Event,
    LauncherStarted,
    PagesRead,
    event_of,
    kind_of,
)

if TYPE_CHECKING:
    from holdfast.events.pure.schema import Body

_CHUNK_BYTES = 1 << 20
_LINE_BYTES_MAX = 16 << 20


class NewerEventsError(OSError):
    """A file of a version of which this one knows too little."""


def parse(line: bytes | str) -> dict[str, Any] | None:
    """The JSON object of a line; None: it is none."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def events_in(path: Path, only: type[Body] | None = None) -> Iterator[Event]:
    """The events of a file; ``only``: of this kind, for which other lines are not decoded.

    Raises:
        OSError: It cannot be read.
    """
    mark = b"" if only is None else f'"{kind_of(only)}"'.encode()
    with path.open("rb") as file:
        for line in file:
            event = event_of(parse(line)) if mark in line else None
            if event is not None and (only is None or isinstance(event.body, only)):
                yield event


def read_file(path: Path) -> tuple[list[Event], int, int]:
    """Events of one file; how many there are; how many lines are none.

    The last line may still be being written. Of the looks at ranks' pages in a cycle, the last is
    kept, and the last at a verdict: looks are most of what there is to keep, of a long job
    gigabytes, so the others are not even decoded.
    """
    events: list[Event] = []
    look, looks = kind_of(PagesRead), dict[tuple[str, bool], dict[str, Any]]()
    n = bad = 0
    try:
        with path.open("rb") as file:
            for line in file:
                fields = parse(line)
                if fields is not None and fields.get("kind") == look:
                    n += 1
                    looks[repr(fields.get("cycle")), fields.get("verdict") is True] = fields
                elif (event := event_of(fields)) is not None:
                    n += 1
                    events.append(event)
                else:
                    bad += line.endswith(b"\n")
    except OSError:
        bad += 1
    last = [event_of(fields) for fields in looks.values()]
    found = [*events, *(event for event in last if event is not None)]
    no_looks = last.count(None)
    return found, n - no_looks, bad + no_looks


def read_folder(folder: Path) -> tuple[list[Event], int, int]:
    """The same of all files of a run folder, in order of time.

    Raises:
        FileNotFoundError: No launcher has written events there.
        NewerEventsError: A newer version has written them.
    """
    try:
        (folder / LAUNCHER_FILE).open("rb").close()
    except FileNotFoundError:
        text = f"{folder} has no {LAUNCHER_FILE}: it is not the folder of a run"
        raise FileNotFoundError(text) from None
    refuse_newer(folder)
    events: list[Event] = []
    n = bad = 0
    for path in sorted(folder.glob(PATTERN)):
        found, n_found, n_bad = read_file(path)
        events, n, bad = events + found, n + n_found, bad + n_bad
    return sorted(events, key=lambda event: event.t), n, bad


def refuse_newer(folder: Path) -> None:
    """Of files that a version has written of which this one knows too little.

    Raises:
        NewerEventsError: They are.
    """
    first = first_event(folder)
    start = first.body if first is not None else None
    if isinstance(start, LauncherStarted) and start.schema_version > SCHEMA_VERSION:
        raise NewerEventsError(
            f"{folder} was written by a newer holdfast: its events have version "
            f"{start.schema_version}, and this one reads up to {SCHEMA_VERSION}"
        )


def first_event(folder: Path) -> Event | None:
    """Of a launcher; None: there is none that can be read."""
    with suppress(OSError), (folder / LAUNCHER_FILE).open("rb") as file:
        return event_of(parse(file.readline()))
    return None


def looks_in(folder: Path) -> Iterator[Event]:
    """All looks at ranks' pages in a run folder, as they are read."""
    for path in sorted(folder.glob(PATTERN)):
        with suppress(OSError):
            yield from events_in(path, PagesRead)


class Follower:
    """The events of one run folder while they are written: each once, in the order of each file.

    Args:
        run_dir: The folder; files may appear in it later.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._read: dict[Path, tuple[int, bytes]] = {}

    def fresh(self) -> Iterator[Event]:
        """What has been written since the last call; a line that has not ended yet comes later."""
        return (event for fields in self.fresh_fields() if (event := event_of(fields)) is not None)

    def fresh_fields(self) -> Iterator[dict[str, Any]]:
        """The same as JSON objects, of which some may be no events."""
        for path in sorted(self._run_dir.glob(PATTERN)):
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
