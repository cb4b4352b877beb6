"""What a rank monitor says: to the launcher, into the events file, to people.

Nothing here waits for a reader, and nothing fails because of one. Lean.
"""

from __future__ import annotations

import json
import os
import sys

from holdfast.host import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from holdfast.host.channel import Channel

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
        self._node = ""
        self._events_path: str | None = None
        self._events_fd = -1

    def configure(self, message: Mapping[str, Any]) -> None:
        """Take over what a "configure" message says of reports."""
        self._level = message["cfg"].get("log_level", self._level)
        self._is_standalone = bool(message.get("standalone"))
        self._node = message["node"]
        self._events_path = message.get("events")

    def tell(self, message: Mapping[str, Any]) -> None:
        """To the launcher; a process that stands alone has none, but waits for "ready"."""
        if not self._is_standalone or message["op"] == "ready":
            self._control.send(message)

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
            self._control.send({"op": "log", "level": level, "text": text})

    def log_restarter_event(self, msg: str, /) -> None:
        """Take one line about a layered restart."""
        self.log("info", msg)

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Append one line to the events file, if there is one."""
        path = self._events_path
        if path is None:
            return
        event = {
            "t": clock.monotonic(),
            "wall": clock.wall(),
            "kind": kind,
            "node": self._node,
            **fields,
        }
        try:
            if self._events_fd < 0:  # most monitors never have anything to write
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._events_fd = os.open(path, flags, 0o644)
            os.write(self._events_fd, json.dumps(event, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            self.log("error", f"cannot write to {path}: {error.strerror}")
