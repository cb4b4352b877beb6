"""Touch paths that may hang, each in a process of its own, and wait no longer than asked to.

A process that hangs in a dead file system cannot be ended: it is asked to end and left alone, and
as long as it exists its path is not touched again. So hung file systems cost one process per path,
and no waiting.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from holdfast.base import clock, wait_for
from holdfast.base.processes import child
from holdfast.base.processes.bare_process import start_bare
from holdfast.base.processes.proc import Process, await_any

START_S = 10.0
"""How long a process may take to begin, on a busy host."""
_END_S = 1.0
"""How long the end of a process may take that has answered."""
_BOOT = "from holdfast.health.path_look_main import main; main({path!a}, reads={reads})"
_READY = b"r"
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Touch:
    """A path to be touched.

    Attributes:
        path: Absolute.
        bound_s: How long that may take.
        reads: It is a file, whose beginning is read; otherwise its status and, of a folder, its
            first entry.
    """

    path: str
    bound_s: float
    reads: bool = False


@dataclass(frozen=True)
class Answer:
    """What came of it.

    Attributes:
        is_late: It did not come back in time.
        error: ``errno`` of what went wrong; None: no error, or it is not known.
        text: What was read, or what went wrong.
        is_unknown: The path was not touched, for reasons of our own.
    """

    is_late: bool = False
    error: int | None = None
    text: str = ""
    is_unknown: bool = False


class _Look:
    """One process, and the reading end of its pipe."""

    def __init__(self, touch: Touch, boot: str) -> None:
        self.touch = touch
        self.began = False
        self.said = b""
        self.fd, theirs = os.pipe()
        try:
            self.pid = start_bare(boot, (theirs,), os.environ, quiet=True)
        except OSError:
            os.close(self.fd)
            raise
        finally:
            os.close(theirs)
        self.deadline = clock.monotonic() + START_S

    def hear(self) -> bool:
        """Read what it says; whether that was all."""
        data = os.read(self.fd, _CHUNK_BYTES)
        if not self.began and data.startswith(_READY):
            self.began, data = True, data[1:]
            self.deadline = clock.monotonic() + self.touch.bound_s
            self.said += data
            return False
        self.said += data
        return not data

    def answer(self) -> Answer:
        """After its last word."""
        try:
            told = json.loads(self.said)
        except ValueError:
            return Answer(text="the process that touched it died", is_unknown=True)
        return Answer(error=told.get("errno"), text=told["text"])


class PathLook:
    """Touches paths. Not for two threads at once."""

    def __init__(self, boot: str = _BOOT) -> None:
        self._boot = boot
        self._hung: dict[Touch, int] = {}
        """Processes that did not come back."""

    def touch(self, touches: Iterable[Touch]) -> dict[Touch, Answer]:
        """All of them at once; returns when all have answered or are late."""
        answers: dict[Touch, Answer] = {}
        looks: dict[int, _Look] = {}
        poll = select.poll()
        for touch in touches:
            if self._still_hangs(touch):
                text = f"a look before this one still hangs (process {self._hung[touch]})"
                answers[touch] = Answer(is_late=True, text=text)
                continue
            try:
                look = _Look(touch, self._boot.format(path=touch.path, reads=touch.reads))
            except OSError as error:
                answers[touch] = Answer(text=f"no process to touch it: {error}", is_unknown=True)
                continue
            looks[look.fd] = look
            poll.register(look.fd, select.POLLIN)
        while looks:
            left_s = min(look.deadline for look in looks.values()) - clock.monotonic()
            for fd, _ in poll.poll(wait_for.milliseconds(left_s)):
                if looks[fd].hear():
                    look = looks.pop(fd)
                    answers[look.touch] = look.answer()
                    self._end(look, poll, _END_S)
            now = clock.monotonic()
            for look in [look for look in looks.values() if look.deadline <= now]:
                del looks[look.fd]
                answers[look.touch] = _late(look)
                self._end(look, poll, 0.0)
        return answers

    def _end(self, look: _Look, poll: select.poll, bound_s: float) -> None:
        poll.unregister(look.fd)
        os.close(look.fd)
        if bound_s == 0.0:
            child.send_signal(look.pid, signal.SIGKILL)
        else:
            with contextlib.suppress(ProcessLookupError), _hold(look.pid) as process:
                await_any([process], bound_s)
        self._hung[look.touch] = look.pid
        self._still_hangs(look.touch)

    def _still_hangs(self, touch: Touch) -> bool:
        pid = self._hung.get(touch)
        if pid is None:
            return False
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:  # another thread has reaped it
            pass
        del self._hung[touch]
        return False


def _late(look: _Look) -> Answer:
    if not look.began:
        text = f"the process that touches it did not begin within {START_S:g} s"
        return Answer(text=text, is_unknown=True)
    return Answer(is_late=True, text=f"no answer within {look.touch.bound_s:g} s")


@contextlib.contextmanager
def _hold(pid: int) -> Iterator[Process]:
    process = Process(pid)
    try:
        yield process
    finally:
        process.close()
