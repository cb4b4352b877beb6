"""Run one command of a user, bounded in time and output, and kill its process group after it.

Its own end counts, not that of its output, which processes that it started may keep open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence

from holdfast.base import clock, wait_for
from holdfast.base.processes import child

NICE = 10
"""Of the command: the ranks of the node come first."""
_CHUNK_BYTES = 1 << 16
_TAIL_BYTES = 4096
_LAST_CHUNKS = 16


class Command:
    """One that runs.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(  # noqa: TID251 - bounded here, in a session of its own
            words,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._tail = b""
        self._reaping = threading.Lock()
        with contextlib.suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICE)

    def kill(self) -> None:
        """End it and its process group."""
        with self._reaping:
            if self._process.returncode is None:
                child.send_signal(self._process.pid, signal.SIGKILL, group=True)

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code; None: it ran longer than this, and was killed."""
        ended = child.end_descriptor(self._process.pid)
        output = self._process.stdout
        assert output is not None
        os.set_blocking(output.fileno(), False)
        give_up_at, open_ones = clock.monotonic() + timeout_s, [output.fileno()]
        try:
            while not wait_for.readable(ended, 0.0):
                left_s = give_up_at - clock.monotonic()
                if left_s <= 0.0:
                    return None
                wait_for.any_readable([ended, *open_ones], left_s)
                if open_ones and not self._read(output.fileno()):
                    open_ones = []
            for _ in range(_LAST_CHUNKS):
                if not (open_ones and self._read(output.fileno())):
                    break
        finally:
            self.kill()
            os.close(ended)
            output.close()
            with self._reaping:
                self._process.wait()
        return self._process.returncode

    def _read(self, output: int) -> bool:
        """Whether there may be more."""
        try:
            data = os.read(output, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        return bool(data)

    @property
    def last_line(self) -> str:
        """Of its output."""
        return "".join(self._tail.decode(errors="replace").strip().splitlines()[-1:])
