"""Files of this user on this host, one for each job that has ended: see :class:`.EndedJob`.

    <tmpfs or temp folder>/holdfast-ended-<uid>/<digest of endpoint and name>    mode 0700

They go when the host is restarted, or an hour later, when the next is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile

from holdfast.base import clock

_TMPFS = "/dev/shm"  # noqa: S108 - a private folder of mode 0700 is made in it
_KEPT_S = 3600.0
_BYTES_MOST = 64 << 10


def write(key: str, data: bytes) -> None:
    """Put a record in the place of an earlier one of this key.

    Raises:
        OSError: It cannot be written.
    """
    folder = _folder()
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    if not _is_private(folder):
        raise PermissionError(f"{folder} is not a private folder of user {os.geteuid()}")
    _remove_old(folder)
    path = os.path.join(folder, _name(key))
    part = f"{path}.{os.getpid()}"
    with open(part, "wb") as file:
        file.write(data)
    os.rename(part, path)


def read(key: str) -> bytes | None:
    """The last record of this key; None: there is none that only this user can have written."""
    folder = _folder()
    try:
        if not _is_private(folder):
            return None
        with open(os.path.join(folder, _name(key)), "rb") as file:
            return file.read(_BYTES_MOST)
    except OSError:
        return None


def _folder() -> str:
    parent = _TMPFS if os.access(_TMPFS, os.W_OK) else tempfile.gettempdir()
    return os.path.join(parent, f"holdfast-ended-{os.geteuid()}")


def _is_private(folder: str) -> bool:
    found = os.lstat(folder)
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_own and not stat.S_IMODE(found.st_mode) & 0o077


def _name(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _remove_old(folder: str) -> None:
    for entry in list(os.scandir(folder)):
        with contextlib.suppress(OSError):  # another launcher of this user was first
            if clock.wall() - entry.stat(follow_symlinks=False).st_mtime > _KEPT_S:
                os.unlink(entry.path)
