"""The lock behind ``call.atomic()``: its sections exclude each other, and the abort of a restart.

A reentrant lock for the program's threads. The thread that carries out a restart takes it too::

    suspend_entry   from now on a thread that is outside waits at the door
    try_own         True as soon as no section is open: the abort may begin
    resume_entry    the function has been left

The main thread can be interrupted while it waits at the door, and never between there and the end
of the section: a signal handler asks :attr:`Atomic.is_owned`, which changes together with the lock,
in C code. So the door is a lock as well; an ``Event`` that is interrupted may be left broken.

A section costs about 0.4 microseconds.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from holdfast.base.clock import monotonic


class Atomic(contextlib.ContextDecorator):
    """A context manager and decorator, used again and again and nested; see the module.

    ``on_left`` is called by the thread that leaves its last section while entry is suspended.
    """

    def __init__(self, on_left: Callable[[], None] | None = None) -> None:
        self.on_left = on_left
        self.reset()

    def reset(self) -> None:
        """No section is open: for a forked child, in which the thread that had one is missing."""
        self._lock = threading.RLock()
        self._door = threading.RLock()
        self._is_suspended = False

    # ------------------------------------------------------------ the program's threads

    def __enter__(self) -> None:
        if self._is_suspended and not self.is_owned:
            self._door.acquire()
            self._door.release()
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
        # Looked at after the release: `try_own` is called after `suspend_entry` has set it.
        if self._is_suspended and not self.is_owned and self.on_left is not None:
            self.on_left()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        """Enter a section, as ``threading.RLock.acquire`` does; False: it was not free in time."""
        until = monotonic() + timeout
        if self._is_suspended and not self.is_owned:
            if not self._door.acquire(blocking, timeout):
                return False
            self._door.release()
            timeout = timeout if timeout < 0 else max(0.0, until - monotonic())
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        """Leave the section; RuntimeError: this thread is in none."""
        self.__exit__(None, None, None)

    @property
    def is_owned(self) -> bool:
        """The calling thread is in a section, or passes the door."""
        return self._owns_lock() or bool(self._door._is_owned())  # type: ignore[attr-defined]  # noqa: SLF001

    @staticmethod
    def is_entered_by(frame: FrameType) -> bool:
        """``frame`` enters a section: its thread waits, or is about to be inside."""
        return frame.f_code in _ENTRIES

    # ------------------------------------------------------------ the thread of the restart

    def suspend_entry(self) -> None:
        """Let no thread begin a section; those that are inside may nest more."""
        if not self._is_suspended:
            self._door.acquire()
            self._is_suspended = True

    def try_own(self) -> bool:
        """Own the lock if no other thread is in a section; after :meth:`suspend_entry`."""
        return self._owns_lock() or self._lock.acquire(blocking=False)

    def resume_entry(self) -> None:
        """Undo both; by the thread that called them."""
        if self._is_suspended:
            self._is_suspended = False
            if self._owns_lock():
                self._lock.release()
            self._door.release()

    def _owns_lock(self) -> bool:
        # What `threading.Condition` asks of a lock. A field beside it would be set too late.
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # noqa: SLF001


_ENTRIES = (Atomic.__enter__.__code__, Atomic.acquire.__code__)
