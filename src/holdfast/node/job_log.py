"""The log of a job, as its launchers see it: messages go up, decisions come down.

    LocalLog   of a job that has one launcher: a deque; no torch, no beats, no thread
    StoreLog   of a job of several: a store, and the threads that wait for it (torch_edge)

    follower  ── decision ──►  the member
    poster    ◄── message ──   the member
    taker     ── message ──►   the leader           only where the leader is: in the launcher
    publisher ◄── decision ──  the leader           that hosts the store, or came first

All of it runs in the loop's thread; the threads of a store hand their events over there.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from holdfast.errors import LaunchError
from holdfast.job.pure.member import LeaderLost
from holdfast.job.pure.membership import Decision, End, Message
from holdfast.node.pure.launcher import Event, Met

if TYPE_CHECKING:
    from holdfast.job.pure.workload import Workload
    from holdfast.job.store.job_threads import OwnAddress
    from holdfast.job.store.store_address import StoreAddress
    from holdfast.net.loop import Loop


class JobLog(Protocol):
    """The log of a job, for one launcher. Main thread only."""

    def begin(self, loop: Loop, on_news: Callable[[], None], /) -> None:
        """Find the log, and follow it; returns at once.

        The loop calls ``on_news`` when there may be something to :meth:`take`.
        """

    def send(self, message: Message) -> None:
        """Put a message into the leader's mailbox."""

    def publish(self, decision: Decision) -> None:
        """Append a decision; only where the leader is."""

    def take(self) -> Event | None:
        """The next event; None: there is none."""

    def gloo_interface(self) -> str | None:
        """``GLOO_SOCKET_IFNAME`` for ranks, when they start; None: it stays unset."""

    def close(self) -> None:
        """Send the last messages, and close the connection."""


class LocalLog:
    """Of a job that has one launcher, and can have no other: a queue."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()

    def begin(self, _loop: Loop, on_news: Callable[[], None], /) -> None:
        """It is here, and so is the leader."""
        self._events.append(Met(leads=True))
        on_news()

    def send(self, message: Message) -> None:
        """See :meth:`JobLog.send`."""
        self._events.append(message)

    def publish(self, decision: Decision) -> None:
        """See :meth:`JobLog.publish`."""
        self._events.append(decision)

    def take(self) -> Event | None:
        """See :meth:`JobLog.take`."""
        return self._events.popleft() if self._events else None

    def gloo_interface(self) -> str | None:
        """All ranks are on this host."""
        return None

    def close(self) -> None:
        """Nothing is to be done."""


class StoreLog:
    """Of a job of several launchers, which meet through a store.

    A store that cannot be found is reported as :class:`.LeaderLost`. A torch that cannot be loaded
    is a LaunchError, raised by :meth:`take`. A launcher that ``is_leaving`` joins no rendezvous.
    """

    def __init__(
        self,
        address: StoreAddress,
        workload: Workload | None,
        is_leaving: Callable[[], bool],
    ) -> None:
        from holdfast.job.store.job_threads import (  # noqa: PLC0415 - for several nodes only
            Callbacks,
            JobThreads,
        )
        from holdfast.node.late_launcher import EndedJobs  # noqa: PLC0415 - likewise

        self._port = address.port
        hosts_stores = address.other is None
        self._ended_jobs = (
            EndedJobs(address.port, address.run_id, workload) if hosts_stores and workload else None
        )
        self._leads = False
        self._gloo_interface: str | None = None

        self._is_leaving = is_leaving
        self._errands: deque[Callable[[], None]] = deque()
        self._events: deque[Event] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._on_news: Callable[[], None] = lambda: None
        self._threads = JobThreads(
            address,
            Callbacks(
                run=self._call_soon,
                met=self._met,
                decided=self._events.append,
                arrived=self._events.append,
                lost=lambda text: self._events.append(LeaderLost(text)),
                no_torch=_refuse_to_run,
                ended_before=self._ended_before,
            ),
        )

    def begin(self, loop: Loop, on_news: Callable[[], None]) -> None:
        """See :meth:`JobLog.begin`."""
        self._on_news = on_news
        loop.watch(self._wake_read, self._wake)
        self._threads.begin()

    def send(self, message: Message) -> None:
        """See :meth:`JobLog.send`."""
        self._threads.post(message)

    def publish(self, decision: Decision) -> None:
        """See :meth:`JobLog.publish`."""
        if isinstance(decision, End) and self._ended_jobs is not None:
            self._ended_jobs.note(decision)  # before a launcher reads it, and a new run begins
        self._threads.publish(decision)

    def take(self) -> Event | None:
        """See :meth:`JobLog.take`. Raises LaunchError where no rendezvous is possible."""
        while not self._events and self._errands:
            self._errands.popleft()()
        return self._events.popleft() if self._events else None

    def gloo_interface(self) -> str | None:
        """See :meth:`JobLog.gloo_interface`."""
        from holdfast.net.address import interface_of, reached_at  # noqa: PLC0415 - of many nodes

        guessed = self._gloo_interface
        if guessed is None or not self._leads:
            return guessed
        at = reached_at(self._port)  # the others have connected by now
        return (at and interface_of(at)) or guessed

    def close(self) -> None:
        """See :meth:`JobLog.close`."""
        self._threads.close()

    def _ended_before(self) -> End | None:
        return self._ended_jobs.end_before_start() if self._ended_jobs is not None else None

    def _met(self, leads: bool, own: OwnAddress) -> bool:  # noqa: FBT001 - see Callbacks
        if self._is_leaving():
            return False
        self._leads, self._gloo_interface = leads, own.gloo_interface
        self._events.append(Met(leads, own.address))
        return True

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        self._on_news()

    def _call_soon(self, errand: Callable[[], None]) -> None:
        """In any thread."""
        self._errands.append(errand)
        with contextlib.suppress(BlockingIOError):  # it has wake-ups enough
            os.write(self._wake_write, b"\0")


def _refuse_to_run(why: str) -> None:
    """No rendezvous, no rank: the launcher ends with this line alone."""
    raise LaunchError(why)
