"""The launcher's stdout and stderr: they take data at once, and pass it on as fast as it is read.

A reader may pause: a pager, a terminal after Ctrl-S, a connection that is lost. The data that it
does not take wait in memory. A stream that is in a file as well goes on meanwhile, and if the
memory is full, the console misses some of it; any other stream has to wait
(:meth:`Consoles.is_full`), as under a plain shell.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
from collections.abc import Callable

from holdfast.base import wait_for

FULL_BYTES = 1 << 16
"""As much as a pipe takes."""
SPARE_BYTES = 16 << 20
"""Of a stream that is in a file, too."""
_CHUNK_BYTES = 1 << 16
_SURE_BYTES = 4096
"""A pipe that can be written takes as much at once (PIPE_BUF)."""


class _ConsoleQueue:
    """One of them, or both, where they are the same.

    Attributes:
        fd: Wait for this, until it can be written.
        is_awaited: The epoll waits for it.
    """

    def __init__(self, descriptor: int, as_line: Callable[[str], bytes]) -> None:
        self._as_line = as_line
        self._own = _opened_again(descriptor)
        self.fd = descriptor if self._own is None else self._own
        self.is_awaited = False
        self._waiting = bytearray()
        self._n_left_out = 0

    @property
    def n_waiting(self) -> int:
        """Bytes that it has not taken yet."""
        return len(self._waiting)

    def write(self, data: bytes, *, is_in_file: bool) -> None:
        """Write it, now or later. ``is_in_file``: it may be left out."""
        if is_in_file and len(self._waiting) + len(data) > SPARE_BYTES:
            self._n_left_out += len(data)
            return
        self._waiting += data
        self.flush()

    def flush(self) -> None:
        """Write as much as is taken now; it is lost where nothing ever is (a closed terminal)."""
        self._flush()
        if self._n_left_out and not self._waiting:
            text = (
                f"{self._n_left_out / (1 << 20):.1f} MiB of the ranks' output are missing above: "
                "the reader of this console paused, and the ranks did not wait for it. All of it "
                "is in their files"
            )
            self._n_left_out = 0
            self._waiting += self._as_line(text)
            self._flush()

    def _flush(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: self._send(self._waiting[:_CHUNK_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._waiting.clear()
            self._n_left_out = 0

    def _send(self, data: bytearray) -> int:
        if self._own is not None:
            return os.write(self._own, data)
        if not wait_for.writable(self.fd, 0.0):
            raise BlockingIOError
        return os.write(self.fd, data[:_SURE_BYTES])

    def close(self) -> None:
        """Nothing more will be written."""
        if self._own is not None:
            os.close(self._own)


def _opened_again(descriptor: int) -> int | None:
    """The same terminal or pipe, but a write does not wait; None: it cannot be opened, or is none.

    To make ``descriptor`` non-blocking would change it for every process that has it.
    """
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
            return os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:  # it is another user's, or closed
        pass
    return None


def _plain_line(text: str) -> bytes:
    return text.encode() + b"\n"


class Consoles:
    """All of them; for one thread.

    Attributes:
        cut: Descriptors whose last line has no end yet.
        as_line: Makes a line of the launcher's log.
    """

    def __init__(self, epoll: select.epoll) -> None:
        self.cut: set[int] = set()
        self.as_line: Callable[[str], bytes] = _plain_line
        self._epoll = epoll
        self._of: dict[int, _ConsoleQueue] = {}
        self._same: dict[tuple[int, int], _ConsoleQueue] = {}

    def write(self, descriptor: int, data: bytes, *, is_in_file: bool = False) -> None:
        """Write to the launcher's stdout or stderr; see :meth:`_ConsoleQueue.write`."""
        (self.cut.discard if data.endswith(b"\n") else self.cut.add)(descriptor)
        console = self._console(descriptor)
        console.write(data, is_in_file=is_in_file)
        self._await(console)

    def is_full(self, descriptor: int) -> bool:
        """Whoever has its output in no file waits."""
        return self._console(descriptor).n_waiting > FULL_BYTES

    @property
    def is_done(self) -> bool:
        """Nothing waits to be taken."""
        return not any(console.n_waiting for console in self._of.values())

    @property
    def is_awaited(self) -> bool:
        """One is written to when its reader goes on. Readable by any thread."""
        return any(console.is_awaited for console in [*self._of.values()])

    def may_be_written(self, fd: int) -> None:
        """Epoll says so of ``fd``."""
        for console in self._of.values():
            if console.is_awaited and console.fd == fd:
                console.flush()
                self._await(console)

    def close(self) -> None:
        """Nothing more will be written."""
        for console in {*self._of.values()}:
            console.close()

    def _console(self, descriptor: int) -> _ConsoleQueue:
        if descriptor not in self._of:
            console = _ConsoleQueue(descriptor, self.as_line)
            with contextlib.suppress(OSError):
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):  # of which each description has its place
                    same = self._same.setdefault((found.st_dev, found.st_ino), console)
                    if same is not console:
                        console.close()
                        console = same
            self._of[descriptor] = console
        return self._of[descriptor]

    def _await(self, console: _ConsoleQueue) -> None:
        if bool(console.n_waiting) == console.is_awaited:
            return
        with contextlib.suppress(OSError):  # epoll knows no such file: it is tried at each write
            if console.n_waiting:
                self._epoll.register(console.fd, select.EPOLLOUT)
            else:
                self._epoll.unregister(console.fd)
            console.is_awaited = not console.is_awaited
