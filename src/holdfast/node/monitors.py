"""The rank monitors of a node: one small process beside each rank, started once, replaceable.

In each cycle a monitor reads a new page (:class:`HangWatch`).

The launcher itself listens on the sockets that ranks connect to and hands the listening descriptor
to the monitor. So a rank can connect before its monitor runs, ranks and monitors start at the same
time, and no rank is refused while a monitor is replaced.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.processes import child
from holdfast.base.processes.proc import MARKER
from holdfast.base.pure import numbering
from holdfast.base.pure.codec import decode, encode
from holdfast.evidence.staging import reserve
from holdfast.net import endpoint
from holdfast.net.channel import Channel
from holdfast.net.loop import Loop
from holdfast.node.console import LOGGER
from holdfast.node.job_part import evidence_s
from holdfast.node.processes.controlled_process import start_monitor
from holdfast.watch.pure.monitor_messages import (
    TO_LAUNCHER,
    Await,
    Closed,
    CollectEvidence,
    ConfigureMonitor,
    Cycle,
    Overdue,
    Proceed,
    Stopping,
    ToLauncher,
    ToMonitor,
    Tripped,
    WatchBegan,
)

if TYPE_CHECKING:
    from holdfast.net.pure.frames import Message
    from holdfast.node.processes.ranks import Ranks
    from holdfast.node.records.run_dirs import RunFolders
    from holdfast.options.plan import LaunchPlan

OnMessage = Callable[[int, ToLauncher], None]
"""Called with the local rank and a message of its monitor."""


@dataclass
class _Place:
    """One local rank's monitor."""

    path: str
    listener: socket.socket
    config: ConfigureMonitor
    pid: int = 0
    peer: Channel | None = None
    of_cycle: dict[type[ToMonitor], ToMonitor] = field(default_factory=dict)
    """Messages that its successor gets, too: the cycle; that its rank has not been armed in it, and
    others have; that its rank was asked to end."""
    tripped: list[Tripped] = field(default_factory=list)
    """The same, of all cycles."""
    has_closed: bool = False
    """Its monitor has sent the last message of its last verdict."""


def _listen(place: _Place) -> None:
    """Take ranks again, if they were refused; raises OSError."""
    if place.listener.fileno() < 0:
        place.listener = endpoint.listen(place.path)


class Monitors:
    """All rank monitors of a node. Main thread only."""

    def __init__(self, loop: Loop, on_message: OnMessage) -> None:
        self._loop = loop
        self._on_message = on_message
        self._places: dict[int, _Place] = {}

    def has(self, local_rank: int) -> bool:
        """There is a socket for the monitor of ``local_rank``."""
        return local_rank in self._places

    def open(self, local_rank: int, path: str, config: ConfigureMonitor) -> None:
        """Listen on ``path`` for the monitor of ``local_rank``; raises OSError."""
        self._places[local_rank] = _Place(path, endpoint.listen(path), config)

    def start(self, local_rank: int) -> None:
        """Start a monitor, or one in the place of a dead one, which takes over where that was.

        Raises OSError where there can be no process: ranks that connect are refused until there is.
        """
        place = self._places[local_rank]
        try:
            self._start(local_rank, place)
        except OSError:
            place.listener.close()
            raise

    def _start(self, local_rank: int, place: _Place) -> None:
        _listen(place)
        env = {name: value for name, value in os.environ.items() if name != MARKER}
        process = start_monitor(place.listener.fileno(), place.config, env)
        place.pid = process.pid
        place.peer = self._channel(local_rank, process.control)
        for message in (*place.of_cycle.values(), *place.tripped):
            self._send(place, message)

    def begin_cycle(self, local_rank: int, cycle: Cycle) -> None:
        """Have a monitor watch the rank of a new cycle (page, dump file, number ...)."""
        place = self._places[local_rank]
        with suppress(OSError):  # it is tried again when a monitor is started
            _listen(place)
        place.of_cycle = {Cycle: cycle}
        self._send(place, cycle)

    def send(self, local_rank: int, message: Await | Stopping | CollectEvidence | Proceed) -> None:
        """Send a message to a monitor, if there is one."""
        place = self._places.get(local_rank)
        if place is None:
            return
        if isinstance(message, Await):
            place.of_cycle[Await] = message
        elif isinstance(message, Stopping):
            place.of_cycle.setdefault(Stopping, message)
        self._send(place, message)

    def missing(self) -> list[int]:
        """Local ranks whose monitors were never started, or could not be."""
        return [local_rank for local_rank, place in self._places.items() if not place.pid]

    def pids(self) -> frozenset[int]:
        """The living monitors."""
        return frozenset(place.pid for place in self._places.values() if place.pid)

    def died(self, pid: int) -> int | None:
        """Note that a process was reaped; the local rank whose monitor it was, if it was one.

        Its last messages are handled first.
        """
        for local_rank, place in self._places.items():
            if place.pid == pid:
                place.pid = 0
                if place.peer is not None:
                    place.peer.drain()
                self._disconnect(place)
                return local_rank
        return None

    def drain(self, local_rank: int) -> None:
        """Handle all messages of this monitor that have arrived, before its rank is judged."""
        place = self._places.get(local_rank)
        if place is not None and place.peer is not None:
            place.peer.drain()

    def drain_until_closed(self, local_ranks: Iterable[int], wait_s: float) -> None:
        """Handle the messages of these monitors until each has closed its verdict, or ``wait_s``.

        A monitor sends a signal before it reports it: the job may be over before the report comes.
        """
        until = clock.monotonic() + wait_s
        for local_rank in local_ranks:
            place = self._places[local_rank]
            while place.peer is not None and not place.has_closed:
                poll = select.poll()
                poll.register(place.peer.fileno(), select.POLLIN)
                if not poll.poll(max(0.0, until - clock.monotonic()) * 1e3):
                    break
                place.peer.receive()

    def close(self) -> None:
        """End all monitors and close their sockets. A monitor keeps nothing that could be lost.

        They are reaped with all that is left at the end (:mod:`holdfast.base.processes.reaper`).
        """
        for place in self._places.values():
            if place.pid:
                child.kill(place.pid)
                place.pid = 0
            self._disconnect(place)
            place.listener.close()

    def _send(self, place: _Place, message: ToMonitor) -> None:
        if place.peer is not None:
            place.peer.send(encode(message))

    def _channel(self, local_rank: int, control: socket.socket) -> Channel:
        place = self._places[local_rank]

        def take(_: Channel, frame: Message) -> None:
            self._take(local_rank, decode(TO_LAUNCHER, frame))

        def end(peer: Channel) -> None:
            """End a monitor that closed its connection; it is replaced when reaped."""
            if place.peer is peer:
                place.peer = None
                if place.pid:
                    child.kill(place.pid)

        channel = Channel(control, self._loop, take, end)
        channel.report = lambda _, problem: LOGGER.error(
            "the monitor of local rank %d %s", local_rank, problem, exc_info=True
        )
        return channel

    def _take(self, local_rank: int, message: ToLauncher) -> None:
        """Handle a message; a monitor that sends a malformed one is ended and replaced."""
        if isinstance(message, WatchBegan):
            self._places[local_rank].of_cycle.pop(Await, None)
        if isinstance(message, (Overdue, Closed)):
            self._places[local_rank].has_closed = isinstance(message, Closed)
        self._on_message(local_rank, message)
        if isinstance(message, Overdue) and message.learned:  # all monitors raise the limit alike
            tripped = Tripped(message.clock, message.name, message.limit_s)
            for other, place in self._places.items():
                place.tripped.append(tripped)
                if other != local_rank:
                    self._send(place, tripped)

    def _disconnect(self, place: _Place) -> None:
        if place.peer is not None:
            place.peer.close()
            place.peer = None


@dataclass
class HangWatch:
    """The monitors of one launcher's ranks, configured from its plan."""

    _plan: LaunchPlan
    _job: str
    _node: str
    _folders: RunFolders
    _lease: str | None
    _monitors: Monitors

    def socket(self, local_rank: int) -> str | None:
        """Where the rank of this local rank finds its monitor; None: it has none."""
        name = f"_ft_launcher{os.getpid()}_rmon{local_rank}.socket"
        return f"{self._folders.runtime_dir}/{name}" if self._plan.monitors_enabled else None

    def begin(self, ranks: Ranks, past: numbering.Cycle | None) -> None:
        """Make pages for a cycle, and have monitors read them in place of those of the last."""
        for local_rank in map(numbering.LocalRank, ranks.ranks):
            if (path := self.socket(local_rank)) is None:
                return
            if not self._monitors.has(local_rank):
                self._monitors.open(local_rank, path, self._config(local_rank))
            self._monitors.begin_cycle(local_rank, self._of_cycle(ranks, local_rank))
            if past is not None:  # only now: its monitor knows the page that replaces it
                self._folders.pages.remove(past, local_rank)

    def start(self, local_rank: int) -> None:
        """Start a monitor, the first or the next; where none can be, its rank is not watched."""
        try:
            self._monitors.start(local_rank)
        except OSError as error:
            LOGGER.error(
                "cannot start the monitor of local rank %d: %s; training continues, but hangs of "
                "this rank are not detected in this cycle",
                local_rank,
                error,
            )

    def _config(self, local_rank: int) -> ConfigureMonitor:
        return ConfigureMonitor(
            self._plan.ft.to_wire(),
            local_rank,
            marker=self._job,
            grace_s=self._plan.workers_stop_timeout_s,
            node=self._node,
            runtime_dir=self._folders.runtime_dir,
            lease=self._lease,
            awaits_verdict=evidence_s(self._plan) > 0,
        )

    def _of_cycle(self, ranks: Ranks, local_rank: numbering.LocalRank) -> Cycle:
        """Make the page of a rank, and folders for its files and those of its monitor."""
        folders, run_dir = self._folders, str(self._folders.run_dir)
        attempt = f"attempt_{ranks.cycle}/{local_rank}"
        page = folders.pages.make(ranks.cycle, local_rank)
        room = f"{folders.runtime_dir}/r{local_rank}.room"
        staged = folders.staging.folder(ranks.cycle)
        try:
            # Without space for a page there is none for evidence, either.
            if folders.pages.is_spare(page):
                staged = run_dir
            else:
                os.makedirs(f"{staged}/{attempt}", exist_ok=True)  # noqa: PTH103
                reserve(room)
        except OSError:
            staged = run_dir
        if staged == run_dir:
            with suppress(OSError):
                ranks.ranks[local_rank].folder.mkdir(parents=True, exist_ok=True)
        return Cycle(
            ranks.cycle,
            page,
            dump=f"{staged}/{attempt}/stacks.txt",
            incidents=f"{staged}/incidents",
            staged=staged,
            run_dir=run_dir,
            room=room,
        )
