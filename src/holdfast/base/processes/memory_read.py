"""Read files that lie in the memory of other processes, in a process of its own.

``/proc/PID/environ``, ``cmdline`` and ``maps`` make a reader wait as long as a thread of that
process is stuck in the kernel with the lock of its memory: for ever, in a dead driver or file
system. So nobody who is needed reads them. A reader that waits too long is ended, and the next one
goes on after the file it was stuck in.
"""

from __future__ import annotations

import os
import signal
import struct

from holdfast.base import clock, wait_for
from holdfast.base.processes.bare_process import start_bare
from holdfast.base.processes.proc import MARKER, ROOT, Process, await_any, stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

READ_S = 0.5
"""How long a reader may take for one file: a healthy process keeps its lock for milliseconds."""
START_S = 10.0
"""How long a reader may take to begin, or may wait for a CPU, on a busy host."""
_END_S = 0.2
"""How long the end of a reader is awaited; one that is stuck is reaped later."""
_CHUNK_BYTES = 1 << 16
_HEADER = struct.Struct("<q")
_NONE = -1
_FILES_MAX = 500
"""For one reader: its command line has a limit."""
_BOOT = "from holdfast.base.processes.memory_read_main import main; main({files!r})"
_lingering: set[int] = set()


class MemoryRead:
    """Some files, read one after the other. Does not wait: see :meth:`step`.

    Args:
        paths: Absolute.
        watch: Called with a descriptor that is readable when :meth:`step` is due, and True; and
            with False, before it is closed.

    Attributes:
        found: What was read, by path; None: it could not be read, or its reader was stuck.
        is_done: No more will come.
    """

    def __init__(
        self, paths: Sequence[str], watch: Callable[[int, bool], None] = lambda *_: None
    ) -> None:
        """Start to read. Where no process is to be had, nothing is read."""
        self.found: dict[str, bytes | None] = {}
        self._left = list(dict.fromkeys(paths))
        self._watch = watch
        self._pid = 0
        self._fd = -1
        self._buffer = b""
        self._begun = False
        self._asked = 0
        self._heard_at = self._deadline = 0.0
        self._start()

    @property
    def is_done(self) -> bool:
        """No more will come."""
        return self._fd < 0

    def fileno(self) -> int:
        """Readable when :meth:`step` is due; -1 if that is over; may be another after a step."""
        return self._fd

    def next_deadline(self) -> float | None:
        """When :meth:`step` is due at the latest."""
        return None if self.is_done else self._deadline

    def step(self) -> None:
        """Take in what there is, and give up a reader that is late."""
        while not self.is_done and wait_for.readable(self._fd, 0.0):
            data = os.read(self._fd, _CHUNK_BYTES)
            if not data:
                if self._begun and self._asked:  # it died
                    self._skip()
                self._end_reader()
                self._start()
                return
            self._take(data)
        if not self.is_done and self._is_late(clock.monotonic()):
            self._skip()
            self._end_reader()
            self._start()

    def _is_late(self, now: float) -> bool:
        """Its time is over. One that waits for a CPU is not stuck in a file: that gets more."""
        if now < self._deadline:
            return False
        if self._begun and now < self._heard_at + START_S:
            seen = stat(self._pid)
            if seen is not None and seen.state == "R":
                self._deadline = now + READ_S
                return False
        return True

    def close(self) -> None:
        """Read no more."""
        self._left.clear()
        self._end_reader()

    def _skip(self) -> None:
        if self._begun and self._left:
            self.found[self._left.pop(0)] = None

    def _start(self) -> None:
        if not self._left:
            return
        reader, writer = os.pipe2(os.O_CLOEXEC)
        env = {name: value for name, value in os.environ.items() if name != MARKER}
        files = self._left[:_FILES_MAX]
        boot = _BOOT.format(files=files)
        try:
            self._pid = start_bare(boot, (writer,), env, quiet=True)
        except OSError:
            self._left.clear()
            os.close(reader)
        else:
            _lingering.add(self._pid)
            self._fd, self._buffer, self._begun = reader, b"", False
            self._asked = len(files)
            self._deadline = clock.monotonic() + START_S
            self._watch(reader, True)
        finally:
            os.close(writer)

    def _take(self, data: bytes) -> None:
        self._buffer += data
        if not self._begun:
            self._begun, self._buffer = True, self._buffer[1:]
        self._heard_at = clock.monotonic()
        self._deadline = self._heard_at + READ_S
        while self._asked and len(self._buffer) >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + max(0, size)
            if len(self._buffer) < end:
                break
            text = None if size == _NONE else self._buffer[_HEADER.size : end]
            self.found[self._left.pop(0)] = text
            self._asked -= 1
            self._buffer = self._buffer[end:]

    def _end_reader(self) -> None:
        if self._fd < 0:
            return
        self._watch(self._fd, False)
        os.close(self._fd)
        self._fd = -1
        if not self._begun:  # it died before its first word: another one would, too
            self._left.clear()
        _end(self._pid)


def read_all(paths: Sequence[str]) -> dict[str, bytes | None]:
    """Read files, and wait for that: at most 10 s until it begins, and 0.5 s for each stuck one."""
    reading = MemoryRead(paths)
    while not reading.is_done:
        deadline = reading.next_deadline()
        assert deadline is not None
        wait_for.readable(reading.fileno(), deadline - clock.monotonic())
        reading.step()
    return reading.found


def readers() -> frozenset[int]:
    """Pids of readers that have not ended, or not been reaped."""
    for pid in list(_lingering):
        reap(pid)
    return frozenset(_lingering)


def reap(pid: int) -> None:
    """Reap a reader if it has ended, or note that somebody did."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            return
    except ChildProcessError:
        pass
    _lingering.discard(pid)


def forget(pid: int) -> bool:
    """Somebody else has reaped ``pid``, which may be another process's soon; was it a reader?"""
    was_reader = pid in _lingering
    _lingering.discard(pid)
    return was_reader


def environ_path(pid: int, root: str = ROOT) -> str:
    """Its environment."""
    return f"{root}/{pid}/environ"


def command_line_path(pid: int, root: str = ROOT) -> str:
    """Words it was started with."""
    return f"{root}/{pid}/cmdline"


def maps_path(pid: int, root: str = ROOT) -> str:
    """What is mapped into its memory."""
    return f"{root}/{pid}/maps"


def marker(environ: bytes | None) -> str:
    """What an environment says of our marker; "" where it says nothing."""
    needle = b"\0" + f"{MARKER}=".encode()
    _, _, rest = (b"\0" + (environ or b"")).partition(needle)
    return rest.partition(b"\0")[0].decode(errors="replace")


def words(command_line: bytes | None) -> list[str]:
    """Words of a command line; none where it has none, or could not be read."""
    return [word.decode(errors="replace") for word in (command_line or b"").split(b"\0")[:-1]]


def mapped_files(maps: bytes | None) -> list[str]:
    """Files in a memory, each as often as it is mapped; none where that could not be read."""
    lines = (maps or b"").decode(errors="replace").splitlines()
    return [fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6]


def _end(pid: int) -> None:
    """SIGKILL, which ends one that is stuck as well, unless the kernel does not let it."""
    if pid not in _lingering:  # reaped by others
        return
    try:
        os.kill(pid, signal.SIGKILL)  # ours and not reaped, so its pid is nobody else's
        held = Process(pid)
    except OSError:
        pass
    else:
        await_any([held], _END_S)
        held.close()
    reap(pid)
