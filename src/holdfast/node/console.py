"""The launcher's own words: log lines that never make it wait for a slow terminal."""

from __future__ import annotations

import logging

from holdfast.base.pure.printable import printable
from holdfast.node.processes.output import OutputPump

LOGGER = logging.getLogger("holdfast")
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
            line = printable(self.format(record)) + "\n"  # with words of ranks in it
        except Exception:  # noqa: BLE001 - logging's contract: a bad record must not end the program
            self.handleError(record)
            return
        self._pump.write(self._descriptor, line.encode(errors="replace"))
