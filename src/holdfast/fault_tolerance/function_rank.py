"""A rank that calls a function: what ``elastic_launch`` starts instead of a script.

Run as ``python -u function_rank.py FOLDER``. The folder is private to the user who launched. In its
file ``function`` are, pickled, what multiprocessing prepares an interpreter with (path, working
folder, the program to import as ``__main__``), then function and arguments. What the function
returns goes into ``result.<cycle>.<rank>``. Imports nothing of holdfast: the path that leads to it
is in that file.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle  # noqa: TID251 - decision 20: files of the program itself
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def main(folder: str) -> None:
    """Call the function; ends as a script would whose last line it is."""
    if sys.path and Path(sys.path[0]).absolute() == Path(__file__).absolute().parent:
        del sys.path[0]  # its names (data, utils, ...) must not hide the program's
    try:
        function, arguments = _load(Path(folder, "function"))
        _keep(folder, function(*arguments))
    except Exception as error:
        _write_error_file(error)
        raise


def _load(path: Path) -> tuple[Any, tuple[Any, ...]]:
    from multiprocessing import process, spawn  # noqa: PLC0415 - heavy, and not for tests

    with path.open("rb") as file:
        preparation = pickle.load(file)  # noqa: S301 - the program's own
        own: Any = process.current_process()
        own._inheriting = True  # noqa: SLF001 - a program that launches while it is imported is told so
        try:
            spawn.prepare(preparation)
            function, arguments = pickle.load(file)  # noqa: S301
        finally:
            del own._inheriting  # noqa: SLF001 - as multiprocessing does
    return function, arguments


def _keep(folder: str, value: Any) -> None:
    try:
        data = pickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"the function returned what cannot be handed to the program that launched it: "
            f"{type(value).__name__}: {error}. Return what pickle takes, or write it to a file"
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
    with contextlib.suppress(OSError):  # the traceback is on stderr all the same
        Path(name).write_text(json.dumps({"message": message}))


if __name__ == "__main__":
    main(sys.argv[1])
