"""The rank monitors of a node: one small process beside each rank, started once, replaceable.

The launcher itself listens on the sockets that ranks connect to and hands the listening descriptor
to the monitor. So a rank can connect before its monitor runs, ranks and monitors start at the same
time, and a monitor can be replaced without anybody being refused.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.processes import child
from holdfast.base.processes.proc import MARKER
from holdfast.base.pure.codec import decode, encode
from holdfast.net import endpoint
from holdfast.net.channel import Channel
from holdfast.net.loop import Loop
from holdfast.node.console import LOGGER
from holdfast.node.processes.controlled_process import start_monitor
from holdfast.watch.pure.monitor_messages import (
    TO_LAUNCHER,
    Armed,
    Await,
    Closed,
    Configure,
    Cycle,
    GoOn,
    LookNow,
    Overdue,
    Stopping,
    ToLauncher,
    ToMonitor,
    Tripped,
)

if TYPE_CHECKING:
    from holdfast.net.pure.frames import Message

SIGKILL = 9

OnMessage = Callable[[int, ToLauncher], None]
"""Called with the local rank and what its monitor says."""


@dataclass
class _Place:
    """One local rank's monitor."""

    listener: socket.socket
    config: Configure
    pid: int = 0
    peer: Channel | None = None
    cycle: Cycle | None = None
    awaited: Await | None = None
    """Its rank has not been armed in this cycle, and others have."""
    stopping: Stopping | None = None
    """Its rank was asked to end."""
    tripped: list[Tripped] = field(default_factory=list)
    has_closed: bool = False
    """Nothing more will be said of the last verdict."""


class Monitors:
    """All rank monitors of a node. Main thread only."""

    def __init__(self, loop: Loop, on_message: OnMessage) -> None:
        self._loop = loop
        self._on_message = on_message
        self._places: dict[int, _Place] = {}

    def has(self, local_rank: int) -> bool:
        """There is a socket for the monitor of ``local_rank``."""
        return local_rank in self._places

    def open(self, local_rank: int, path: str, config: Configure) -> None:
        """Listen on ``path`` for the monitor of ``local_rank``; see :meth:`start`.

        Raises:
            OSError: The socket cannot be made.
        """
        self._places[local_rank] = _Place(endpoint.listen(path), config)

    def start(self, local_rank: int) -> None:
        """Start a monitor, or one in the place of a dead one, which takes over where that was.

        Raises:
            OSError: The process cannot be made.
        """
        place = self._places[local_rank]
        env = {name: value for name, value in os.environ.items() if name != MARKER}
        process = start_monitor(place.listener.fileno(), place.config, env)
        place.pid = process.pid
        place.peer = self._channel(local_rank, process.control)
        if place.cycle is not None:
            self._tell(place, place.cycle)
            for message in (place.awaited, place.stopping):
                if message is not None:
                    self._tell(place, message)
            for tripped in place.tripped:
                self._tell(place, tripped)

    def begin_cycle(self, local_rank: int, cycle: Cycle) -> None:
        """Tell a monitor what to watch from now on (page, dump file, cycle number ...)."""
        place = self._places[local_rank]
        place.cycle, place.awaited, place.stopping = cycle, None, None
        self._tell(place, cycle)

    def await_report(self, local_rank: int, message: Await) -> None:
        """Have a monitor watch a rank that has not reported to it."""
        place = self._places[local_rank]
        place.awaited = message
        self._tell(place, message)

    def hold_clocks(self, local_rank: int, message: Stopping) -> None:
        """Have a monitor leave the end of its rank to us."""
        place = self._places[local_rank]
        place.stopping = place.stopping or message
        self._tell(place, message)

    def tell(self, local_rank: int, message: LookNow | GoOn) -> None:
        """Tell a monitor something about an incident."""
        self._tell(self._places[local_rank], message)

    def _limit_tripped(self, local_rank: int, overdue: Overdue) -> None:
        """Tell the other monitors that a learned limit tripped, so that all raise it alike."""
        message = Tripped(overdue.clock, overdue.name, overdue.limit_s)
        for other, place in self._places.items():
            place.tripped.append(message)
            if other != local_rank:
                self._tell(place, message)

    def start_missing(self) -> None:
        """Start every monitor that was never started."""
        for local_rank, place in self._places.items():
            if not place.pid:
                self.start(local_rank)

    def pids(self) -> frozenset[int]:
        """The living monitors."""
        return frozenset(place.pid for place in self._places.values() if place.pid)

    def died(self, pid: int) -> int | None:
        """Note that a process was reaped; if it was a monitor, hear it out: its local rank."""
        for local_rank, place in self._places.items():
            if place.pid == pid:
                place.pid = 0
                if place.peer is not None:  # its last words
                    place.peer.drain()
                self._hang_up(place)
                return local_rank
        return None

    def hear_out(self, local_rank: int) -> None:
        """Take in what this monitor has said by now, before its rank is judged."""
        place = self._places.get(local_rank)
        if place is not None and place.peer is not None:
            place.peer.drain()

    def hear_to_the_end(self, local_ranks: Iterable[int], wait_s: float) -> None:
        """Take in all that these monitors say of the ranks that they have ended, if it comes soon.

        A monitor says what it has done: its rank may be gone, and the job with it, before the words
        are there.
        """
        until = clock.monotonic() + wait_s
        for local_rank in local_ranks:
            place = self._places[local_rank]
            while place.peer is not None and not place.has_closed:
                words = select.poll()
                words.register(place.peer.fileno(), select.POLLIN)
                if not words.poll(max(0.0, until - clock.monotonic()) * 1e3):
                    break
                place.peer.receive()

    def close(self) -> None:
        """End all monitors and close their sockets. A monitor keeps nothing that could be lost.

        They are reaped with all that is left at the end (:mod:`holdfast.base.processes.leftovers`).
        """
        for place in self._places.values():
            if place.pid:
                child.send_signal(place.pid, SIGKILL)
                place.pid = 0
            self._hang_up(place)
            place.listener.close()

    def _tell(self, place: _Place, message: ToMonitor) -> None:
        if place.peer is not None:
            place.peer.send(encode(message))

    def _channel(self, local_rank: int, control: socket.socket) -> Channel:
        place = self._places[local_rank]

        def take(_: Channel, frame: Message) -> None:
            self._take(local_rank, decode(TO_LAUNCHER, frame))

        def end(peer: Channel) -> None:
            """End a monitor that has hung up; it is replaced when reaped."""
            if place.peer is peer:
                place.peer = None
                if place.pid:
                    child.send_signal(place.pid, SIGKILL)

        channel = Channel(control, self._loop, take, end)
        channel.report = lambda _, what: LOGGER.error(
            "the monitor of local rank %d %s", local_rank, what, exc_info=True
        )
        return channel

    def _take(self, local_rank: int, message: ToLauncher) -> None:
        """A monitor that says what cannot be handled is ended and replaced; the job goes on."""
        if isinstance(message, Armed):
            self._places[local_rank].awaited = None
        if isinstance(message, (Overdue, Closed)):
            self._places[local_rank].has_closed = isinstance(message, Closed)
        self._on_message(local_rank, message)
        if isinstance(message, Overdue) and message.learned:
            self._limit_tripped(local_rank, message)

    def _hang_up(self, place: _Place) -> None:
        if place.peer is not None:
            place.peer.close()
            place.peer = None
