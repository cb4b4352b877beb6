"""Log lines of a rank that reach the console also in a program that configures no logging.

Without a handler, Python's logging shows warnings without their time, and drops the level info,
at which a rank says that it is monitored, restarted, done. Here such lines go to stderr. As soon as
the program has configured anything of its own (a handler or a level, on these loggers or the root),
the lines go where it says, at the level it says, and nowhere else. No handler is added anywhere.

Settings of a program for ``nvrx`` or ``nvidia_resiliency_ext``, the loggers of the other
implementation, count for holdfast's: a handler there gets its records, a level there decides where
none is set for ``holdfast``, and ``propagate = False`` there keeps records from the root. They are
looked up by name, those of ``holdfast.inprocess.wrap`` as ``nvidia_resiliency_ext.inprocess.wrap``
and its parents; nothing is imported or made.
"""

from __future__ import annotations

import logging
import os
import socket
import sys

from holdfast.base.pure.json_line import JSON, VARIABLE, json_line
from holdfast.base.pure.switches import is_set

_FORMAT = "%(asctime)s [%(levelname)s] [%(node)s]%(rank)s holdfast: %(message)s"
_OURS, _THEIRS = "holdfast", "nvidia_resiliency_ext"


class _RankLogger(logging.Logger):
    """Falls back to the console; becomes the class of loggers that may exist already."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's
        """As configured; where nothing is, from info on."""
        if self.disabled or self.manager.disable >= level:
            return False
        by_other_name = next((o.level for o in _other_names(self) if o.level), logging.NOTSET)
        if by_other_name and not _level_set(self):
            return level >= by_other_name
        if super().isEnabledFor(level):
            return True
        if level < _console_level() or self.hasHandlers():
            return False
        return not _level_set(self) and logging.root.level == logging.WARNING

    def hasHandlers(self) -> bool:  # noqa: N802 - logging's
        """Whether the program has a handler that gets the records of holdfast."""
        return super().hasHandlers() or any(other.handlers for other in _other_names(self))

    def callHandlers(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's
        """Hand a record to the program's handlers, or else to the console."""
        if not self.hasHandlers():
            _CONSOLE.handle(record)
            return
        others = _other_names(self)
        for handler in [handler for other in others for handler in other.handlers]:
            if record.levelno >= handler.level:
                handler.handle(record)
        if super().hasHandlers() and all(other.propagate for other in others):
            super().callHandlers(record)


class _Console(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """One write for a line: lines of several ranks do not mix."""
        stream = sys.stdout if is_set(os.environ, "NVRX_LOG_TO_STDOUT") else sys.stderr
        if stream is None:  # a program may have closed it
            return
        try:
            rank = os.environ.get("RANK")
            record.rank = f" [rank {rank}]" if rank else ""
            is_json = os.environ.get(VARIABLE) == JSON
            stream.write(f"{_as_json(record, rank) if is_json else self.format(record)}\n")
            stream.flush()
        except Exception:  # noqa: BLE001 - logging's contract: a bad record must not end the program
            self.handleError(record)


def _as_json(record: logging.LogRecord, rank: str | None) -> str:
    text = record.getMessage()
    if record.exc_info:
        text += "\n" + logging.Formatter().formatException(record.exc_info)
    cycle = os.environ.get("NVRX_CYCLE", "")
    return json_line(
        record.created,
        record.levelname,
        _NODE,
        text,
        cycle=int(cycle) if cycle.isdecimal() else None,
        rank=int(rank) if rank and rank.isdecimal() else None,
    )


def rank_logger(name: str) -> logging.Logger:
    """The logger of this name, which falls back to the console."""
    logger = logging.getLogger(name)
    if type(logger) is logging.Logger:  # one of another class is the program's own business
        logger.__class__ = _RankLogger
    return logger


def _level_set(logger: logging.Logger) -> int:
    """The level that the program has set for it or one above it, but the root; NOTSET: none."""
    at: logging.Logger | None = logger
    while at is not None and at.parent is not None:
        if at.level != logging.NOTSET:
            return at.level
        at = at.parent
    return logging.NOTSET


def _other_names(logger: logging.Logger) -> list[logging.Logger]:
    """Loggers of the other implementation that stand for this one, the most specific first."""
    name = _THEIRS + logger.name.removeprefix(_OURS)
    names = []
    while name:
        names.append(name)
        name = name.rpartition(".")[0]
    known = logging.root.manager.loggerDict
    found = [known.get(name) for name in (*names, "nvrx")]
    return [other for other in found if isinstance(other, logging.Logger)]


def _console_level() -> int:
    return logging.DEBUG if is_set(os.environ, "NVRX_LOG_DEBUG") else logging.INFO


_NODE = socket.gethostname()
_CONSOLE = _Console()
_CONSOLE.setFormatter(logging.Formatter(_FORMAT, defaults={"node": _NODE}))
