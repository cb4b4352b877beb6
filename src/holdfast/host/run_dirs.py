"""The two folders of a run: a private one on tmpfs that goes away, and the one people read.

    runtime  <tmpfs>/holdfast_<job>/      mode 0700: sockets, pages. Removed at exit; what a killed
                                          launcher left is removed by the next one of the same user
    run      <log dir>/<run id>_<random>/ attempt_N/<local rank>/..., events, incidents. Stays

A *job* here is one life of one launcher: ``<pid>-<start ticks>-<pid namespace>-<random>``. It names
the runtime folder and marks the environment of every process of its ranks, and says by itself
whether its launcher is still alive.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile

from holdfast.host import proc

_PREFIX = "holdfast_"
_TMPFS = "/dev/shm"  # noqa: S108 - a private folder of mode 0700 is made in it


def new_job() -> str:
    """A name for the job of this process."""
    pid = os.getpid()
    return f"{pid}-{proc.start_ticks(pid)}-{proc.pid_namespace()}-{os.urandom(4).hex()}"


def is_orphaned(job: str) -> bool:
    """Its launcher ran in our pid namespace, and is dead. False if that can't be known."""
    fields = job.split("-")
    if len(fields) != 4:
        return False
    try:
        pid, ticks, namespace = map(int, fields[:3])
    except ValueError:
        return False
    return namespace == proc.pid_namespace() and proc.start_ticks(pid) != ticks


def end_orphaned_processes() -> int:
    """End what is left of ranks whose launcher *and* monitors were killed; returns how many.

    Only processes in our pid namespace, and only those this user may signal: a job of another
    container looks dead from here, and is none of our business.
    """
    jobs = {marker.partition(".")[0] for marker in proc.markers()}
    return sum(proc.sweep(f"{job}.") for job in jobs if is_orphaned(job))


def make_runtime_dir(job: str) -> str:
    """A private folder for sockets and pages, on tmpfs where there is one.

    Raises:
        OSError: Neither /dev/shm nor the temp directory can be written.
    """
    for parent in (_TMPFS, tempfile.gettempdir()):
        path = os.path.join(parent, _PREFIX + job)
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
    path = os.path.join(tempfile.gettempdir(), _PREFIX + job)
    os.mkdir(path, 0o700)
    return path


def remove_orphaned_runtime_dirs() -> None:
    """Remove what launchers of this user that were killed have left."""
    for parent in {_TMPFS, tempfile.gettempdir()}:
        try:
            entries = list(os.scandir(parent))
        except OSError:
            continue
        for entry in entries:
            if not entry.name.startswith(_PREFIX):
                continue
            # Another launcher that starts now may be removing it, too.
            with contextlib.suppress(FileNotFoundError):
                is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if is_ours and is_orphaned(entry.name.removeprefix(_PREFIX)):
                    shutil.rmtree(entry.path, ignore_errors=True)


def keep(folder: str, job: str) -> str:
    """Move a folder out of the runtime directory of ``job``; returns where it stays.

    Nobody removes it but the user: it is for what has no other place.

    Raises:
        OSError: It cannot be moved.
    """
    runtime_dir = os.path.dirname(folder)
    kept = os.path.join(os.path.dirname(runtime_dir), f"{_PREFIX}kept_{job}")
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
