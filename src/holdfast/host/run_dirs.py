"""The two folders of a run: a private one on tmpfs that goes away, and the one people read.

    runtime  <tmpfs>/holdfast_<job>/      mode 0700: sockets, pages. Removed at exit; what a killed
                                          launcher left is removed by the next one of the same user
    run      <log dir>/<run id>_<random>/ attempt_N/<local rank>/..., events, incidents. Stays

The names of jobs: ``job_name.py``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from holdfast.host import orphans
from holdfast.host.job_name import PREFIX, is_orphaned, living_launchers
from holdfast.host.job_record import read_claim

_TMPFS = "/dev/shm"  # noqa: S108 - a private folder of mode 0700 is made in it


def end_orphaned_processes() -> tuple[int, dict[int, str]]:
    """End what is left of ranks whose launcher *and* monitors were killed.

    Looked for only where a killed launcher has left its runtime directory, with the record of its
    processes: see docs/what-is-killed.md.

    Returns:
        How many were killed; pids that were left alone although they carry the marker, and why.
    """
    n_killed, left = 0, {}
    launchers = [each for parent in _parents() for each in living_launchers(parent)]
    for entry in _orphaned_dirs():
        claim = read_claim(entry.path)
        if claim is not None and claim.job == entry.name.removeprefix(PREFIX):
            ended = orphans.end_job(claim, launchers=launchers)
            n_killed += ended.killed
            left.update(ended.left)
    return n_killed, left


def make_runtime_dir(job: str) -> str:
    """A private folder for sockets and pages, on tmpfs where there is one.

    Raises:
        OSError: Neither /dev/shm nor the temp directory can be written.
    """
    for parent in (_TMPFS, tempfile.gettempdir()):
        path = os.path.join(parent, PREFIX + job)
        try:
            os.mkdir(path, 0o700)
        except OSError:
            if parent != _TMPFS:
                raise
        else:
            return path
    raise AssertionError("unreachable: the last parent raises")


def make_spare_dir(job: str) -> str:
    """A second private folder, in the temp directory; found orphaned like the first.

    Raises:
        OSError: It cannot be made, or the first is there already.
    """
    path = os.path.join(tempfile.gettempdir(), PREFIX + job)
    os.mkdir(path, 0o700)
    return path


def remove_orphaned_runtime_dirs() -> None:
    """Remove what launchers of this user that were killed have left."""
    for entry in _orphaned_dirs():
        shutil.rmtree(entry.path, ignore_errors=True)


def _orphaned_dirs() -> Iterator[os.DirEntry[str]]:
    for parent in _parents():
        try:
            entries = list(os.scandir(parent))
        except OSError:
            continue
        for entry in entries:
            if not entry.name.startswith(PREFIX):
                continue
            # Another launcher that starts now may be removing it, too.
            with contextlib.suppress(FileNotFoundError):
                is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if is_ours and is_orphaned(entry.name.removeprefix(PREFIX)):
                    yield entry


def _parents() -> set[str]:
    return {_TMPFS, tempfile.gettempdir()}


def keep(folder: str, job: str) -> str:
    """Move a folder out of the runtime directory of ``job``; returns where it stays.

    Nobody removes it but the user: it is for what has no other place.

    Raises:
        OSError: It cannot be moved.
    """
    runtime_dir = os.path.dirname(folder)
    kept = os.path.join(os.path.dirname(runtime_dir), f"{PREFIX}kept_{job}")
    os.rename(folder, kept)
    return kept


def make_run_dir(log_dir: str | None, run_id: str) -> str:
    """Create and return ``<log_dir>/<run_id>_<random>``; without a log dir in the temp directory.

    Raises:
        OSError: It cannot be created.
    """
    prefix = "".join(c if c.isalnum() or c in "-_." else "_" for c in run_id) + "_"
    if log_dir is None:
        return tempfile.mkdtemp(prefix=f"holdfast_run_{prefix}")
    base = os.path.abspath(log_dir)
    os.makedirs(base, exist_ok=True)
    return tempfile.mkdtemp(prefix=prefix, dir=base)
