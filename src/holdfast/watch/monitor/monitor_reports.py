"""Messages of a rank monitor to its launcher, and lines of its log.

Nothing here waits for a reader, and nothing fails because of one.
"""

from __future__ import annotations

import sys

from holdfast.base.pure.codec import encode
from holdfast.watch.pure.monitor_messages import MonitorLog, MonitorReady

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.net.channel import Channel
    from holdfast.watch.pure.monitor_messages import ConfigureMonitor, ToLauncher

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Reports:
    """All messages and lines of one monitor; ``control``: its connection to the launcher."""

    def __init__(self, control: Channel) -> None:
        self._control = control
        self._level = _LEVELS["info"]
        self._is_standalone = False

    def configure(self, config: ConfigureMonitor) -> None:
        """Take over the log level, and whether there is a launcher."""
        level = config.cfg.get("log_level")
        self._level = level if isinstance(level, int) else self._level
        self._is_standalone = config.standalone

    def send(self, message: ToLauncher) -> None:
        """To the launcher; without one, the process that started it waits for Ready alone."""
        if not self._is_standalone or isinstance(message, MonitorReady):
            self._control.send(encode(message))

    def log(self, level: str, text: str) -> None:
        """Log a line, if its level is wanted."""
        if _LEVELS[level] < self._level:
            return
        if self._is_standalone:
            try:
                sys.stderr.write(f"holdfast rank monitor: {level.upper()}: {text}\n")
                sys.stderr.flush()
            except OSError:  # its reader has gone
                pass
        else:
            self.send(MonitorLog(level, text))

    def log_restarter_event(self, msg: str, /) -> None:
        """Take one line about a layered restart: on stdout, for programs that parse it."""
        try:
            sys.stdout.write(f"{msg}\n")
            sys.stdout.flush()
        except OSError:  # its reader has gone
            pass
