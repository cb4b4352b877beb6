"""Links to folders of runs: ``latest`` beside them, and from the runtime folder of each launcher.

    <log dir>/latest                        -> <run folder>      with --log-dir
    <temp folder>/holdfast_run_latest_<uid> -> <run folder>      the newest of this user
    <runtime folder>/run                    -> <run folder>      while its launcher lives

A link is made under another name and renamed, so that ``latest`` always exists, and of launchers
that start at the same moment one wins. Links that cannot be made are left out.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from holdfast.base.processes.job_name import PREFIX, is_living, launcher_of

LATEST = "latest"
_RUN = "run"
_TMPFS = "/dev/shm"  # noqa: S108 - private folders of mode 0700 are made in it
_TEMP = "/tmp"  # noqa: S108 - the same
_SHORT_BYTES = 9
"""Of a folder in which each socket of a launcher has a path of 107 bytes, the most on Linux."""


def temp_folder() -> str:
    """In which runs without ``--log-dir`` have their folders."""
    return tempfile.gettempdir()


def latest_link(log_dir: str | None) -> str:
    """Path of the link to the newest run, of a log folder or of the temp folder."""
    if log_dir is None:
        return os.path.join(tempfile.gettempdir(), f"{PREFIX}run_{LATEST}_{os.getuid()}")
    return os.path.join(log_dir, LATEST)


def point_latest(log_dir: str | None, run_dir: str) -> None:
    """Let ``latest`` name this run."""
    link = latest_link(log_dir)
    fresh = _aside(link)
    with contextlib.suppress(OSError):
        os.symlink(_target(link, run_dir), fresh)
        try:
            os.replace(fresh, link)
        except OSError:  # another user's, or a folder
            os.unlink(fresh)


def drop_latest(log_dir: str | None, run_dir: str) -> None:
    """Remove ``latest``, if it names this run, which goes away."""
    link = latest_link(log_dir)
    aside = _aside(link)
    with contextlib.suppress(OSError):
        if os.readlink(link) != _target(link, run_dir):
            return
        os.rename(link, aside)
        if os.readlink(aside) != _target(link, run_dir):  # another launcher was faster
            with contextlib.suppress(FileExistsError):
                os.link(aside, link, follow_symlinks=False)
        os.unlink(aside)


def _target(link: str, run_dir: str) -> str:
    """Relative for a folder beside the link, so that both can be moved together."""
    is_beside = os.path.dirname(run_dir) == os.path.dirname(link)
    return os.path.basename(run_dir) if is_beside else run_dir


def is_own_link(link: str) -> bool:
    """Whether this user has made it: all users write to the temp folder."""
    try:
        return os.lstat(link).st_uid == os.getuid()
    except OSError:
        return False


def note_run_dir(runtime_dir: str, run_dir: str) -> None:
    """Let others find the folder of a run while its launcher lives."""
    with contextlib.suppress(OSError):
        os.symlink(run_dir, os.path.join(runtime_dir, _RUN))


def runtime_parents() -> list[str]:
    """Folders in which launchers of this host make their runtime folders; the first is tmpfs.

    Where that cannot be used, sockets need a short path, which ``TMPDIR`` may not leave them.
    """
    temp = tempfile.gettempdir()
    is_short = len(os.fsencode(temp)) <= _SHORT_BYTES
    return list(dict.fromkeys((_TMPFS, temp) if is_short else (_TMPFS, _TEMP, temp)))


def runtime_dir_of(job: str) -> str | None:
    """Of a launcher of this host; None: it runs elsewhere, or that is not known."""
    if launcher_of(job) is None:
        return None
    paths = [os.path.join(parent, PREFIX + job) for parent in runtime_parents()]
    return next((path for path in paths if os.path.isdir(path)), paths[0])


def living_runtime_dirs() -> Iterator[str]:
    """Runtime folders of launchers that are alive on this host, of all users."""
    for parent in runtime_parents():
        try:
            names = os.listdir(parent)
        except OSError:
            continue
        for name in names:
            if name.startswith(PREFIX) and is_living(name.removeprefix(PREFIX)):
                yield os.path.join(parent, name)


def living_run_dirs() -> Iterator[str]:
    """Run folders of launchers of this user that are alive on this host."""
    for folder in living_runtime_dirs():
        with contextlib.suppress(OSError):
            yield os.readlink(os.path.join(folder, _RUN))


def _aside(link: str) -> str:
    return f"{link}.{os.getpid()}.{os.urandom(4).hex()}"
