"""Find runs: those in the temp folder, those of launchers that run now, and those in given folders.

A run is named by its folder, by its run id or a part of the folder's name, or by ``latest``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from holdfast.base import clock
from holdfast.base.pure.wording import count, duration
from holdfast.events.pure.schema import LAUNCHER_FILE, CycleJoined, LauncherStarted
from holdfast.events.run.event_lines import files_of_events, first_event
from holdfast.events.run.run_links import LATEST, is_own_link, latest_link, living_run_dirs
from holdfast.tools.run.one_job import Starts, of_one_job, starts_in
from holdfast.tools.run.reader import events_in, refuse_newer


class NoSuchRunError(Exception):
    """No folder of a run has this name; the text says which places were searched."""


def is_run(folder: Path) -> bool:
    """Whether a launcher has written events there; False for a folder that may not be read."""
    try:
        return (folder / LAUNCHER_FILE).is_file()
    except OSError:
        return False


def find_runs(folders: Iterable[Path] = ()) -> list[Path]:
    """Run folders of this user, the oldest first.

    Args:
        folders: Log folders (``--log-dir``) to look into, besides the temp folder and the folders
            of launchers that run now.
    """
    found = {Path(folder) for folder in living_run_dirs()}
    for place in (Path(tempfile.gettempdir()), *folders):
        found |= {place} if is_run(place) else runs_in(place)
    return by_age({folder.resolve() for folder in found if _is_own(folder)})


def runs_in(place: Path) -> set[Path]:
    """Run folders of all users right in this one; none where it cannot be read."""
    try:
        folders = [Path(entry.path) for entry in os.scandir(place) if not entry.is_symlink()]
    except OSError:
        return set()
    return {folder for folder in folders if is_run(folder)}


def by_age(folders: Iterable[Path]) -> list[Path]:
    """The oldest first."""
    return [folder for _, folder in sorted((began(folder), folder) for folder in folders)]


def _is_own(folder: Path) -> bool:
    return _owner(folder) == os.getuid()


def _owner(folder: Path) -> int | None:
    try:
        return folder.stat().st_uid
    except OSError:
        return None


def began(folder: Path) -> float:
    """When its events file was made: its name may be older than a copy."""
    first = first_event(folder)
    return (first.wall if first is not None else None) or 0.0


def resolve(words: Sequence[str]) -> list[Path]:
    """The run folders that these words name; several are the nodes of one job.

    Raises:
        NoSuchRunError: There is none.
        OSError: It may not be read, or a newer version has written it.
    """
    found: list[Path] = []
    for word in words or (LATEST,):
        found += [folder for folder in _resolve(word) if folder not in found]
    for folder in found:
        (folder / LAUNCHER_FILE).open("rb").close()
        refuse_newer(folder)
    return found


def _resolve(word: str) -> list[Path]:
    path = Path(word)
    if is_run(path):
        return [path.resolve()]
    if path.is_dir():
        if is_run(path / LATEST):
            return of_same_job((path / LATEST).resolve())
        if runs := by_age(runs_in(path)):
            return of_same_job(runs[-1].resolve())
        os.scandir(path).close()  # raises where it may not be read
        raise NoSuchRunError(f"{word} is neither the folder of a run nor a log folder with runs")
    if word == LATEST:
        if runs := _with_latest(find_runs()):
            return of_same_job(runs[-1])
        raise NoSuchRunError(
            "no run is known here: a job that ended well without --log-dir leaves none. Name the "
            "folder, or the log folder that --log-dir named"
        )
    place = path.parent if os.sep in word else None
    runs = find_runs() if place is None else by_age(runs_in(place))
    named = [folder.resolve() for folder in runs if path.name in folder.name]
    if named:
        return named[-1:]
    raise NoSuchRunError(
        f"no run is called {word!r}: there is no such folder, nor one with that in its name in "
        f"{place or tempfile.gettempdir()} (holdfast runs lists them)"
    )


def _with_latest(runs: list[Path]) -> list[Path]:
    """With the newest run of this user, which may be in a log folder, and over."""
    link = latest_link(None)
    if is_own_link(link) and is_run(Path(link)) and _is_own(Path(link)):
        return by_age({*runs, Path(link).resolve()})
    return runs


def taken(words: Sequence[str], folders: Sequence[Path]) -> str:
    """Script, run id, age and folder of the run that words name; empty where they name the folder.

    Args:
        words: Of a command line.
        folders: What :func:`resolve` has found for them.
    """
    if words and all(is_run(Path(word)) and not Path(word).is_symlink() for word in words):
        return ""
    first = first_event(folders[0])
    if first is None or not isinstance(start := first.body, LauncherStarted):
        return str(folders[0])
    age = "" if first.wall is None else f", began {duration(clock.wall() - first.wall)} ago"
    others = f" and {count(len(folders) - 1, 'other node')}" if len(folders) > 1 else ""
    return f"run {start.run_id} of {start.name}{age}: {folders[0]}{others}"


def script_of(folder: Path) -> str:
    """The name of a run's script; empty: it cannot be read."""
    first = first_event(folder)
    return first.body.name if first and isinstance(first.body, LauncherStarted) else ""


def of_same_job(folder: Path) -> list[Path]:
    """With the folders of the job's other nodes of the same user, where all are in one folder.

    A job that was queued again has the run id of the one before, but no cycle in common with it.
    Where there is one of before, nodes that had no ranks yet are left out.
    """
    run_id = _run_id_of(folder)
    others = {each for each in runs_in(folder.parent) - {folder} if _owner(each) == _owner(folder)}
    same = sorted(each for each in others if run_id is not None and _run_id_of(each) == run_id)
    starts = {each: _starts_of(each) for each in (folder, *same)}
    if not starts[folder]:
        return [folder, *same]
    found = of_one_job(folder, starts)
    has_others = any(starts[each] and each not in found for each in same)
    return found if has_others else [folder, *same]


def _run_id_of(folder: Path) -> str | None:
    first = first_event(folder)
    return first.body.run_id if first and isinstance(first.body, LauncherStarted) else None


def _starts_of(folder: Path) -> Starts:
    try:
        return starts_in(
            event for path in files_of_events(folder) for event in events_in(path, CycleJoined)
        )
    except OSError:
        return {}
