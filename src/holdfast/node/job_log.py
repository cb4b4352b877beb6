"""The log of a job, as its launchers see it: messages go up, decisions come down.

LocalLog     of a job that has one launcher: a deque; no beats, no connection
NetworkLog   of a job of several: each launcher is connected to the one that leads

take()     ── decision ──►  the member
send()     ◄── message ──   the member
take()     ── message ──►   the leader          only in the launcher
publish()  ◄── decision ──  the leader          that leads
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.job.pure.leader_messages import StepDown
from holdfast.job.pure.membership import Decision, Message
from holdfast.job.pure.succession_messages import ToShell
from holdfast.node.pure.launcher import Event, Met, SendOn

if TYPE_CHECKING:
    from holdfast.net.loop import Loop


class JobLog:
    """The log of a job, for one launcher. Main thread only."""

    def begin(self, loop: Loop, on_news: Callable[[], None], /) -> None:
        """Find the log, and follow it; returns at once.

        The loop calls ``on_news`` when there may be something to :meth:`take`.
        """

    def send(self, message: Message) -> None:
        """Put a message into the leader's mailbox."""

    def publish(self, decision: Decision) -> None:
        """Append a decision; only where the leader is."""

    def move(self, effect: ToShell | SendOn | StepDown) -> None:
        """Take part in finding the next leader; only where there are several launchers."""

    def take(self) -> Event | None:
        """The next event; None: there is none."""
        return None

    def gloo_interface(self) -> str | None:
        """``GLOO_SOCKET_IFNAME`` for ranks, when they start; None: it stays unset."""
        return None

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_time`, at the latest; None: never."""
        return None

    def on_time(self) -> None:
        """The deadline may have come; may be called too early."""

    def close(self) -> None:
        """Send the last messages, and close the connections."""


class LocalLog(JobLog):
    """Of a job that has one launcher, and can have no other: a queue, of which nothing is due.

    ``GLOO_SOCKET_IFNAME`` stays unset, as all ranks are on this host.
    """

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
