"""Read or touch some paths and send the outcome; it may hang in any. See ``file_read.py``.

It says ``r`` when it begins, so that its own start is not held against the first file.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

from holdfast.base.processes.rank_boot import die_with_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_ANSWER_FD = 3
_CHUNK_BYTES = 1 << 16
_BYTES_MAX = 16 << 20
_HEADER = struct.Struct("<q")


def main(files: Sequence[str], *, touches: bool) -> None:
    """Be that process. Each answer, to descriptor 3, is a length and so many bytes, or ``-errno``.

    ``touches``: look at the status of each path and, of a folder, at its first entry.
    """
    die_with_parent()
    _write(b"r")
    for path in files:
        try:
            text = _touch(path) if touches else _read(path)
        except OSError as error:
            _write(_HEADER.pack(-(error.errno or errno.EIO)))
        else:
            _write(_HEADER.pack(len(text)) + text)
    os._exit(0)


def _touch(path: str) -> bytes:
    if stat.S_ISDIR(os.stat(path).st_mode):
        with os.scandir(path) as entries:
            next(entries, None)
    return b""


def _read(path: str) -> bytes:
    text = b""
    with open(path, "rb", buffering=0) as file:
        while len(text) < _BYTES_MAX and (chunk := file.read(_CHUNK_BYTES)):
            text += chunk
    return text


def _write(text: bytes) -> None:
    while text:
        text = text[os.write(_ANSWER_FD, text) :]
