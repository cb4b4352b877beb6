"""The reader of event files, also of runs that go on, were killed, or filled their disk.

A line that is no event is passed over and counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.events.pure import schema
from holdfast.events.run.event_lines import files_of_events, first_event, parse
from holdfast.tools.run.step_rates import StepCounts


class NewerEventsError(OSError):
    """The events have a newer version than this holdfast reads."""


def events_in(path: Path, *only: type[schema.Body]) -> Iterator[schema.Event]:
    """The events of a file; ``only``: of these kinds, for which other lines are not decoded.

    Raises:
        OSError: It cannot be read.
    """
    marks = [f'"{schema.kind_of(kind)}"'.encode() for kind in only] or [b""]
    with path.open("rb") as file:
        for line in file:
            is_one = any(mark in line for mark in marks)
            event = schema.event_of(parse(line)) if is_one else None
            if event is not None and (not only or isinstance(event.body, only)):
                yield event


def read_file(path: Path, counts: StepCounts | None = None) -> tuple[list[schema.Event], int, int]:
    """Events of one file; how many there are; how many lines are none.

    Of the looks at ranks' pages in a cycle, only the last and the last at a verdict are kept: in a
    long job, looks are gigabytes, so the others are not even decoded. ``counts`` takes the steps of
    all.
    """
    events: list[schema.Event] = []
    look, looks = schema.kind_of(schema.PagesRead), dict[tuple[str, bool], dict[str, Any]]()
    n = bad = 0
    try:
        with path.open("rb") as file:
            for line in file:
                fields = parse(line)
                if fields is not None and fields.get("kind") == look:
                    n += 1
                    if counts is not None:
                        counts.take(fields)
                    looks[repr(fields.get("cycle")), fields.get("verdict") is True] = fields
                elif (event := schema.event_of(fields)) is not None:
                    n += 1
                    events.append(event)
                else:
                    bad += line.endswith(b"\n")  # else it is still being written
    except OSError:
        bad += 1
    last = [schema.event_of(fields) for fields in looks.values()]
    found = [*events, *(event for event in last if event is not None)]
    no_looks = last.count(None)
    return found, n - no_looks, bad + no_looks


def read_folder(
    folder: Path, counts: StepCounts | None = None
) -> tuple[list[schema.Event], int, int]:
    """The same of all files of a run folder, in order of time.

    Raises:
        FileNotFoundError: No launcher has written events there.
        NewerEventsError: A newer version has written them.
    """
    try:
        (folder / schema.LAUNCHER_FILE).open("rb").close()
    except FileNotFoundError:
        text = f"{folder} has no {schema.LAUNCHER_FILE}: it is not the folder of a run"
        raise FileNotFoundError(text) from None
    refuse_newer(folder)
    events: list[schema.Event] = []
    n = bad = 0
    for path in files_of_events(folder):
        found, n_found, n_bad = read_file(path, counts)
        events, n, bad = events + found, n + n_found, bad + n_bad
    return sorted(events, key=lambda event: event.t), n, bad


def refuse_newer(folder: Path) -> None:
    """Check the version of the files of a run folder.

    Raises:
        NewerEventsError: It is newer than this one reads.
    """
    first = first_event(folder)
    start = first.body if first is not None else None
    if isinstance(start, schema.LauncherStarted) and start.schema_version > schema.SCHEMA_VERSION:
        raise NewerEventsError(
            f"{folder} was written by a newer holdfast: its events have version "
            f"{start.schema_version}, and this one reads up to {schema.SCHEMA_VERSION}"
        )
