"""Accept connections, also when no descriptor is free.

A connection that cannot be accepted stays in the queue, and the listener stays readable: a loop
that waits for it would turn without end. So one descriptor is kept in reserve. When there is no
other it is given up to accept, and at once to hang up on who called: a refusal is an answer.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_NONE_FREE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """A listening socket that does not wait.

    Args:
        listener: The socket; closed with this.
        on_trouble: Told, with the error, when connections begin to be refused; not again before one
            was accepted.

    Attributes:
        is_blocked: Even the reserve is gone: nothing can be accepted or refused, and the listener
            must not be waited for until :meth:`retry` says so.
    """

    def __init__(self, listener: socket.socket, on_trouble: Callable[[OSError], None]) -> None:
        """Raises OSError: there is no descriptor for the reserve."""
        listener.setblocking(False)
        self._listener = listener
        self._on_trouble = on_trouble
        self._is_told = False
        self._reserve = _spare()
        self.is_blocked = False

    def fileno(self) -> int:
        """Of the listener."""
        return self._listener.fileno()

    def accept(self) -> socket.socket | None:
        """The next connection; None: there is none, or it was refused."""
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _NONE_FREE:
                self._refuse(error)
            return None
        self._is_told = False
        return connection

    def retry(self) -> bool:
        """A descriptor may be free now: whether the listener may be waited for (again)."""
        if self._reserve < 0:
            try:  # noqa: SIM105 - contextlib is slow to import
                self._reserve = _spare()
            except OSError:
                pass
        self.is_blocked = self._reserve < 0
        return not self.is_blocked

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    def _refuse(self, error: OSError) -> None:
        if not self._is_told:
            self._is_told = True
            self._on_trouble(error)
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1
            try:  # noqa: SIM105 - contextlib is slow to import
                self._listener.accept()[0].close()
            except OSError:
                pass
        self.retry()


def _spare() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
