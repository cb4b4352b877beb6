"""A rank that calls a function: what ``elastic_launch`` starts instead of a script.

Run as ``python -u function_rank.py FOLDER``. The folder is private to the user who launched. In its
file ``function`` are, pickled, what multiprocessing prepares an interpreter with (path, working
folder, the program to import as ``__main__``), then function and arguments. The return
value goes into ``result.<cycle>.<rank>``. Imports nothing of holdfast: the path that leads to it
is in that file.

:func:`open_own` and :func:`take` are the only place of holdfast that unpickles (S-1, decision 20):
files that this user has written into a folder that only this user can write to. Bytes from a socket
or a store never come here.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle  # noqa: TID251 - decision 20: files of the program itself
import stat
import sys
import time
import traceback
from pathlib import Path
from typing import Any, BinaryIO


def open_own(folder: str, name: str) -> BinaryIO:
    """Open a file that a process of this user has left in a private folder.

    Args:
        folder: Path; its mode is 0700 and it belongs to this user.
        name: Of a file in it, which belongs to this user, and is no link.

    Raises:
        PermissionError: Another user could have written the file.
        OSError: There is no such file or folder, or one of them is a link.
    """
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        place = os.fstat(directory)
        if place.st_uid != os.geteuid() or stat.S_IMODE(place.st_mode) & 0o077:
            raise PermissionError(
                f"{folder} is not a private folder of user {os.geteuid()} (owner {place.st_uid}, "
                f"mode {stat.S_IMODE(place.st_mode):o}); nothing in it is unpickled"
            )
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    finally:
        os.close(directory)
    file = os.fdopen(descriptor, "rb")
    owner = os.fstat(descriptor).st_uid
    if owner != os.geteuid():
        file.close()
        raise PermissionError(f"{folder}/{name} belongs to user {owner}; it is not unpickled")
    return file


def take(file: BinaryIO) -> Any:
    """The next object of a file from :func:`open_own`."""
    return pickle.load(file)  # noqa: S301 - see the module


def main(folder: str) -> None:
    """Call the function; ends as a script would whose last line it is."""
    if sys.path and Path(sys.path[0]).absolute() == Path(__file__).absolute().parent:
        del sys.path[0]  # its names (data, utils, ...) must not hide the program's
    try:
        function, arguments = _load(folder)
        _keep(folder, function(*arguments))
    except Exception as error:
        _write_error_file(error)
        raise


def _load(folder: str) -> tuple[Any, tuple[Any, ...]]:
    from multiprocessing import process, spawn  # noqa: PLC0415 - heavy, and not for tests

    with open_own(folder, "function") as file:
        preparation = take(file)
        own: Any = process.current_process()
        own._inheriting = True  # noqa: SLF001 - a program that launches on import gets an error
        try:
            spawn.prepare(preparation)
            function, arguments = take(file)
        finally:
            del own._inheriting  # noqa: SLF001 - as multiprocessing does
    return function, arguments


def _keep(folder: str, value: Any) -> None:
    try:
        data = pickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"the result of the function cannot be pickled for the program that launched it: "
            f"{type(value).__name__}: {error}. Return a value that pickle takes, or write the "
            "result to a file"
        ) from error
    cycle, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    part = Path(folder, f"part.{cycle}.{rank}")
    part.write_bytes(data)
    part.rename(part.with_name(f"result.{cycle}.{rank}"))


def _write_error_file(error: Exception) -> None:
    """In the format of torch's ``@record``, unless that has written it already."""
    name = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not name or Path(name).exists():
        return
    now = int(time.time())  # noqa: TID251 - holdfast may not be found by this interpreter
    extra = {"py_callstack": traceback.format_exc(), "timestamp": str(now)}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    with contextlib.suppress(OSError):  # the traceback is on stderr, too
        Path(name).write_text(json.dumps({"message": message}))


if __name__ == "__main__":
    main(sys.argv[1])
