"""Links to folders of runs: ``latest`` beside them, and from the runtime folder of each launcher.

    <log dir>/latest                        -> <run folder>      --log-dir
    <temp folder>/holdfast_run_latest_<uid> -> <run folder>      without
    <runtime folder>/run                    -> <run folder>      while its launcher lives

A link is made under a name of its own and renamed, so whoever reads ``latest`` always finds one,
and of launchers that start at the same moment one wins. What cannot be made is done without.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from holdfast.base.processes.job_name import PREFIX, is_living

LATEST = "latest"
_RUN = "run"
_TMPFS = "/dev/shm"  # noqa: S108 - as in run_dirs.py


def latest_link(log_dir: str | None) -> str:
    """Where the link to the newest run is, of a log folder or of the temp folder."""
    if log_dir is None:
        return os.path.join(tempfile.gettempdir(), f"{PREFIX}run_{LATEST}_{os.getuid()}")
    return os.path.join(log_dir, LATEST)


def point_latest(log_dir: str | None, run_dir: str) -> None:
    """Let ``latest`` name this run."""
    link = latest_link(log_dir)
    fresh = _aside(link)
    with contextlib.suppress(OSError):
        os.symlink(os.path.basename(run_dir), fresh)
        try:
            os.replace(fresh, link)
        except OSError:  # another user's, or a folder
            os.unlink(fresh)


def drop_latest(log_dir: str | None, run_dir: str) -> None:
    """Remove ``latest``, if it names this run, which goes away."""
    link = latest_link(log_dir)
    aside = _aside(link)
    with contextlib.suppress(OSError):
        if os.readlink(link) != os.path.basename(run_dir):
            return
        os.rename(link, aside)
        if os.readlink(aside) != os.path.basename(run_dir):  # another launcher was faster
            with contextlib.suppress(FileExistsError):
                os.link(aside, link, follow_symlinks=False)
        os.unlink(aside)


def is_own_link(link: str) -> bool:
    """Whether this user has made it: the temp folder is everybody's."""
    try:
        return os.lstat(link).st_uid == os.getuid()
    except OSError:
        return False


def note_run_dir(runtime_dir: str, run_dir: str) -> None:
    """Let others find the folder of a run while its launcher lives."""
    with contextlib.suppress(OSError):
        os.symlink(run_dir, os.path.join(runtime_dir, _RUN))


def living_run_dirs() -> Iterator[str]:
    """Run folders of launchers of this user that are alive on this host."""
    for parent in dict.fromkeys((_TMPFS, tempfile.gettempdir())):
        try:
            names = os.listdir(parent)
        except OSError:
            continue
        for name in names:
            if name.startswith(PREFIX) and is_living(name.removeprefix(PREFIX)):
                with contextlib.suppress(OSError):
                    yield os.readlink(os.path.join(parent, name, _RUN))


def _aside(link: str) -> str:
    return f"{link}.{os.getpid()}.{os.urandom(4).hex()}"
