"""A witness at work: carries out the effects of ``node/pure/witness.py``. One thread, one epoll."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections import deque

from holdfast.base import clock
from holdfast.base.processes.job_name import new_job
from holdfast.base.pure.common_events import Note, SignalArrived, TimePassed
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.never import assert_never
from holdfast.base.pure.printable import printable
from holdfast.job.link.meeting_place import MeetingPlace
from holdfast.job.pure.member import Member
from holdfast.job.pure.membership import Descriptor, Message
from holdfast.job.pure.succession import Succession
from holdfast.job.pure.succession_messages import Approach, Give, LeaveLeader, Release
from holdfast.job.pure.timing import Pace
from holdfast.net.loop import Loop
from holdfast.node.console import LOGGER, log_note
from holdfast.node.network_log import NetworkLog
from holdfast.node.pure.console_lines import TEXT_FORMAT
from holdfast.node.pure.witness import Event, Witness, WitnessLeaves

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _PrintableLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))  # with words of other hosts in it


class WitnessProcess:
    """Takes part in one job to its end. Use once, from the main thread."""

    def __init__(self, place: MeetingPlace, pace: Pace) -> None:
        host = socket.gethostname()
        node_id = f"{host}-{new_job()}"
        desc = Descriptor("", host, 1, os.getpid(), is_witness=True)
        self._place = place
        self._host = host
        self._witness = Witness(Member(node_id, desc, pace), Succession(pace))
        self._log = NetworkLog(place, node_id, None, lambda: self._witness.finished is not None)
        self._loop = Loop()
        self._inbox: deque[Event] = deque()
        self._is_at_work = False

    def run(self) -> int:
        """Until the job has ended or is lost, or a signal comes; returns the exit code."""
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_PrintableLines(TEXT_FORMAT, defaults={"node": self._host}))
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.INFO)
        LOGGER.propagate = False
        try:
            with self._loop as loop:
                loop.on_signals(_SIGNALS, lambda signum: self._feed(SignalArrived(signum)))
                try:
                    self._log.begin(loop, self._work)
                    loop.run(self._next_deadline, self._on_time)
                finally:
                    self._log.close()
        finally:
            LOGGER.removeHandler(handler)
        finished = self._witness.finished
        assert finished is not None
        return finished.exit_code

    def _next_deadline(self) -> float | None:
        return earliest(self._witness.next_deadline(), self._log.next_deadline())

    def _on_time(self) -> None:
        self._log.on_time()
        self._work()
        self._feed(TimePassed())

    def _feed(self, event: Event) -> None:
        self._inbox.append(event)
        self._work()

    def _work(self) -> None:
        if self._is_at_work:
            return
        self._is_at_work = True
        try:
            while (event := self._next_event()) is not None:
                for effect in self._witness.handle(event, clock.monotonic()):
                    match effect:
                        case Approach() | Give() | LeaveLeader() | Release():
                            self._log.move(effect)
                        case Note():
                            log_note(effect)
                        case WitnessLeaves(exit_code, text):
                            level = logging.ERROR if exit_code else logging.INFO
                            LOGGER.log(level, "witness of %r: %s", self._place.run_id, text)
                            self._loop.stop()
                        case _ if isinstance(effect, Message):
                            self._log.send(effect)
                        case _:
                            assert_never(effect)
        finally:
            self._is_at_work = False

    def _next_event(self) -> Event | None:
        event = self._log.take()
        return self._inbox.popleft() if event is None and self._inbox else event
