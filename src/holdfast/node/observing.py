"""The observer process of a node, for its launcher.

One that dies is started again, with its port and the incidents that it has notified: at another
port, the probes of an orchestrator would end a healthy job.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from holdfast.base import clock, wait_for
from holdfast.base.processes import child
from holdfast.base.pure.budget import Budget
from holdfast.base.pure.codec import decode, encode
from holdfast.base.pure.common_events import Note
from holdfast.events.observer_messages import FROM_OBSERVER, LAST_HOOKS_S, Notified, Orders, Serving
from holdfast.evidence.pure.failure import describe_exit
from holdfast.node.console import LOGGER, log_note
from holdfast.node.processes.controlled_process import start_observer
from holdfast.node.processes.helper_process import HelperProcess

if TYPE_CHECKING:
    from holdfast.net.channel import Channel
    from holdfast.net.loop import Loop
    from holdfast.net.pure.frames import Message

DEATHS, DEATHS_PERIOD_S = 5, 60.0
"""Of observers that are replaced, within so many seconds."""
_SLACK_S = 2.0
"""For the observer to end the hooks that are late."""


class Observing(HelperProcess):
    """One observer process, with its first ``orders``. Main thread only."""

    name = "the observer process"

    def __init__(self, orders: Orders, loop: Loop, job: str) -> None:
        super().__init__(loop)
        self._orders = orders
        self._job = job
        self._deaths = Budget(DEATHS, DEATHS_PERIOD_S)
        self._start()

    def _start(self) -> None:
        try:
            process = start_observer(encode(self._orders), self._job)
        except OSError as error:
            LOGGER.warning("no metrics and no hooks: no process can be started: %s", error)
            return
        self._connect(process)

    def _note(self, **known: Any) -> None:
        """For the next process, if this one dies."""
        self._orders = Orders(**{**vars(self._orders), **known})

    def _on_end(self, reaped: child.Reaped) -> None:
        how, now = describe_exit(reaped.exit_code), clock.monotonic()
        if self._deaths.take(now):
            LOGGER.warning(
                "the process of metrics and hooks (pid %d) has ended: %s; it is started again",
                *(reaped.pid, how),
            )
            self._note(since=now)
            self._start()
        else:
            LOGGER.warning(
                "no metrics and no hooks any more: their process (pid %d) has ended for the %dth "
                "time within %g s: %s",
                *(reaped.pid, DEATHS + 1, DEATHS_PERIOD_S, how),
            )

    def end(self) -> None:
        """It runs on: see :meth:`close`."""

    def close(self) -> None:
        """All events are written: let it run its last hooks, and end it."""
        self._disconnect()
        if not self._pid:
            return
        try:
            ended = child.end_descriptor(self._pid)
        except ProcessLookupError:  # it has died, and was reaped with all that is left at the end
            self._pid = 0
            return
        if self._orders.wanted.has_hooks:
            wait_for.readable(ended, LAST_HOOKS_S + _SLACK_S)
        child.kill(self._pid)
        wait_for.readable(ended, LAST_HOOKS_S)
        os.close(ended)
        list(child.reap([self._pid]))
        self._pid = 0

    def _on_message(self, _peer: Channel, frame: Message) -> None:
        match decode(FROM_OBSERVER, frame):
            case Note() as note:
                log_note(note)
            case Serving(port):
                self._note(port=port)
            case Notified(incident):
                self._note(notified=(*self._orders.notified, incident))
