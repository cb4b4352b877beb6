"""The launcher's log: its lines never make it wait for a slow terminal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from holdfast.base.pure.common_events import Note
from holdfast.base.pure.json_line import JSON, json_line
from holdfast.base.pure.printable import printable
from holdfast.node.processes.output import OutputPump
from holdfast.node.pure.console_lines import TEXT_FORMAT
from holdfast.watch.pure.monitor_messages import MonitorLog

LOGGER = logging.getLogger("holdfast")
STDOUT, STDERR = 1, 2
_BOX = "holdfast_box"
"""Attribute of a record: its form where it is shown without date and level."""


class PumpHandler(logging.Handler):
    """Hands log lines to the output thread, which writes them between lines of the ranks.

    ``form`` is ``text`` or ``json``; ``cycle`` gives the one that the node has ranks in, -1: none.
    """

    def __init__(
        self,
        pump: OutputPump,
        descriptor: int,
        node: str,
        form: str = "text",
        cycle: Callable[[], int] = lambda: -1,
    ) -> None:
        super().__init__()
        self._pump = pump
        self._descriptor = descriptor
        self._node = node
        self._is_json = form == JSON
        self._cycle = cycle
        self.setFormatter(logging.Formatter(TEXT_FORMAT, defaults={"node": node}))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, soon."""
        try:
            line = self._line(record) + "\n"
        except Exception:  # noqa: BLE001 - logging's contract: a bad record must not end the program
            self.handleError(record)
            return
        is_box = hasattr(record, _BOX) and not self._is_json
        descriptor = STDERR if is_box else self._descriptor
        self._pump.write(descriptor, line.encode(errors="replace"))

    def warning(self, text: str) -> bytes:
        """A line that another thread writes, after the last of the log, too."""
        record = LOGGER.makeRecord(LOGGER.name, logging.WARNING, __file__, 0, text, (), None)
        return self._line(record).encode(errors="replace") + b"\n"

    def _line(self, record: logging.LogRecord) -> str:
        if self._is_json:
            return self._as_json(record)
        if (box := getattr(record, _BOX, None)) is not None:
            return str(box)
        return printable(self.format(record))  # with output of ranks in it

    def _as_json(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        cycle = getattr(record, "cycle", self._cycle())
        return json_line(
            record.created,
            record.levelname,
            self._node,
            printable(text).strip(),
            cycle=cycle if cycle >= 0 else None,
            rank=getattr(record, "rank", None),
        )


def log_note(note: Note | MonitorLog) -> None:
    """Log a line of a machine, or of a helper process."""
    level = logging.getLevelName(note.level.upper())
    LOGGER.log(level if isinstance(level, int) else logging.INFO, "%s", note.text)


def log_error(text: str) -> None:
    """Log an error, for callers that pass a text alone."""
    LOGGER.error("%s", text)


def log_box(text: str, boxed: str, facts: Mapping[str, int]) -> None:
    """Log the report on a failed job: several lines, without dates; one object as JSON.

    ``boxed``: the text as consoles show it. ``facts``: see :func:`facts_of`.
    """
    LOGGER.critical("%s", text, extra={_BOX: boxed, **facts})  # at each level


def facts_of(cycle: int, rank: int | None = None) -> dict[str, int]:
    """The cycle and the rank that a line is about, for ``extra`` of a log call."""
    return {"cycle": cycle} if rank is None else {"cycle": cycle, "rank": rank}
