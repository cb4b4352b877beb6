"""Read files that may hang, in a process of its own: a launcher or monitor never waits in one.

``/proc/PID/environ``, ``cmdline`` and ``maps`` make a reader wait as long as a thread of that
process is stuck in the kernel with the lock of its memory: for ever, in a dead driver or file
system. A file of such a file system does the same. A reader that waits too long is ended, and the
next one goes on after the file it was stuck in. One that SIGKILL does not end is left behind.
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
    from collections.abc import Callable, Collection, Sequence

READ_S = 0.5
"""For one file in the memory of a process: a healthy one keeps its lock for milliseconds."""
START_S = 10.0
"""How long a reader may take to begin, or may wait for a CPU, on a busy host."""
_END_S = 0.2
"""How long the end of a reader is awaited; one that is stuck is reaped later."""
_CHUNK_BYTES = 1 << 16
_HEADER = struct.Struct("<q")
_FILES_MAX = 500
"""For one reader: its command line has a limit."""
_BOOT = (
    "from holdfast.base.processes.file_read_main import main; main({files!a}, touches={touches})"
)
_lingering: set[int] = set()


class FileRead:
    """Some files, by absolute paths, read one after the other. Does not wait: see :meth:`step`.

    Args:
        paths: Of the files.
        watch: Called with a descriptor that is readable when :meth:`step` is due, and True; and
            with False, before it is closed.
        bound_s: How long a reader may take for one file; None: :data:`READ_S`.
        touches: Look at the status of each path and, of a folder, at its first entry, and read
            nothing.
        awaits_late: Await the end of a late reader, for 0.2 s: most end.

    Attributes:
        found: Contents by path; None: it could not be read, or its reader was stuck.
        errors: ``errno`` by path, where the kernel gave one.
        late: Paths whose reader was stuck.
        problem: Why there is no reader, or what became of the last one; "": nothing went wrong.
        pid: The last reader.
    """

    def __init__(
        self,
        paths: Sequence[str],
        watch: Callable[[int, bool], None] = lambda *_: None,
        *,
        bound_s: float | None = None,
        touches: bool = False,
        awaits_late: bool = True,
    ) -> None:
        """Start to read; :attr:`problem` says where no process is to be had."""
        self.found: dict[str, bytes | None] = {}
        self.errors: dict[str, int] = {}
        self.late: set[str] = set()
        self.problem = ""
        self.pid = 0
        self._left = list(dict.fromkeys(paths))
        self._watch = watch
        self._bound_s = READ_S if bound_s is None else bound_s
        self._touches = touches
        self._end_late_s = _END_S if awaits_late else 0.0
        self._fd = -1
        self._buffer = b""
        self._begun = False
        self._asked = 0
        self._last_read_at = self._deadline = 0.0
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
                self.problem = "the process that touched it died" if self._asked else ""
                self._skip()
                self._end_reader(_END_S)
                self._start()
                return
            self._take(data)
        if not self.is_done and self._is_late(clock.monotonic()):
            if not self._begun:
                self.problem = f"the process that touches it did not begin within {START_S:g} s"
            self.late.update(self._skip())
            self._end_reader(self._end_late_s)
            self._start()

    def _is_late(self, now: float) -> bool:
        """Its time is over. One that waits for a CPU is not stuck in a file: that gets more."""
        if now < self._deadline:
            return False
        if self._begun and now < self._last_read_at + START_S:
            seen = stat(self.pid)
            if seen is not None and seen.state == "R":
                self._deadline = now + self._bound_s
                return False
        return True

    def close(self) -> None:
        """Read no more."""
        self._left.clear()
        self._end_reader(_END_S)

    def _skip(self) -> list[str]:
        """Give up the file that the reader is in; none: it is in no file."""
        if not (self._begun and self._asked):
            return []
        path = self._left.pop(0)
        self.found[path] = None
        return [path]

    def _start(self) -> None:
        if not self._left:
            return
        env = {name: value for name, value in os.environ.items() if name != MARKER}
        files = self._left[:_FILES_MAX]
        boot = _BOOT.format(files=files, touches=self._touches)
        pipe: tuple[int, ...] = ()
        try:
            reader, writer = pipe = os.pipe2(os.O_CLOEXEC)
            self.pid = start_bare(boot, (writer,), env, quiet=True)
        except OSError as error:
            self.problem = f"no process to touch it: {error}"
            self._left.clear()
            for descriptor in pipe:
                os.close(descriptor)
            return
        os.close(writer)
        _lingering.add(self.pid)
        self._fd, self._buffer, self._begun = reader, b"", False
        self._asked = len(files)
        self._deadline = clock.monotonic() + START_S
        self._watch(reader, True)

    def _take(self, data: bytes) -> None:
        self._buffer += data
        if not self._begun:
            self._begun, self._buffer = True, self._buffer[1:]
        self._last_read_at = clock.monotonic()
        self._deadline = self._last_read_at + self._bound_s
        while self._asked and len(self._buffer) >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + max(0, size)
            if len(self._buffer) < end:
                break
            path = self._left.pop(0)
            if size < 0:
                self.found[path], self.errors[path] = None, -size
            else:
                self.found[path] = self._buffer[_HEADER.size : end]
            self._asked -= 1
            self._buffer = self._buffer[end:]

    def _end_reader(self, wait_s: float) -> None:
        if self._fd < 0:
            return
        self._watch(self._fd, False)
        os.close(self._fd)
        self._fd = -1
        if not self._begun:  # it died before its first word: another one would, too
            self._left.clear()
        _end(self.pid, wait_s)


def finish(reads: Collection[FileRead]) -> None:
    """Wait until all are done, side by side."""
    while due := [at for read in reads if (at := read.next_deadline()) is not None]:
        left = [read for read in reads if not read.is_done]
        wait_for.any_readable([read.fileno() for read in left], min(due) - clock.monotonic())
        for read in left:
            read.step()


def read_all(paths: Sequence[str]) -> dict[str, bytes | None]:
    """Read files, and wait for that: at most 10 s until it begins, and 0.5 s for each stuck one."""
    reading = FileRead(paths)
    finish([reading])
    return reading.found


def readers() -> frozenset[int]:
    """Pids of readers that have not ended, or not been reaped."""
    for pid in list(_lingering):
        reap(pid)
    return frozenset(_lingering)


def reap(pid: int) -> None:
    """Reap a reader if it has ended, or note that other code did."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            return
    except ChildProcessError:
        pass
    _lingering.discard(pid)


def forget(pid: int) -> bool:
    """Other code has reaped ``pid``, which may be another process's soon; was it a reader?"""
    was_reader = pid in _lingering
    _lingering.discard(pid)
    return was_reader


def environ_path(pid: int, root: str = ROOT) -> str:
    """Its environment."""
    return f"{root}/{pid}/environ"


def command_line_path(pid: int) -> str:
    """Words it was started with."""
    return f"{ROOT}/{pid}/cmdline"


def maps_path(pid: int) -> str:
    """The files that are mapped into its memory."""
    return f"{ROOT}/{pid}/maps"


def marker(environ: bytes | None) -> str:
    """The marker of holdfast in an environment; "": it has none."""
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


def _end(pid: int, wait_s: float) -> None:
    """SIGKILL, which ends one that is stuck as well, unless the kernel does not let it."""
    if pid not in _lingering:  # reaped by others
        return
    try:
        os.kill(pid, signal.SIGKILL)  # a child that is not reaped: its pid is not used again
        held = Process(pid)
    except OSError:
        pass
    else:
        await_any([held], wait_s)
        held.close()
    reap(pid)
