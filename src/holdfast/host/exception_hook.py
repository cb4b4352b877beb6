"""End the process at an uncaught exception, without the teardown that can hang for ever."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from types import TracebackType


def install_exception_hook() -> None:
    """From now on, an uncaught exception of the main thread is reported and ends the process.

    Reported as before, by the hook that was there; then the exit code is 1 and neither ``atexit``
    functions nor destructors run (those of process groups wait for dead peers). Interrupts are left
    alone. Does nothing the second time.
    """
    before = sys.excepthook
    if isinstance(before, _Hook):
        return
    sys.excepthook = _Hook(before)


class _Hook:
    def __init__(self, before: object) -> None:
        self._before = before

    def __call__(
        self, kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        if callable(self._before):
            self._before(kind, value, trace)
        if not issubclass(kind, Exception):
            return
        logging.getLogger(__name__).error(
            "uncaught %s: the process ends at once, with exit code 1",
            "".join(traceback.format_exception_only(kind, value)).strip(),
        )
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                continue
        os._exit(1)
