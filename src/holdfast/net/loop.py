"""One thread, one epoll: waits for descriptors, signals, other threads and one deadline."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from holdfast.base import clock, wait_for
from holdfast.net.descriptors import Descriptors

if TYPE_CHECKING:
    from typing_extensions import Self


def _noted(_signum: int, _frame: FrameType | None) -> None:
    """The wake-up descriptor has the number already."""


class Loop(Descriptors):
    """Waits for things and calls back. Use as a context manager; main thread only."""

    def __init__(self) -> None:
        super().__init__()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._from_threads: deque[Callable[[], None]] = deque()
        self._closing = threading.Lock()
        self._is_closed = False
        self._old_wakeup = -1
        self._old_handlers: dict[int, object] = {}
        self._on_signal: dict[int, Callable[[int], None]] = {}
        self._old_mask: set[int] = set()
        self._stopped = False

    def __enter__(self) -> Self:
        self._old_wakeup = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self.watch(self._wake_read, self._on_wake)
        return self

    def __exit__(self, *_exc: object) -> None:
        # Blocked first: the old handler may be one that ends the process.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._old_mask & set(self._old_handlers))
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)  # type: ignore[arg-type] # from signal() itself
        signal.set_wakeup_fd(self._old_wakeup)
        self.epoll.close()
        with self._closing:
            self._is_closed = True
            os.close(self._wake_read)
            os.close(self._wake_write)

    def on_signals(self, signums: Iterable[int], callback: Callable[[int], None]) -> None:
        """Call ``callback`` with the number of each of these signals, outside the handler.

        SIGHUP stays ignored if it is: the user said nohup. None stays blocked, as all are in a
        process that was started by a thread with blocked signals.
        """
        for signum in signums:
            if signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN:
                continue
            self._old_handlers[signum] = signal.signal(signum, _noted)
            self._on_signal[signum] = callback
            self._old_mask |= signal.pthread_sigmask(signal.SIG_UNBLOCK, [signum])

    def run(self, next_deadline: Callable[[], float | None], on_time: Callable[[], None]) -> None:
        """Until :meth:`stop`: wait and call back; ``on_time`` when the deadline has come."""
        while not self._stopped:
            deadline = next_deadline()
            self.wait(None if deadline is None else max(0.0, deadline - clock.monotonic()))
            if deadline is not None and clock.monotonic() >= deadline:
                on_time()

    def stop(self) -> None:
        """Let :meth:`run` return after the current callback."""
        self._stopped = True

    def signalled_before(
        self, descriptor: int, signums: Iterable[int], within_s: float = math.inf
    ) -> bool:
        """Wait until one of these has come, or ``descriptor`` can be read; nothing is called.

        False also where neither was within ``within_s`` seconds.
        """
        wanted, until = {*signums}, clock.monotonic() + within_s
        while not wait_for.readable(descriptor, 0.0):
            left_s = until - clock.monotonic()
            if not wait_for.any_readable([descriptor, self._wake_read], left_s) and left_s <= 0.0:
                return False
            with suppress(BlockingIOError):
                if not wanted.isdisjoint(os.read(self._wake_read, 4096)):
                    return True
        return False

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Have :meth:`run` call ``callback``: for other threads. A closed loop calls nothing."""
        self._from_threads.append(callback)
        with self._closing:  # afterwards the descriptor may be another file's
            if not self._is_closed:
                with suppress(BlockingIOError):  # it has wake-ups enough
                    os.write(self._wake_write, b"\0")  # which is no signal's number

    def _on_wake(self) -> None:
        signums = b""
        with suppress(BlockingIOError):  # of a read only: a process that cannot be forked raises it
            signums = os.read(self._wake_read, 4096)
        for signum in signums:
            if callback := self._on_signal.get(signum):
                callback(signum)
        while self._from_threads:
            self._from_threads.popleft()()
