"""Wait for one descriptor. With poll(2): select(2) knows no descriptor above 1023."""

from __future__ import annotations

import select


def readable(descriptor: int, timeout_s: float | None) -> bool:
    """Until it can be read, or is at its end; False: not within ``timeout_s``; None: no bound."""
    return _wait(descriptor, select.POLLIN, None if timeout_s is None else timeout_s * 1e3)


def writable(descriptor: int) -> None:
    """Until it can be written, or never will be."""
    _wait(descriptor, select.POLLOUT, None)


def _wait(descriptor: int, what: int, timeout_ms: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, what)
    return bool(poll.poll(timeout_ms))
