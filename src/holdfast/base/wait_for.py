"""Wait for descriptors. With poll(2): select(2) knows no descriptor above 1023."""

from __future__ import annotations

import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: The longest that poll(2) and epoll can be asked for (an int of milliseconds, 24 days): a longer
#: wait wakes once in between.
LONGEST_S = (2**31 - 1) // 1000


def readable(descriptor: int, timeout_s: float | None) -> bool:
    """Until it can be read, or is at its end; False: not within ``timeout_s``; None: no bound."""
    return any_readable([descriptor], timeout_s)


def any_readable(descriptors: Iterable[int], timeout_s: float | None) -> bool:
    """Until one of them can be read, or is at its end; False: none within ``timeout_s``."""
    return _wait(descriptors, select.POLLIN, timeout_s)


def writable(descriptor: int, timeout_s: float | None = None) -> bool:
    """Until it can be written, or never will be; False: not within ``timeout_s``."""
    return _wait([descriptor], select.POLLOUT, timeout_s)


def milliseconds(timeout_s: float) -> float:
    """As poll(2) takes them: not negative, which would mean for ever, nor too many for it."""
    return min(max(0.0, timeout_s), LONGEST_S) * 1e3


def _wait(descriptors: Iterable[int], events: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, events)
    return bool(poll.poll(None if timeout_s is None else milliseconds(timeout_s)))
