"""A helper process of a launcher, with a control connection: from its start to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.base.processes import child
from holdfast.net.channel import Channel
from holdfast.node.console import LOGGER
from holdfast.node.part import Part

if TYPE_CHECKING:
    from holdfast.net.loop import Loop
    from holdfast.net.pure.frames import Message
    from holdfast.node.processes.controlled_process import ControlledProcess


class HelperProcess(Part):
    """At most one process at a time; a subclass starts it, and takes its messages.

    ``name`` is its name in log lines.
    """

    name = ""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._pid = 0
        self._peer: Channel | None = None

    def _connect(self, process: ControlledProcess) -> None:
        """This process runs now."""
        self._pid = process.pid
        # Where it hangs up, its end is reported when it is reaped.
        self._peer = Channel(process.control, self._loop, self._on_message, lambda _: None)
        self._peer.report = self._on_malformed

    def _on_message(self, _peer: Channel, frame: Message) -> None:
        raise NotImplementedError

    def _on_malformed(self, _peer: Channel, problem: str) -> None:
        """Its connection is closed, which ends it."""
        LOGGER.warning("%s %s", self.name, problem)

    def _on_end(self, reaped: child.Reaped) -> None:
        """It has ended; its last messages were handled."""

    def pids(self) -> frozenset[int]:
        """The process."""
        return frozenset({self._pid} - {0})

    def died(self, reaped: child.Reaped) -> bool:
        """Note that a process was reaped; whether it was this one."""
        if reaped.pid != self._pid:
            return False
        self._pid, peer = 0, self._peer
        if peer is not None:
            peer.drain()
        if self._peer is peer:  # else its last messages have ended it, and another may be there
            self._disconnect()
            self._on_end(reaped)
        return True

    def end(self) -> None:
        """The job is over: end it; it is reaped with all that is left."""
        self._disconnect()
        if self._pid:
            child.kill(self._pid)
            self._pid = 0

    def _disconnect(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
