"""Read some files and say what is in them; it may hang in any of them. See ``memory_read.py``.

It says ``r`` when it begins, so that its own start is not held against the first file.
"""

from __future__ import annotations

import os
import signal
import struct

from holdfast.base.processes.rank_boot import PR_SET_PDEATHSIG, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_ANSWER_FD = 3
_CHUNK_BYTES = 1 << 16
_BYTES_MAX = 16 << 20
_HEADER = struct.Struct("<q")
_NONE = -1


def main(files: Sequence[str]) -> None:
    """Be that process; its answers go to descriptor 3: a length each, and so many bytes."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _write(b"r")
    for path in files:
        try:
            text = _read(path)
        except OSError:
            _write(_HEADER.pack(_NONE))
        else:
            _write(_HEADER.pack(len(text)) + text)
    os._exit(0)


def _read(path: str) -> bytes:
    text = b""
    with open(path, "rb", buffering=0) as file:
        while len(text) < _BYTES_MAX and (chunk := file.read(_CHUNK_BYTES)):
            text += chunk
    return text


def _write(text: bytes) -> None:
    while text:
        text = text[os.write(_ANSWER_FD, text) :]
