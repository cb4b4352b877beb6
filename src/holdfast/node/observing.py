"""The observer process of a node, for its launcher: started, heard, and let go at the end.

One that dies is started again, with what it has told of itself: at its old port, so that probes
of an orchestrator do not end a job that is well.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base import clock, wait_for
from holdfast.base.processes import child
from holdfast.base.pure.budget import Budget
from holdfast.base.pure.codec import decode, encode
from holdfast.base.pure.common_events import Note
from holdfast.events.observer_messages import FROM_OBSERVER, LAST_HOOKS_S, Notified, Orders, Serving
from holdfast.evidence.pure.failure import describe_exit
from holdfast.net.channel import Channel
from holdfast.node.console import LOGGER
from holdfast.node.part import Part
from holdfast.node.processes.controlled_process import start_observer

if TYPE_CHECKING:
    from holdfast.events.observer_messages import Wanted
    from holdfast.net.loop import Loop
    from holdfast.net.pure.frames import Message

DEATHS, DEATHS_PERIOD_S = 5, 60.0
"""Of observers that are replaced, within so many seconds."""
_SIGKILL = 9
_SLACK_S = 2.0
"""For the observer to end the hooks that are late."""


class Observing(Part):
    """One observer process. Main thread only.

    Args:
        wanted: What it does.
        loop: Where its messages arrive.
        job: Marks its environment.
        run_dir: Folder of events and incidents.
        runtime_dir: Folder of pages.
        nproc: Ranks of this node.
        node: Name of this host.
        run_id: Name of the job for people.
    """

    def __init__(
        self,
        wanted: Wanted,
        *,
        loop: Loop,
        job: str,
        run_dir: Path,
        runtime_dir: str,
        nproc: int,
        node: str,
        run_id: str,
    ) -> None:
        self._wanted = wanted
        self._loop = loop
        self._job = job
        self._about = str(run_dir), runtime_dir, nproc, node, run_id, tuple(sys.path)
        self._port = 0
        self._notified: tuple[str, ...] = ()
        self._deaths = Budget(DEATHS, DEATHS_PERIOD_S)
        self._pid = 0
        self._peer: Channel | None = None
        self._start(since=None)

    def _start(self, since: float | None) -> None:
        orders = Orders(self._wanted, *self._about, self._port, self._notified, since)
        try:
            process = start_observer(encode(orders), self._job)
        except OSError as error:
            LOGGER.warning("no metrics and no hooks: no process can be started: %s", error)
            return
        self._pid = process.pid
        self._peer = Channel(process.control, self._loop, self._on_message, self._on_closed)
        self._peer.report = lambda _, what: LOGGER.warning("the observer process %s", what)

    def pids(self) -> frozenset[int]:
        """The process."""
        return frozenset({self._pid} - {0})

    def died(self, reaped: child.Reaped) -> bool:
        """Note that a process was reaped; whether it was ours."""
        if reaped.pid != self._pid:
            return False
        self._pid = 0
        if self._peer is not None:
            self._peer.drain()  # what it has still said
        self._hang_up()
        how, now = describe_exit(reaped.exit_code), clock.monotonic()
        if self._deaths.take(now):
            LOGGER.warning(
                "the process of metrics and hooks (pid %d) has ended: %s; it is started again",
                *(reaped.pid, how),
            )
            self._start(since=now)
        else:
            LOGGER.warning(
                "no metrics and no hooks any more: their process (pid %d) has ended for the %dth "
                "time within %g s: %s",
                *(reaped.pid, DEATHS + 1, DEATHS_PERIOD_S, how),
            )
        return True

    def close(self) -> None:
        """The job is over, and everything is written down: let it tell the rest, and end it."""
        self._hang_up()
        if not self._pid:
            return
        try:
            ended = child.end_descriptor(self._pid)
        except ProcessLookupError:  # it has died, and was reaped with all that is left at the end
            self._pid = 0
            return
        if self._wanted.has_hooks:
            wait_for.readable(ended, LAST_HOOKS_S + _SLACK_S)
        child.send_signal(self._pid, _SIGKILL)
        wait_for.readable(ended, LAST_HOOKS_S)
        os.close(ended)
        list(child.reap([self._pid]))
        self._pid = 0

    def _on_message(self, _peer: Channel, frame: Message) -> None:
        match decode(FROM_OBSERVER, frame):
            case Note(level, text):
                LOGGER.log(logging.getLevelName(level.upper()), "%s", text)
            case Serving(port):
                self._port = port
            case Notified(incident):
                self._notified += (incident,)

    def _on_closed(self, peer: Channel) -> None:
        if self._peer is peer:
            self._peer = None

    def _hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
