"""``holdfast rescue``: the newest snapshot of a running job, on disk."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.arena import taken
from holdfast.arena.pure.budget import shown
from holdfast.arena.pure.file_names import Mark
from holdfast.arena.rescue import Rescue, RescueError
from holdfast.base import clock
from holdfast.base.pure.rank_sets import named
from holdfast.events.pure.schema import LauncherStarted
from holdfast.events.run.event_lines import first_event
from holdfast.events.run.run_links import living_runtime_dirs, runtime_dir_of
from holdfast.options.option import UsageError
from holdfast.tools.command_words import named_runs, run_command, take_option, without_options

_USAGE = """\
usage: holdfast rescue [RUN ...] --to FOLDER [OPTIONS]

Writes the newest snapshot that all ranks of a running job have in memory to disk,
as safetensors, one file per rank. The job continues, and does not notice; while the
files are written, its ranks keep that snapshot and skip new ones they have no room
for.

  RUN                as for holdfast top: the newest run of this host, without.
                     All launchers of its job on this host are found
  --to FOLDER        must exist; the snapshot gets a folder in it
  --step N           of a step to come. For a job on several hosts: run it on each
                     of them, with the same step
  --timeout SECONDS  to wait for that step (600)

A job with --ft-snapshot-dir=FOLDER begins from it only after its file 'rescued' is
removed: the job that runs may save checkpoints that are newer.

Exit code: 0 when it is written, 1 if not, 2 if the command cannot be used this way.
"""
_TIMEOUT_S = 600.0
_FAILED = 1


def main(command: str, words: Sequence[str]) -> int:
    """The command; returns the exit code."""
    try:
        return run_command(command, words, _USAGE, _run)
    except RescueError as error:
        why = str(error)
    except OSError as error:
        why = str(error) if error.filename else (error.strerror or str(error))
    except KeyboardInterrupt:
        why = "interrupted"
    sys.stderr.write(f"holdfast rescue: error: nothing is rescued: {why}\n")
    return _FAILED


def _run(words: list[str]) -> int:
    folder = take_option(words, "--to")
    step = _number("--step", take_option(words, "--step"))
    timeout_s = _number("--timeout", take_option(words, "--timeout"))
    without_options(words)
    if folder is None:
        raise UsageError("--to FOLDER is needed: where the snapshot is written")
    if not Path(folder).is_dir():
        raise UsageError(f"--to: {folder} is not a folder")
    for signum in (signal.SIGTERM, signal.SIGHUP):  # the snapshot is released then, too
        signal.signal(signum, signal.default_int_handler)
    began_at = clock.monotonic()
    with Rescue(_launchers(named_runs("rescue", words))) as rescue:
        elsewhere = rescue.elsewhere
        if step is None and elsewhere:
            ahead = max(0, rescue.last_step)
            raise RescueError(
                f"only {named(rescue.ranks)} of {rescue.world_size} run on this host, "
                f"{named(elsewhere)} on others. Run this on each host, with the same --step to "
                f"come (the last one here is {ahead})"
            )
        wait_s = _TIMEOUT_S if timeout_s is None else float(timeout_s)
        sources = rescue.newest() if step is None else rescue.at(step, wait_s)
        found = rescue.write(sources, os.path.abspath(folder), lambda: True)  # noqa: PTH100
    took_s = clock.monotonic() - began_at
    sys.stdout.write(
        f"rescued the snapshot of step {found.step}, {found.ranks} of {found.world_size}: "
        f"{found.path} ({shown(found.n_bytes)} in {took_s:.1f} s)\n"
    )
    if elsewhere:
        sys.stdout.write(
            f"{named(elsewhere)} run on other hosts: holdfast rescue --step {found.step} writes "
            "their parts there\n"
        )
    sys.stdout.write(
        f"To begin from it, remove its file {Mark.RESCUED.value!r} and start a job with "
        f"--ft-snapshot-dir={os.path.dirname(found.path)}\n"  # noqa: PTH120
    )
    return 0


def _number(name: str, text: str | None) -> int | None:
    if text is not None and not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 60):
        raise UsageError(f"{name}: {text!r} is not a whole number above 0")
    return None if text is None else int(text)


def _launchers(runs: Sequence[Path]) -> list[str]:
    """Runtime folders of these runs, and of other launchers of this host that are in their cycle.

    Raises:
        RescueError: None of the runs is going on here.
    """
    found = [folder for run in runs if (folder := _runtime_dir(run)) is not None]
    if not found:
        runs_of = "run" if len(runs) == 1 else "runs"
        places = ", ".join(map(str, runs))
        raise RescueError(f"{runs_of} {places} is over, or its launcher is on another host")
    lives = {names.life for folder in found if (names := taken.read_node(folder)) is not None}
    for folder in living_runtime_dirs():
        names = taken.read_node(folder) if folder not in found else None
        if names is not None and names.life in lives:
            found.append(folder)
    return found


def _runtime_dir(run: Path) -> str | None:
    first = first_event(run)
    start = None if first is None else first.body
    folder = runtime_dir_of(start.job) if isinstance(start, LauncherStarted) else None
    return folder if folder is not None and Path(folder).is_dir() else None
