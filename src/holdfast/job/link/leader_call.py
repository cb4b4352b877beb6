"""Call a launcher that may not know where its job is led, and say so.

After the death of a leader another launcher leads, somewhere else. A scheduler may start the dead
one again (a pod of Kubernetes, a task of Slurm); at the endpoint it would lead a job of its own.
It is called each second for as long as the job lives: one that starts there would form a cycle.
And a leader that was silent may have slept: when it wakes, its ranks are beside those of the next.
That one is called until it has answered, and more and more rarely (:meth:`.Pace.call_pause_s`). So
is each successor that gave no vote (:meth:`.LeaderSearch.others`): launchers that wake together may
ask none but each other.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.bounded import CallInThread
from holdfast.base.pure.deadlines import earliest
from holdfast.job.link.leader_link import LeaderLink, LinkCallbacks

if TYPE_CHECKING:
    from holdfast.job.link.finding import Finder


def _ignore(*_: object) -> None:
    """The other end knows it now, or is called again."""


class LeaderCall:
    """Of the launcher that leads, again and again for as long as it does.

    Args:
        to: Host and port of the launcher that is called.
        finder: Connects, in a thread.
        own: Address and port where this launcher leads.
        make_link: Makes a link that says so.
        on_connected: Called in that thread when the loop is to call :meth:`on_connected`.
        once: Until it has answered.
        pause_s: How long after a call to call again, by the time since the first.

    Attributes:
        has_answered: It need not be called again.
    """

    def __init__(
        self,
        to: tuple[str, int],
        finder: Finder,
        own: tuple[str, int],
        make_link: Callable[[LinkCallbacks], LeaderLink],
        on_connected: Callable[[], None],
        *,
        once: bool,
        pause_s: Callable[[float], float],
    ) -> None:
        self._to = to
        self._once = once
        self._pause_s = pause_s
        self.has_answered = False
        self._finder = finder
        self._own = own
        self._make_link = make_link
        self._on_connected = on_connected
        self._at = self._since = clock.monotonic()
        self._search: CallInThread[socket.socket] | None = None
        self._link: LeaderLink | None = None

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_time`, at the latest."""
        if self.has_answered:
            return None
        link = None if self._link is None else self._link.next_deadline()
        return link if self._search is not None else earliest(self._at, link)

    def on_time(self) -> None:
        """Look again, if it is time."""
        if self.has_answered:
            return
        if self._link is not None:
            self._link.on_time()
        if self._search is None and clock.monotonic() >= self._at:
            self._end_link()
            self._search = CallInThread(
                lambda: self._finder.find_candidate(*self._to), "holdfast-call", self._on_connected
            )

    def on_connected(self) -> None:
        """The search may have ended."""
        if self._search is None or not self._search.has_ended():
            return
        search, self._search = self._search, None
        now = clock.monotonic()
        self._at = now + self._pause_s(now - self._since)
        try:
            connected = search.result()
        except OSError:  # not there; or this host has no thread to spare: it is called again
            return
        callbacks = LinkCallbacks(
            admitted=_ignore,
            decided=_ignore,
            led_elsewhere=_ignore,
            lead=_ignore,
            broken=_ignore,
            lost=self._on_answer,
            log=_ignore,
            ended=_ignore,
        )
        self._link = self._make_link(callbacks)
        self._link.connected(connected, *self._own)

    def _on_answer(self, _: str) -> None:
        """It does not admit this launcher, as it should; it knows where the job is led."""
        self.has_answered = self._once

    def close(self) -> None:
        """Watch no longer."""
        self._search = None
        self._end_link()

    def _end_link(self) -> None:
        if self._link is not None:
            self._link.close(0.0)
            self._link = None
