"""The log of a job of several launchers: connections to and from the one that leads.

The loop's thread does all but look-ups and connecting, which may wait, and have a thread as long as
they last.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.base import clock
from holdfast.base.bounded import CallInThread
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.printable import one_line
from holdfast.errors import LaunchError
from holdfast.job.link.finding import (
    Finder,
    JobIsOverError,
    LeaderEndedError,
    NoTorchError,
    OwnAddress,
    WayIn,
)
from holdfast.job.link.job_server import JobServer
from holdfast.job.link.leader_link import LeaderLink, LinkCallbacks
from holdfast.job.pure.leader import LauncherEnded
from holdfast.job.pure.link import LeadYourself, LedElsewhere
from holdfast.job.pure.member import LeaderLost
from holdfast.job.pure.membership import Decision, End, Join, Leave, Message
from holdfast.job.pure.timing import LAST_WORDS_S
from holdfast.net.address import interface_of
from holdfast.net.tcp import tune
from holdfast.node.late_launcher import EndedJobs
from holdfast.node.pure.launcher import Event, Met

if TYPE_CHECKING:
    from holdfast.job.link.meeting_place import MeetingPlace
    from holdfast.job.link.other_backends import Election
    from holdfast.job.pure.workload import Workload
    from holdfast.net.loop import Loop

LOGGER = logging.getLogger("holdfast")


class NetworkLog:
    """See :class:`.JobLog`.

    A leader that cannot be found is reported as :class:`.LeaderLost`; a torch that cannot be loaded
    is a LaunchError, raised by :meth:`take`. A launcher that ``is_leaving`` joins no rendezvous.
    """

    def __init__(
        self,
        place: MeetingPlace,
        node_id: str,
        workload: Workload | None,
        is_leaving: Callable[[], bool],
    ) -> None:
        self._place = place
        self._is_leaving = is_leaving
        self._ended_jobs = (
            EndedJobs(place.port, place.run_id, workload)
            if place.other is None and workload
            else None
        )
        before = self._ended_jobs.end_before_start if self._ended_jobs else lambda: None
        self._finder = Finder(place, before)
        self._node_id = node_id
        self._name = f"{socket.gethostname()} (pid {os.getpid()})"
        self._events: deque[Event] = deque()
        self._on_news: Callable[[], None] = lambda: None
        self._loop: Loop | None = None
        self._search: CallInThread[Any] | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._own: OwnAddress | None = None
        self._server: JobServer | None = None
        self._link: LeaderLink | None = None
        self._leads = False
        self._election: Election | None = None
        self._leader_address: tuple[object, ...] = ()
        self._has_met = False
        self._meet_by = 0.0
        """Until when a program at the endpoint may close each connection."""
        self._has_looked_again = False
        self._has_joined = False
        self._has_ended = False
        """The job has, so that its leader may be gone."""
        self._is_over = False
        """For this launcher, which has sent its last message."""
        self._named: LedElsewhere | None = None
        """The leader that is being tried."""
        self._has_named_other = False
        self._refusal = ""

    # ------------------------------------------------------------ see JobLog
    def begin(self, loop: Loop, on_news: Callable[[], None]) -> None:
        """See :meth:`.JobLog.begin`."""
        self._loop, self._on_news = loop, on_news
        self._meet_by = clock.monotonic() + self._place.connect_s
        loop.watch(self._wake_read, self._on_search_ended)
        self._look(self._finder.find)

    def send(self, message: Message) -> None:
        """See :meth:`.JobLog.send`."""
        self._is_over = self._is_over or isinstance(message, Leave)
        if self._leads:
            self._events.append(message)
        elif self._link is not None:
            self._link.send(message)
        if isinstance(message, Join) and not self._has_joined:
            self._has_joined = True
            LOGGER.info("joined the job %r at %s", self._place.run_id, self._place)

    def publish(self, decision: Decision) -> None:
        """See :meth:`.JobLog.publish`."""
        assert self._server is not None
        if isinstance(decision, End):
            self._note_end(decision)  # before a launcher reads it, and a new run begins
        self._events.append(decision)
        self._server.publish(decision)

    def take(self) -> Event | None:
        """See :meth:`.JobLog.take`. Raises LaunchError where no rendezvous is possible."""
        if self._refusal:
            raise LaunchError(self._refusal)
        return self._events.popleft() if self._events else None

    def gloo_interface(self) -> str | None:
        """See :meth:`.JobLog.gloo_interface`."""
        guessed = self._own.gloo_interface if self._own is not None else None
        if guessed is None or not self._leads or self._server is None:
            return guessed
        at = self._server.reached_at()  # the others have connected by now
        return (at and interface_of(at)) or guessed

    def next_deadline(self) -> float | None:
        """See :meth:`.JobLog.next_deadline`."""
        parts = (part.next_deadline() for part in (self._server, self._link) if part is not None)
        return earliest(*parts)

    def on_time(self) -> None:
        """See :meth:`.JobLog.on_time`."""
        for part in (self._server, self._link):
            if part is not None:
                part.on_time()

    def close(self) -> None:
        """See :meth:`.JobLog.close`."""
        self._is_over = True
        self._finder.stop.set()
        if self._link is not None:
            self._link.close(LAST_WORDS_S)
        if self._server is not None:
            self._server.close(LAST_WORDS_S)
        if self._search is not None:
            self._search.has_ended(LAST_WORDS_S)
            self._search = None
        if self._wake_read >= 0:
            if self._loop is not None:
                self._loop.forget(self._wake_read)
            ends, self._wake_read, self._wake_write = (self._wake_read, self._wake_write), -1, -1
            for end in ends:
                os.close(end)

    # ------------------------------------------------------------ looking for the leader
    def _look(self, call: Callable[[], WayIn] | Callable[[], socket.socket]) -> None:
        self._search = CallInThread(call, "holdfast-find", self._wake)

    def _wake(self) -> None:
        """In the thread of the search."""
        with contextlib.suppress(OSError):  # the launcher has not waited for it
            os.write(self._wake_write, b"\0")

    def _on_search_ended(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        search, self._search = self._search, None
        if search is None or self._is_over:
            return
        try:
            found = search.result()
        except JobIsOverError as error:
            self._events.append(error.end)
        except LeaderEndedError:
            self._lose("its launcher has ended")
        except ConnectionError as error:
            self._on_unreachable(str(error))
        except NoTorchError as error:
            self._refusal = str(error)
        except Exception as error:
            LOGGER.exception("the search for the other launchers has failed")
            self._lose(f"this launcher cannot go on: {type(error).__name__}: {error}")
        else:
            self._on_found(found)
        self._on_news()

    def _on_found(self, found: WayIn | socket.socket) -> None:
        assert self._loop is not None
        if isinstance(found, socket.socket):
            self._connect(found)
            return
        self._own, self._election = found.own, found.election
        place = self._place
        self._server = JobServer(
            found.listener, self._loop, place.run_id, place.secret, place.silence_s, LOGGER.warning
        )
        if found.connected is None:
            if place.other is not None:
                self._log_first()
            self._lead()
            return
        callbacks = LinkCallbacks(
            admitted=self._on_admitted,
            decided=self._on_decided,
            led_elsewhere=self._on_led_elsewhere,
            lead=self._on_lead,
            broken=self._on_broken,
            lost=self._on_lost,
            log=LOGGER.warning,
        )
        about = place.run_id, place.secret, self._node_id, self._name
        self._link = LeaderLink(self._loop, *about, callbacks)
        self._connect(found.connected)

    def _connect(self, connected: socket.socket) -> None:
        assert self._link is not None
        assert self._own is not None
        assert self._server is not None
        try:
            self._leader_address = connected.getpeername()
            tune(connected, self._place.silence_s)
        except OSError:  # it is gone again
            connected.close()
            self._on_broken("it closed the connection")
            return
        self._link.connected(connected, self._own.address, self._server.port)

    def _on_unreachable(self, why: str) -> None:
        named, self._named = self._named, None
        if named is None or self._link is None:
            self._lose(why)
            return
        self._link.gone = f"{named.addr} {named.port}"
        self._look(self._finder.find_endpoint)

    def _on_broken(self, why: str) -> None:
        if self._is_over:
            return
        if self._has_met:
            address = self._leader_address
            self._look(lambda: self._finder.find_again(address))
            return
        if clock.monotonic() >= self._meet_by:
            self._lose(f"launchers cannot meet at {self._place}: no launcher answers there ({why})")
            self._on_news()
            return
        if not self._has_looked_again:
            self._has_looked_again = True
            LOGGER.info("no launcher answers at %s (%s): looking again and again", self._place, why)
        self._look(self._finder.find_endpoint_again)

    # ------------------------------------------------------------ answers of the leader
    def _on_admitted(self) -> None:
        self._meet(leads=False)

    def _on_decided(self, decision: Decision) -> None:
        self._has_ended = self._has_ended or isinstance(decision, End)
        self._events.append(decision)
        self._on_news()

    def _on_led_elsewhere(self, answer: LedElsewhere) -> None:
        self._log_other_job(answer.host_of)
        self._named = answer
        self._look(lambda: self._finder.find_at(answer.addr, answer.port))

    def _on_lead(self, answer: LeadYourself) -> None:
        self._log_other_job(answer.host_of)
        self._log_first()
        self._link = None
        self._lead()
        self._on_news()

    def _on_lost(self, why: str) -> None:
        self._lose(why)
        self._on_news()

    def _lead(self) -> None:
        assert self._server is not None
        self._leads = True
        self._server.lead(self._on_message, self._on_launcher_ended)
        self._meet(leads=True)

    def _meet(self, *, leads: bool) -> None:
        assert self._own is not None
        self._has_met = True
        if not self._is_leaving():
            self._events.append(Met(leads, self._own.address))
            self._on_news()

    def _on_message(self, message: Message) -> None:
        self._events.append(message)
        self._on_news()

    def _on_launcher_ended(self, node: str) -> None:
        self._events.append(LauncherEnded(node))
        self._on_news()

    def _lose(self, why: str) -> None:
        if not self._is_over and not self._has_ended:
            self._events.append(LeaderLost(why))

    def _note_end(self, end: End) -> None:
        if self._ended_jobs is not None:
            self._ended_jobs.note(end)
        if (election := self._election) is not None:
            self._search = CallInThread(lambda: _say_end(election, end), "holdfast-find")

    def _log_first(self) -> None:
        LOGGER.info("this launcher came first, and leads the job %r", self._place.run_id)

    def _log_other_job(self, host_of: str) -> None:
        if self._has_named_other:
            return
        self._has_named_other = True
        LOGGER.warning(
            "the launcher at %s leads another job, %s: launchers of this job, %r, meet there, too. "
            "Give each job an --rdzv-endpoint of its own (another port will do)",
            self._place,
            one_line(host_of[:100]),
            self._place.run_id,
        )


def _say_end(election: Election, end: End) -> None:
    """In a thread, for the store may be away."""
    try:
        election.end(end.cause)
    except Exception as error:  # noqa: BLE001 - a backend may raise anything
        LOGGER.warning("launchers that come late will not know that the job is over: %s", error)
