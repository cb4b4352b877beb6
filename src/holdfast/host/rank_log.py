"""Log lines of a rank that reach the console also in a program that configures no logging.

Without a handler, Python's logging shows warnings without their time, and drops the level info,
at which a rank says that it is monitored, restarted, done. Here such lines go to stderr. As soon as
the program has configured anything of its own (a handler or a level, on our loggers or the root),
the lines go where it says, at the level it says, and nowhere else. No handler is added anywhere.
"""

from __future__ import annotations

import logging
import os
import socket
import sys

_FORMAT = "%(asctime)s [%(levelname)s] [%(node)s]%(rank)s holdfast: %(message)s"
_FALSE_WORDS = ("", "0", "false", "no", "off")


class _RankLogger(logging.Logger):
    """Falls back to the console; becomes the class of loggers that may exist already."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's
        """As configured; where nothing is, from info on."""
        if super().isEnabledFor(level):
            return True
        if self.disabled or self.manager.disable >= level or level < _console_level():
            return False
        return not self.hasHandlers() and not _has_level(self)

    def callHandlers(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's
        """Hand a record to the program's handlers, or else to the console."""
        if self.hasHandlers():
            super().callHandlers(record)
        else:
            _CONSOLE.handle(record)


class _Console(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """One write for a line: lines of several ranks do not mix."""
        stream = sys.stdout if _is_set("NVRX_LOG_TO_STDOUT") else sys.stderr
        if stream is None:  # a program may have closed it
            return
        try:
            rank = os.environ.get("RANK")
            record.rank = f" [rank {rank}]" if rank else ""
            stream.write(f"{self.format(record)}\n")
            stream.flush()
        except Exception:  # noqa: BLE001 - logging's contract: a bad record must not end the program
            self.handleError(record)


def rank_logger(name: str) -> logging.Logger:
    """The logger of this name, which falls back to the console."""
    logger = logging.getLogger(name)
    if type(logger) is logging.Logger:  # one of another class is the program's own business
        logger.__class__ = _RankLogger
    return logger


def _has_level(logger: logging.Logger) -> bool:
    """The program has set a level for it: logging's own is NOTSET, and WARNING for the root."""
    at: logging.Logger | None = logger
    while at is not None and at.parent is not None:
        if at.level != logging.NOTSET:
            return True
        at = at.parent
    return logging.root.level != logging.WARNING


def _console_level() -> int:
    return logging.DEBUG if _is_set("NVRX_LOG_DEBUG") else logging.INFO


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() not in _FALSE_WORDS


_CONSOLE = _Console()
_CONSOLE.setFormatter(logging.Formatter(_FORMAT, defaults={"node": socket.gethostname()}))
