"""Run folders that may be removed: of this user, with a launcher's name, and of runs that are over.

A folder that was renamed or copied has another name, and stays. So does one of a launcher on
another host that may still be alive: it has written no end, and its last event is young.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from holdfast.base import clock
from holdfast.base.processes.job_name import is_living
from holdfast.events.pure import event_files, schema
from holdfast.events.run.event_lines import files_of_events, first_event, parse

_NAME = re.compile(r"(.*_)?\d{8}T\d{6}\.\d{3}Z_(.*_)?[a-z0-9_]{8}")
"""Of a folder that a launcher has made (``node/records/run_dirs.py``)."""
_SILENT_S = 86400.0
_SILENT_SHARE = 0.05
"""A launcher writes an event at the latest when its run has become 1 % older."""
_LAST_BYTES = 1 << 16
_OVER = {schema.kind_of(kind) for kind in (schema.JobSucceeded, schema.JobFailed)}


class FoundRun(NamedTuple):
    """The folder of a run, by its first event and the times of its files.

    Attributes:
        began: Seconds since 1970.
        last_at: The same, when an event was last written.
        is_over: Its launcher is dead for certain, or has said its end, or is silent for too long.
    """

    folder: Path
    node: str
    run_id: str
    name: str
    began: float
    last_at: float
    is_over: bool


def has_given_name(name: str) -> bool:
    """A launcher has named this folder."""
    return _NAME.fullmatch(name) is not None


def found_run(folder: Path) -> FoundRun | None:
    """None: a launcher has not made this folder, or it is another user's, or cannot be read."""
    if not has_given_name(folder.name):
        return None
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return None
        first = first_event(folder)
        if first is None or not isinstance(start := first.body, schema.LauncherStarted):
            return None
        files = files_of_events(folder)
        last_at = max(file.stat().st_mtime for file in files)
        began = last_at if first.wall is None else first.wall
        is_alive = is_living(start.job)
        silent_s = clock.wall() - last_at
        is_over = (
            not is_alive
            if is_alive is not None
            else _has_end(folder) or silent_s > max(_SILENT_S, _SILENT_SHARE * (last_at - began))
        )
    except (OSError, ValueError):  # it is being removed
        return None
    return FoundRun(folder, first.node, start.run_id, start.name, began, last_at, is_over)


def _has_end(folder: Path) -> bool:
    """The last event of the launcher says that its part of the job is over."""
    launchers = [
        path
        for path in files_of_events(folder)
        if event_files.order(path.name)[0] == schema.LAUNCHER_FILE
    ]
    with launchers[-1].open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = file.read().splitlines()
    return any((parse(line) or {}).get("kind") in _OVER for line in lines)


def remove(folder: Path) -> None:
    """Remove a run folder; the file that makes it one goes last, so that a next try finds it.

    Raises:
        OSError: Not all of it can be removed.
    """
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.name != schema.LAUNCHER_FILE:
            Path(entry.path).unlink()
    (folder / schema.LAUNCHER_FILE).unlink()
    folder.rmdir()


def beyond(runs: Iterable[FoundRun], keep: int, node: str) -> list[FoundRun]:
    """Those of this node that are over, but for its ``keep`` newest runs."""
    own = sorted((run for run in runs if run.node == node), key=attrgetter("began"))
    return [run for run in own[: max(0, len(own) - keep)] if run.is_over]


def keep_newest(own: Path, keep: int, node: str) -> None:
    """Remove old runs of this node beside the run folder ``own``, which is one of those kept.

    Folders that refuse removal stay.
    """
    with suppress(OSError):
        folders = [Path(entry.path) for entry in os.scandir(own.parent) if entry.name != own.name]
        found = (found_run(folder) for folder in folders)
        for run in beyond((run for run in found if run is not None), keep - 1, node):
            with suppress(OSError):
                remove(run.folder)
