"""The two folders of a run: a private one on tmpfs that goes away, and the one people read.

    runtime  <tmpfs>/holdfast_<job>/      mode 0700: sockets, pages. Removed at exit; that of a
                                          killed launcher by the next one of the same user
    run      <log dir>/<run id>_<time>_<random>/   attempt_N/<local rank>/..., events, incidents.
                                          Removed after an uneventful run, unless the user asked
                                          for it

The run id comes first where a user chose it, as in torchrun; folders of one job sort by time (UTC).

The names of jobs: ``job_name.py``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.base import clock
from holdfast.base.bounded import CallInThread, call_within
from holdfast.base.processes import orphans
from holdfast.base.processes.job_name import PREFIX, is_living, living_launchers
from holdfast.base.processes.job_record import read_claim
from holdfast.errors import LaunchError
from holdfast.events.run import run_links
from holdfast.events.run.old_runs import keep_newest
from holdfast.evidence.staging import Staging
from holdfast.node.console import LOGGER, log_error
from holdfast.node.processes.pages import Pages

_MAKE_S = 30.0
"""How long the file system of a log folder may take for a new folder."""
_LOOK_S = 2.0
"""How long a look into a temp folder, or a link in it, may take."""
_LAST_DELIVERY_S = 5.0
"""How long the launcher's exit waits for a slow disk to take the last evidence."""
_REMOVAL_S = 5.0
"""How long the launcher's exit waits for run folders to be removed: this one, or older ones."""
_RANDOM_ID_CHARS = 32
"""Hexadecimal digits of a run id that the user did not choose."""


class RunFolders:
    """Made at once, or OSError is raised.

    ``run_dir`` is for people, ``runtime_dir`` private, on tmpfs where there is one; ``staging``
    takes evidence into memory and delivers it to ``run_dir``.
    """

    def __init__(self, log_dir: str | None, run_id: str, job: str) -> None:
        self._log_dir = log_dir
        self._job = job
        self._removal: CallInThread[None] | None = None
        self.run_dir = Path(make_run_dir(log_dir, run_id))
        self.runtime_dir = make_runtime_dir(job)
        run_links.note_run_dir(self.runtime_dir, str(self.run_dir))
        self._staged = os.path.join(self.runtime_dir, "evidence")
        self.staging = Staging(self._staged, str(self.run_dir), log_error)
        self.pages = Pages(self.runtime_dir, lambda: make_spare_dir(job), log_error)

    def close(self, undelivered: Iterable[int]) -> None:
        """Deliver the evidence of these cycles, and remove the private folders."""
        for cycle in undelivered:
            self.staging.deliver(cycle, over=True)
        if self._removal is not None:
            self._removal.has_ended(_REMOVAL_S)
        if not self.staging.close(_LAST_DELIVERY_S):
            self._keep_evidence()
        for folder in (self.runtime_dir, self.pages.spare):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def keep_newest(self, runs: int | None, node: str) -> None:
        """Begin to remove older runs of this node beside this one; None: all stay."""
        if runs is not None:
            self._removal = CallInThread(
                lambda: keep_newest(self.run_dir, runs, node), "holdfast-old-runs"
            )

    def remove_run(self) -> None:
        """Remove the run folder: the run was uneventful."""
        with contextlib.suppress(OSError):  # it takes too long
            run_dir = str(self.run_dir)
            call_within(_REMOVAL_S, lambda: remove_run_dir(self._log_dir, run_dir))

    def _keep_evidence(self) -> None:
        try:
            kept = keep(self._staged, self._job)
        except OSError as error:
            LOGGER.error("evidence that %s did not take is lost: %s", self.run_dir, error)
        else:
            LOGGER.error("evidence that %s did not take is kept in %s", self.run_dir, kept)


def end_orphaned_processes() -> tuple[int, dict[int, str]]:
    """End the processes of ranks of which launcher *and* monitors were killed.

    Only where a killed launcher has left its runtime directory, with the record of its processes:
    see docs/what-is-killed.md. Returns how many were killed; and pids that carry the marker, but
    were left alone, with the reason.
    """
    n_killed, left = 0, {}
    launchers = [
        each for parent in run_links.runtime_parents() for each in living_launchers(parent)
    ]
    for entry in _orphaned_dirs():
        claim = read_claim(entry.path)
        if claim is not None and claim.job == entry.name.removeprefix(PREFIX):
            ended = orphans.end_job(claim, launchers=launchers)
            n_killed += ended.killed
            left.update(ended.left)
    return n_killed, left


def make_runtime_dir(job: str) -> str:
    """A private folder for sockets and pages, on tmpfs where there is one; raises OSError."""
    parents = run_links.runtime_parents()
    for parent in parents:
        path = os.path.join(parent, PREFIX + job)
        try:
            os.mkdir(path, 0o700)
        except OSError:
            if parent == parents[-1]:
                raise
        else:
            return path
    raise AssertionError("unreachable: the last parent raises")


def make_spare_dir(job: str) -> str:
    """A second one, in the temp directory, found orphaned like the first; raises OSError."""
    path = os.path.join(tempfile.gettempdir(), PREFIX + job)
    os.mkdir(path, 0o700)
    return path


def remove_orphaned_runtime_dirs() -> None:
    """Remove the folders of killed launchers of this user."""
    for entry in _orphaned_dirs():
        shutil.rmtree(entry.path, ignore_errors=True)


def _orphaned_dirs() -> Iterator[os.DirEntry[str]]:
    for parent in run_links.runtime_parents():
        # A temp folder on network storage may hang; orphans there can wait.
        with contextlib.suppress(OSError):
            yield from call_within(_LOOK_S, functools.partial(_orphaned_below, parent))


def _orphaned_below(parent: str) -> list[os.DirEntry[str]]:
    found = []
    for entry in list(os.scandir(parent)):
        if not entry.name.startswith(PREFIX):
            continue
        # Another launcher that starts now may be removing it, too.
        with contextlib.suppress(FileNotFoundError):
            is_own = entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if is_own and is_living(entry.name.removeprefix(PREFIX)) is False:
                found.append(entry)
    return found


def keep(folder: str, job: str) -> str:
    """Move a folder out of the runtime directory of ``job``; returns where it stays.

    Only the user removes it: it is for evidence that has no other place. Raises OSError.
    """
    runtime_dir = os.path.dirname(folder)
    kept = os.path.join(os.path.dirname(runtime_dir), f"{PREFIX}kept_{job}")
    os.rename(folder, kept)
    return kept


def remove_run_dir(log_dir: str | None, run_dir: str) -> None:
    """Remove the folder of a run in which nothing happened, and ``latest`` if that names it."""
    run_links.drop_latest(log_dir, run_dir)
    shutil.rmtree(run_dir, ignore_errors=True)


def make_run_dir(log_dir: str | None, run_id: str) -> str:
    """Create and return ``<log_dir>/<run_id>_<time>_<random>``.

    Time comes first where the run id is random, and, after ``holdfast_run_``, in the temp
    directory, which is used without a log dir.

    Raises:
        LaunchError: It cannot be made in the log dir.
        OSError: Not in the temp directory; or it takes longer than 30 s.
    """
    where = "the temp folder" if log_dir is None else log_dir
    try:
        made = call_within(_MAKE_S, lambda: _make_run_dir(log_dir, run_id))
    except TimeoutError as error:
        raise TimeoutError(f"cannot make a folder for this run in {where}: {error}") from None
    if log_dir is not None:  # a temp folder that hangs is no reason for a job not to start
        with contextlib.suppress(OSError):
            call_within(_LOOK_S, lambda: run_links.point_latest(None, made))
    return made


def _make_run_dir(log_dir: str | None, run_id: str) -> str:
    now = clock.wall()
    began = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now))}.{int(now % 1 * 1000):03}Z"
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in run_id)
    if log_dir is None:
        made = tempfile.mkdtemp(prefix=f"holdfast_run_{began}_{name}_")
        run_links.point_latest(None, made)
        return made
    is_random = len(name) == _RANDOM_ID_CHARS and all(c in "0123456789abcdef" for c in name)
    prefix = f"{began}_{name}_" if is_random else f"{name}_{began}_"
    base = os.path.abspath(log_dir)
    try:
        os.makedirs(base, exist_ok=True)
        made = tempfile.mkdtemp(prefix=prefix, dir=base)
    except OSError as error:
        raise LaunchError(
            f"no run folder can be made in {base}: {error.strerror}. Name a folder that this user "
            "can write to with --log-dir"
        ) from error
    run_links.point_latest(base, made)
    return made
