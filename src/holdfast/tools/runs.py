"""``holdfast runs`` and ``holdfast prune``: list the runs of this user, and remove old ones."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from holdfast.base import clock
from holdfast.base.command_output import in_words
from holdfast.base.pure.printable import one_line, printable
from holdfast.base.pure.wording import count, duration
from holdfast.events.run import run_links
from holdfast.events.run.old_runs import FoundRun, found_run, has_given_name, remove
from holdfast.options.option import UsageError
from holdfast.tools.columns import columns
from holdfast.tools.command_words import run_command, take_flag, take_option, without_options
from holdfast.tools.run.run_files import Run, read_run
from holdfast.tools.run_list import find_runs, of_same_job, script_of

_RUNS = """\
usage: holdfast runs [LOG FOLDER ...] [--all] [--script TEXT]

Lists the newest 20 runs by script, the newest last: of the temp folder, of
launchers that run now, and of these log folders (--log-dir of ft_launcher). A job
that ended well without --log-dir has left nothing. holdfast report, trace, top and
view take the NAME of a run; of a run in a log folder, LOG FOLDER/NAME.

  --all          all runs, not the newest 20
  --script TEXT  only runs of scripts with this in their name
"""
_PRUNE = """\
usage: holdfast prune --older AGE [LOG FOLDER ...] [--dry-run]

Removes the folders of old runs, with all that is in them: of the temp folder and of
these log folders (--log-dir of ft_launcher). Runs that are or may be alive stay, and
so do other users' runs, and folders that have another name than a launcher gave.

  --older AGE  runs whose last event is older: 7d, 12h or 90m (days, hours, minutes)
  --dry-run    only say which would be removed

ft_launcher --ft-keep-runs N does the same by number, at the start of a run.
"""
_NEWEST = 20
_UNITS_S = {"m": 60, "h": 3600, "d": 86400}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([mhd])")
_RANDOM_CHARS = 8
"""The end of a folder's name, which is random."""
_PART_CHARS_MAX = 20
_RUN_ID_CHARS_MAX = 16
_RANDOM_ID = re.compile(r"[0-9a-f]{32}")
"""A run id that the user did not choose."""
_STATE_CHARS_MAX = 22
_MIB = 1 << 20


def main(command: str, words: Sequence[str]) -> int:
    """One of the commands; returns the exit code."""
    usage, act = (_RUNS, _runs) if command == "runs" else (_PRUNE, _prune)
    return run_command(command, words, usage, act)


# ---------------------------------------------------------------- holdfast runs
def _runs(words: list[str]) -> int:
    shows_all, script = take_flag(words, "--all"), take_option(words, "--script")
    folders = find_runs(_log_folders(words))
    if script is not None:
        folders = [folder for folder in folders if script in script_of(folder)]
    shown = folders if shows_all else folders[-_NEWEST:]
    runs, unread = [], []
    for folder in shown:
        try:
            runs.append(read_run([folder]))
        except FileNotFoundError:  # its job has ended well meanwhile, and has removed it
            continue
        except OSError as error:
            unread.append(f"cannot be read: {in_words(error)}\n")
    if not runs and not unread:
        sys.stdout.write(
            "no runs here: name the log folder that --log-dir named, or see holdfast runs --help\n"
        )
        return 0
    sys.stdout.write(runs_table(runs) + printable("".join(unread)))
    if hidden := len(folders) - len(shown):
        sys.stdout.write(f"{count(hidden, 'older run')} not shown: holdfast runs --all\n")
    return 0


def _log_folders(words: Sequence[str]) -> list[Path]:
    missing = [word for word in without_options(words) if not Path(word).is_dir()]
    if missing:
        raise UsageError(f"{missing[0]} is not a folder")
    return [Path(word) for word in words]


def runs_table(runs: Iterable[Run]) -> str:
    """Runs by script and folder, a line each, within 100 columns; no runs: nothing."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        folder, script = run.nodes[0].folder, run.name.rsplit("/", 1)[-1]
        is_in_temp = str(folder.parent) == os.path.realpath(run_links.temp_folder())
        title = script if is_in_temp else f"{script}, in {folder.parent}"
        groups[title] = [*groups.pop(title, []), run]  # the newest run's group comes last
    if not groups:
        return ""
    rows: list[tuple[str, ...]] = [("began", "length", "state", "restarts", "run id", "name")]
    rows += [_row(run) for group in groups.values() for run in group]
    head, *body = columns(rows, (0, 2, 4, 5), "  ")
    text = [head]
    for title, group in groups.items():
        text += [title, *body[: len(group)]]
        del body[: len(group)]
    return "".join(f"{one_line(line)}\n" for line in text)


def _row(run: Run) -> tuple[str, ...]:
    from holdfast.tools.report.report_text import end  # noqa: PLC0415 - slow, where used

    return (
        clock.local_time(run.began + run.offset_s, zone=False),
        duration(run.ended - run.began),
        _cut(end(run), _STATE_CHARS_MAX),
        str(max((event.cycle for event in run.events), default=0)),
        "-" if _RANDOM_ID.fullmatch(run.run_id) else _cut(run.run_id, _RUN_ID_CHARS_MAX),
        short_name(run.nodes[0].folder),
    )


def short_name(folder: Path) -> str:
    """A part of the folder's name by which the commands find it."""
    chars = _RANDOM_CHARS if has_given_name(folder.name) else _PART_CHARS_MAX
    return folder.name[-chars:].lstrip("-")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


# ---------------------------------------------------------------- holdfast prune
def _prune(words: list[str]) -> int:
    is_dry, older = take_flag(words, "--dry-run"), take_option(words, "--older")
    if older is None:
        raise UsageError("--older is missing, the age of runs to remove: --older 7d")
    older_s = _seconds(older)
    folders = find_runs(_log_folders(words))
    found = [run for folder in folders if (run := found_run(folder)) is not None]
    old = [run for run in found if clock.wall() - run.last_at > older_s]
    alive = {folder for run in found if not run.is_over for folder in of_same_job(run.folder)}
    failed = False
    text, n_bytes = [], 0
    removable = [run for run in old if run.is_over and run.folder not in alive]
    for run in removable:
        size = _bytes_below(run.folder)
        if not is_dry and (error := _remove(run.folder)) is not None:
            failed = True
            sys.stderr.write(f"holdfast prune: error: {printable(error)}\n")
            continue
        n_bytes += size
        text.append(_line(run, size))
    did = "would remove" if is_dry else "removed"
    head = f"{did} {count(len(text), 'run')}, {_size(n_bytes)}"
    stays = len(old) - len(removable)
    rest = f"; {count(stays, 'run')} may be alive and stays" if stays == 1 else ""
    rest = rest or (f"; {stays} runs may be alive and stay" if stays else "")
    sys.stdout.write("".join([f"{head}{rest}\n", *text]))
    return 1 if failed else 0


def _seconds(age: str) -> float:
    if (found := _AGE.fullmatch(age)) is None:
        raise UsageError(f"--older: {age!r} cannot be used; it takes an age as 7d, 12h or 90m")
    return float(found[1]) * _UNITS_S[found[2]]


def _remove(folder: Path) -> str | None:
    """The reason why not all of it can be removed."""
    try:
        remove(folder)
    except OSError as error:
        return in_words(error)
    for log_dir in (None, str(folder.parent)):
        run_links.drop_latest(log_dir, str(folder))
    return None


def _line(run: FoundRun, size: int) -> str:
    age = duration(max(0.0, clock.wall() - run.last_at))
    name = run.name.rsplit("/", 1)[-1]
    return one_line(f"  {name}, {age} old, {_size(size)}: {run.folder}") + "\n"


def _size(n_bytes: int) -> str:
    return f"{n_bytes / _MIB:.3g} MiB" if n_bytes >= _MIB else f"{n_bytes / 1024:.3g} KiB"


def _bytes_below(folder: Path) -> int:
    """Of all files; those that cannot be read count as none."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_size
            except OSError:
                continue
    return total
