"""Keep a TCP port free until the process that gets its number listens on it.

A bound socket that does not listen holds the number: the kernel gives it to no server that wants
"any port" and to no outgoing connection, while a server that sets SO_REUSEADDR (torch's TCPStore
does, as nearly every server) may bind and listen on it. This closes the race between "this port was
free" and "rank 0 listens", which a bind-and-close leaves open.
"""

from __future__ import annotations

import contextlib
import errno

from holdfast.base import clock, wait_for
from holdfast.net.tcp import bound_socket

NEIGHBOURS = 2
"""Ports after the reserved one that are free when it is chosen: some trainers listen there too."""
_ATTEMPTS = 64
_LOOK_S = 0.001


class ReservedPort:
    """A port that stays reserved until :meth:`release`."""

    def __init__(self) -> None:
        """Choose a free port, with free neighbours if there is such a place.

        Raises:
            OSError: No port is free.
        """
        self._socket = bound_socket(0)
        for _ in range(_ATTEMPTS):
            if _neighbours_are_free(self.number):
                break
            self._socket.close()
            self._socket = bound_socket(0)

    @property
    def number(self) -> int:
        """The port."""
        return int(self._socket.getsockname()[1])

    def wait_until_listened_on(self, within_s: float) -> bool:
        """Until a process listens on it; whether it was within the time.

        The kernel has no event for that, so it is looked at, each millisecond.
        """
        give_up_at = clock.monotonic() + within_s
        while not self._is_listened_on():
            left_s = give_up_at - clock.monotonic()
            if left_s <= 0:
                return False
            wait_for.any_readable((), min(_LOOK_S, left_s))
        return True

    def _is_listened_on(self) -> bool:
        """Another socket that is only bound would not be in the way: see above."""
        try:
            bound_socket(self.number).close()
        except OSError as error:
            return error.errno == errno.EADDRINUSE
        return False

    def release(self) -> None:
        """Give the number back. Who listens on it is not disturbed."""
        self._socket.close()


def _neighbours_are_free(port: int) -> bool:
    with contextlib.ExitStack() as stack:
        for neighbour in range(port + 1, port + 1 + NEIGHBOURS):
            try:
                stack.enter_context(bound_socket(neighbour))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    return False
                raise
            except OverflowError:  # beyond 65535
                return False
    return True
