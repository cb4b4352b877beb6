"""What a rank monitor says: to the launcher, and to people.

Nothing here waits for a reader, and nothing fails because of one.
"""

from __future__ import annotations

import sys

from holdfast.base.pure.codec import encode
from holdfast.watch.pure.monitor_messages import Log, Ready

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.net.channel import Channel
    from holdfast.watch.pure.monitor_messages import Configure, ToLauncher

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Reports:
    """Everything that one monitor says.

    Args:
        control: Connection to the launcher.
    """

    def __init__(self, control: Channel) -> None:
        self._control = control
        self._level = _LEVELS["info"]
        self._is_standalone = False

    def configure(self, config: Configure) -> None:
        """Take over what the configuration says of reports."""
        level = config.cfg.get("log_level")
        self._level = level if isinstance(level, int) else self._level
        self._is_standalone = config.standalone

    def tell(self, message: ToLauncher) -> None:
        """To the launcher; a process that stands alone has none, but waits for Ready."""
        if not self._is_standalone or isinstance(message, Ready):
            self._control.send(encode(message))

    def log(self, level: str, text: str) -> None:
        """Say something at a level, where that is wanted."""
        if _LEVELS[level] < self._level:
            return
        if self._is_standalone:
            try:
                sys.stderr.write(f"holdfast rank monitor: {level.upper()}: {text}\n")
                sys.stderr.flush()
            except OSError:  # nobody reads any more
                pass
        else:
            self.tell(Log(level, text))

    def log_restarter_event(self, msg: str, /) -> None:
        """Take one line about a layered restart: on stdout, for programs that parse it."""
        try:
            sys.stdout.write(f"{msg}\n")
            sys.stdout.flush()
        except OSError:  # nobody reads any more
            pass
