"""One file that many write lines to: several ranks of a node, and several nodes at once.

Opened for appending, and written to in whole lines, so that lines of others never stand within one
of ours (on a local file system, and on network file systems as far as they append atomically).
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from holdfast.host.file_writer import FileWriter, Tell, open_log


class LineLog:
    """Opened with the first line; a file that cannot be written is told of once, and given up.

    Not for two threads at once.

    Args:
        path: Missing folders are made.
        tell: Called with what went wrong.
        writer: Writes it; None: the caller does, who is blocked as long as the file system blocks.
    """

    def __init__(self, path: str, tell: Tell, writer: FileWriter | None = None) -> None:
        self._path = path
        self._tell = tell
        self._writer = writer
        self._descriptor: int | None = None
        self._is_given_up = False

    def write(self, prefix: bytes, lines: Iterable[bytes]) -> None:
        """Append lines, each with ``prefix`` before it, whatever they end with."""
        data = b"".join(prefix + line.rstrip(b"\r\n") + b"\n" for line in lines)
        if self._writer is None:
            self._append(data)
        else:
            self._writer.call(lambda: self._append(data), len(data))

    def _append(self, data: bytes) -> None:
        if self._is_given_up:
            return
        try:
            if self._descriptor is None:
                self._descriptor = open_log(self._path)
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            self._close()
            self._is_given_up = True
            self._tell(
                f"{self._path} cannot be written ({error.strerror}): the output of the ranks of "
                "this node is no longer kept there; where else it goes, it still does"
            )

    def close(self) -> None:
        """Close the file; the next line would open it again."""
        if self._writer is None:
            self._close()
        else:
            self._writer.call(self._close)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def cycle_path(base: str, cycle: int) -> str:
    """``/logs/run.log`` -> ``/logs/run_cycle3.log``; without an extension it gets ``.log``."""
    stem, extension = os.path.splitext(base)
    return f"{stem}_cycle{cycle}{extension or '.log'}"
