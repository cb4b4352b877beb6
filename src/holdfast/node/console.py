"""The launcher's log: its lines never make it wait for a slow terminal."""

from __future__ import annotations

import logging

from holdfast.base.pure.common_events import Note
from holdfast.base.pure.printable import printable
from holdfast.node.processes.output import OutputPump
from holdfast.watch.pure.monitor_messages import MonitorLog

LOGGER = logging.getLogger("holdfast")
STDOUT, STDERR = 1, 2
_FORMAT = "%(asctime)s [%(levelname)s] [%(node)s] holdfast: %(message)s"


class PumpHandler(logging.Handler):
    """Hands log lines to the output thread, which writes them between lines of the ranks."""

    def __init__(self, pump: OutputPump, descriptor: int, node: str) -> None:
        super().__init__()
        self._pump = pump
        self._descriptor = descriptor
        self.setFormatter(logging.Formatter(_FORMAT, defaults={"node": node}))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, soon."""
        try:
            line = printable(self.format(record)) + "\n"  # with output of ranks in it
        except Exception:  # noqa: BLE001 - logging's contract: a bad record must not end the program
            self.handleError(record)
            return
        self._pump.write(self._descriptor, line.encode(errors="replace"))


def log_note(note: Note | MonitorLog) -> None:
    """Log a line of a machine, or of a helper process."""
    level = logging.getLevelName(note.level.upper())
    LOGGER.log(level if isinstance(level, int) else logging.INFO, "%s", note.text)


def log_error(text: str) -> None:
    """Log an error, for callers that pass a text alone."""
    LOGGER.error("%s", text)
