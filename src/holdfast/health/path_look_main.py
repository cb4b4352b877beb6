"""A process that touches one path and says what came of it; it may hang there for ever.

It says ``r`` when it begins, so that its own start is not held against the path.
"""

from __future__ import annotations

import json
import os
import signal
import stat

from holdfast.base.processes.rank_boot import PR_SET_PDEATHSIG, prctl

_ANSWER_FD = 3
_READ_BYTES = 4096


def main(path: str, *, reads: bool) -> None:
    """Be that process; started by ``path_look.py``.

    Args:
        path: Touched: its status, and of a folder the first entry.
        reads: It is a file, whose beginning is read instead.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.write(_ANSWER_FD, b"r")
    answer: dict[str, object] = {}
    try:
        answer["text"] = _read(path) if reads else _touch(path)
    except OSError as error:
        answer = {"errno": error.errno, "text": error.strerror}
    os.write(_ANSWER_FD, json.dumps(answer).encode())
    os._exit(0)


def _touch(path: str) -> str:
    if stat.S_ISDIR(os.stat(path).st_mode):  # noqa: PTH116 - nothing is imported that is not needed
        with os.scandir(path) as entries:
            next(entries, None)
    return ""


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY)
    return os.read(descriptor, _READ_BYTES).decode(errors="replace")
