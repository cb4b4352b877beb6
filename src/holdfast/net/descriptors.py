"""One epoll: the descriptors that are waited for, and a callback for each."""

from __future__ import annotations

import select

from holdfast.base import wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Descriptors:
    """Waits, and calls back.

    Attributes:
        epoll: For descriptors that are registered otherwise than by :meth:`watch`: to be called
            (:meth:`call`), or only to wake the loop.
    """

    __slots__ = ("_callbacks", "epoll")

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever ``fd`` can be read or is at its end."""
        self.epoll.register(fd, select.EPOLLIN)
        self.call(fd, callback)

    def call(self, fd: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` for a descriptor that is registered in ``epoll`` already."""
        self._callbacks[fd] = callback

    def forget(self, fd: int) -> None:
        """Watch ``fd`` no more; to be called before it is closed."""
        if self._callbacks.pop(fd, None) is not None:
            try:  # noqa: SIM105 - contextlib is slow to import
                self.epoll.unregister(fd)
            except OSError:
                pass

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until something is ready or ``timeout_s`` are over; ``None``: without end."""
        bound_s = timeout_s and min(timeout_s, wait_for.LONGEST_S)
        # A stopped process (SIGSTOP, a frozen control group) that goes on finds epoll_wait(2)
        # interrupted, and Python does not look again where the time has passed meanwhile.
        ready = self.epoll.poll(bound_s) or (bound_s and self.epoll.poll(0)) or ()
        for fd, _ in ready:
            callback = self._callbacks.get(fd)
            # None: forgotten by one before it, or registered only to wake the loop.
            if callback is not None:
                callback()
