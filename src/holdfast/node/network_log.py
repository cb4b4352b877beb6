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
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.base import clock
from holdfast.base.bounded import CallInThread
from holdfast.base.pure.deadlines import earliest
from holdfast.base.pure.never import assert_never
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
from holdfast.job.link.leader_call import LeaderCall
from holdfast.job.link.leader_link import LeaderLink, LinkCallbacks
from holdfast.job.pure.leader_key import Claimed, KeyOver, LeaderKey
from holdfast.job.pure.leader_messages import LauncherEnded, StepDown
from holdfast.job.pure.link import LeadYourself, LedElsewhere, NotAdmitted
from holdfast.job.pure.member_messages import LeaderLost
from holdfast.job.pure.membership import (
    Beat,
    Decision,
    End,
    Join,
    Leave,
    Message,
    Resigned,
    Round,
    Successor,
)
from holdfast.job.pure.succession_messages import (
    Approach,
    ClaimKey,
    Follows,
    Give,
    KeyHeld,
    KeyTaken,
    LeaderDied,
    Leads,
    LeaveLeader,
    NotReached,
    PeerDied,
    Reached,
    Release,
    Released,
    ToShell,
)
from holdfast.job.pure.timing import CALL_S, LAST_WORDS_S, Pace
from holdfast.net.address import interface_of
from holdfast.net.pure.address import Endpoint
from holdfast.net.tcp import tune
from holdfast.node.job_log import JobLog
from holdfast.node.late_launcher import EndedJobs
from holdfast.node.pure.launcher import Deposed, Event, LedBy, Met, SendOn

if TYPE_CHECKING:
    from holdfast.job.link.meeting_place import MeetingPlace
    from holdfast.job.link.other_backends import Election
    from holdfast.job.pure.workload import Workload
    from holdfast.net.loop import Loop

LOGGER = logging.getLogger("holdfast")
_STORE_ANSWERS_S = 2.0
"""A store that is there has answered by then."""


class NetworkLog(JobLog):
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
        self._finder = Finder(place, node_id, before)
        self._node_id = node_id
        self._name = f"{socket.gethostname()} (pid {os.getpid()})"
        self._events: deque[Event] = deque()
        self._on_news: Callable[[], None] = lambda: None
        self._loop: Loop | None = None
        self._search: CallInThread[Any] | None = None
        self._own: OwnAddress | None = None
        self._server: JobServer | None = None
        self._link: LeaderLink | None = None
        self._leads = False
        self._election: Election | None = None
        self._key: CallInThread[Claimed] | CallInThread[LeaderKey | None] | None = None
        """It is being claimed, or looked at."""
        self._key_late_at: float | None = None
        """When to log that the store has not answered the claim."""
        self._have_answered: set[tuple[str, int]] = set()
        """Candidates, at their own addresses: a refusal there is proof from then on."""
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
        self._leader_at: tuple[str, int] | None = None
        """Where the leader serves, as it says itself; it has answered there."""
        self._check: tuple[tuple[str, int], CallInThread[bool]] | None = None
        """Whether it answers there, where that is not the address of the connection."""
        self._candidate: Successor | None = None
        """The launcher that this one would have lead the job, or that it looks for."""
        self._is_reached = False
        """That one has answered."""
        self._kept: list[Message] = []
        """For the next leader."""
        self._calls: tuple[LeaderCall, ...] = ()
        self._named: LedElsewhere | None = None
        """The leader that is being tried."""
        self._has_named_other = False
        self._refusal = ""

    # ------------------------------------------------------------ see JobLog
    def begin(self, loop: Loop, on_news: Callable[[], None]) -> None:
        """See :meth:`.JobLog.begin`."""
        self._loop, self._on_news = loop, on_news
        self._meet_by = clock.monotonic() + self._place.connect_s
        self._look(self._finder.find)

    def send(self, message: Message) -> None:
        """See :meth:`.JobLog.send`."""
        self._is_over = self._is_over or isinstance(message, Leave)
        if self._leads:
            self._events.append(message)
        elif self._candidate is not None:
            if not isinstance(message, Beat):
                self._kept.append(message)
        elif self._link is not None:
            self._link.send(message)
        elif self._has_met and not isinstance(message, Beat):
            self._kept.append(message)
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
        if isinstance(decision, Round) and (election := self._election) is not None:
            self._key = CallInThread(election.usurper, "holdfast-key", self._wake)

    def move(self, effect: ToShell | SendOn | StepDown) -> None:
        """See :meth:`.JobLog.move`."""
        match effect:
            case Approach(successor):
                self._approach(successor)
            case Give(offer=offer):
                if self._link is not None:
                    self._link.give(offer)
            case LeaveLeader():
                self._leave_link()
            case Release(nodes, term, asks, ahead):
                assert self._server is not None
                self._server.release(nodes, term, asks=asks, ahead=ahead)
            case ClaimKey():
                self._claim(effect)
            case Leads(term, called=called):
                self._leave_link()
                self._lead()
                self._events += self._kept
                self._kept = []
                if self._election is None:
                    self._call_others(term, called)
            case StepDown():
                self._step_down()
            case SendOn(addr, port, joins):
                self._send_on(addr, port, joins=joins)
            case _:
                assert_never(effect)

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
        parts = self._server, self._link, *self._calls
        deadlines = (part.next_deadline() for part in parts if part is not None)
        return earliest(self._key_late_at, *deadlines)

    def on_time(self) -> None:
        """See :meth:`.JobLog.on_time`."""
        for part in (self._server, self._link, *self._calls):
            if part is not None:
                part.on_time()
        if self._key_late_at is not None and clock.monotonic() >= self._key_late_at:
            self._key_late_at = None
            LOGGER.warning(
                "the rendezvous backend at %s does not answer, and only there a launcher can take "
                "the lead: this one tries again for up to %g s, and leaves the job then",
                *(self._place, self._store_s),
            )

    def close(self) -> None:
        """See :meth:`.JobLog.close`."""
        self._is_over = True
        self._finder.stop.set()
        self._end_calls()
        if self._link is not None:
            self._link.close(LAST_WORDS_S)
        if self._server is not None:
            self._server.close(LAST_WORDS_S)
        if self._search is not None:
            self._search.has_ended(LAST_WORDS_S)
            self._search = None

    # ------------------------------------------------------------ looking for the leader
    def _look(self, call: Callable[[], WayIn | socket.socket | None]) -> None:
        """In the place of an earlier search; its result is dropped."""
        self._search = CallInThread(call, "holdfast-find", self._wake)

    def _wake(self) -> None:
        """In the thread of the search."""
        assert self._loop is not None
        self._loop.call_soon(self._on_search_ended)

    def _on_search_ended(self) -> None:
        for call in self._calls:
            call.on_connected()
        self._on_key()
        search = self._search
        if search is None or not search.has_ended():
            return  # an earlier one has
        self._search = None
        if self._is_over:
            return
        try:
            found = search.result()
        except JobIsOverError as error:
            self._events.append(error.end)
        except LeaderEndedError as error:
            self._on_ended(str(error), is_proved=error.is_proved)
        except ConnectionError as error:
            self._on_unreachable(str(error))
        except NoTorchError as error:
            self._refusal = str(error)
        except Exception as error:
            LOGGER.exception("the search for the other launchers has failed")
            self._lose(f"this launcher cannot continue: {type(error).__name__}: {error}")
        else:
            self._on_found(found)
        self._on_news()

    def _on_found(self, found: WayIn | socket.socket | None) -> None:
        assert self._loop is not None
        if found is None:
            self._lead_as_first()
            return
        if isinstance(found, socket.socket):
            self._connect(found)
            return
        self._own, self._election = found.own, found.election
        place = self._place
        self._server = JobServer(
            found.listener,
            self._loop,
            place.run_id,
            place.secret,
            place.silence_s,
            LOGGER.warning,
            self._on_message,
            self._on_led_by,
            self._node_id,
        )
        if found.connected is None:
            if place.other is not None:
                self._log_first()
            self._lead()
            return
        self._link = self._make_link()
        self._connect(found.connected)

    def _make_link(self, candidate: Successor | None = None) -> LeaderLink:
        """``candidate``: this launcher would have that one lead; None: it leads already."""
        assert self._loop is not None
        place = self._place
        callbacks = LinkCallbacks(
            admitted=self._on_admitted,
            decided=self._on_decided,
            led_elsewhere=self._on_led_elsewhere,
            lead=self._on_lead,
            broken=self._on_broken,
            lost=self._on_lost,
            log=LOGGER.warning,
            ended=self._on_replaced,
            reached=self._on_reached,
            released=self._on_released,
            stepped_down=self._on_stepped_down,
        )
        about = place.run_id, place.secret, self._node_id, self._name
        if candidate is None:
            return LeaderLink(self._loop, *about, callbacks, is_witness=place.is_witness)
        answer_s = place.silence_s / 5
        return LeaderLink(self._loop, *about, callbacks, offers=True, answer_s=answer_s)

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
        if self._candidate is not None:
            self._report_candidate(NotReached(self._candidate.node))
            return
        named, self._named = self._named, None
        if named is None or self._link is None:
            self._lose(why)
            return
        self._link.gone = f"{named.addr} {named.port}"
        again = self._finder.find_endpoint if named.host_of else self._finder.find_endpoint_again
        self._look(again)

    def _on_broken(self, why: str) -> None:
        if self._is_over:
            return
        if self._candidate is not None and not self._is_reached:
            self._report_candidate(NotReached(self._candidate.node))
            return
        if self._has_met:
            address, own = self._leader_address, self._proof_at()
            self._look(lambda: self._finder.find_again(address, own))
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
        if self._candidate is None:
            self._meet(leads=False)
            return
        candidate, self._candidate = self._candidate, None
        LOGGER.info(
            "the launcher at %s leads the job now", Endpoint(candidate.addr, candidate.port)
        )
        if self._server is not None:
            self._server.send_on((candidate.addr, candidate.port))
        self._events.append(Follows())
        kept, self._kept = self._kept, []
        for message in kept:
            self.send(message)
        self._on_news()

    def _on_decided(self, decision: Decision) -> None:
        if isinstance(decision, Round) and decision.leads_at is not None:
            self._note_leader(decision.leads_at)
        self._has_ended = self._has_ended or isinstance(decision, End)
        self._events.append(decision)
        self._on_news()

    def _on_led_elsewhere(self, answer: LedElsewhere) -> None:
        if answer.host_of:
            self._log_other_job(answer.host_of)
        self._named = answer
        self._look(lambda: self._finder.find_at(answer.addr, answer.port))

    def _on_lead(self, answer: LeadYourself) -> None:
        self._log_other_job(answer.host_of)
        if self._place.is_witness:
            self._on_broken("its job has no leader yet")
            return
        self._lead_as_first()
        self._on_news()

    def _lead_as_first(self) -> None:
        self._log_first()
        self._link = None
        self._lead()

    def _on_lost(self, why: str) -> None:
        if self._candidate is not None:
            self._report_candidate(NotReached(self._candidate.node))
            return
        self._lose(why)
        self._on_news()

    # ------------------------------------------------------------ leadership moves
    def _note_leader(self, at: Successor) -> None:
        """Its death is proved where it serves itself; the endpoint may be a proxy's."""
        own = (at.addr, at.port)
        if own == self._leader_at or not at.port:
            return
        self._leader_at = self._check = None
        if own == self._leader_address[:2]:
            self._leader_at = own
            return
        finder = self._finder
        self._check = own, CallInThread(lambda: finder.answers(*own), "holdfast-check")

    def _proof_at(self) -> tuple[str, int] | None:
        """Where a refusal proves that this leader has died; None: nowhere, as far as is known."""
        if self._leader_at is None and self._check is not None:
            own, check = self._check
            if check.has_ended():
                self._check = None
                with contextlib.suppress(OSError):  # there was no thread to spare for it
                    self._leader_at = own if check.result() else None
        return self._leader_at

    def _on_replaced(self, why: str) -> None:
        """Another program has the leader's address; behind a proxy's that proves nothing."""
        self._on_ended(why, is_proved=self._proof_at() == self._leader_address[:2])

    def _on_ended(self, why: str, *, is_proved: bool) -> None:
        if (candidate := self._candidate) is not None:
            has_answered = is_proved or (candidate.addr, candidate.port) in self._have_answered
            event = PeerDied if has_answered else NotReached
            self._report_candidate(event(candidate.node))
        elif is_proved and not self._is_over and not self._has_ended:
            self._events.append(LeaderDied(why))
            self._on_news()
        else:
            self._lose(why)
            self._on_news()

    def _approach(self, successor: Successor) -> None:
        if self._server is not None:
            self._server.send_on(None)
        self._leave_link()
        self._candidate, self._is_reached = successor, False
        self._leader_at = self._check = None
        self._link = self._make_link(successor)
        self._look(lambda: self._finder.find_candidate(successor.addr, successor.port))

    def _leave_link(self) -> None:
        self._search = self._candidate = None
        if self._link is not None:
            self._link.close(0.0)
            self._link = None

    def _on_reached(self) -> None:
        if self._candidate is not None:
            self._is_reached = True
            self._leader_at = (self._candidate.addr, self._candidate.port)
            self._have_answered.add(self._leader_at)
            self._report_candidate(Reached(self._candidate.node))

    def _claim(self, claim: ClaimKey) -> None:
        election, stop, patience_s = self._election, self._finder.stop, self._store_s
        assert election is not None
        self._key_late_at = clock.monotonic() + _STORE_ANSWERS_S
        self._key = CallInThread(
            lambda: election.claim(claim.term, claim.dead, stop, patience_s),
            "holdfast-key",
            self._wake,
        )

    @property
    def _store_s(self) -> float:
        """How long a store may be away in which a launcher is to take the lead."""
        return Pace.of(self._place.silence_s).return_s

    def _on_key(self) -> None:
        """The key may have been claimed, or looked at."""
        if self._key is None or not self._key.has_ended():
            return
        key, self._key, self._key_late_at = self._key, None, None
        if self._is_over:
            return
        try:
            found = key.result()
        except Exception as error:  # noqa: BLE001 - a backend may raise anything
            found = None
            if not self._leads:
                self._lose(str(error))
        match found:
            case KeyTaken() | KeyHeld():
                self._events.append(found)
            case KeyOver(how):
                self._lose(f"the job is over, as its rendezvous backend says: {how}")
            case LeaderKey(addr, port, term):
                where = Endpoint(addr, port)
                self._events.append(Deposed(f"the launcher at {where} leads it, in term {term}"))
        self._on_news()

    def _call_others(self, term: int, called: Iterable[Successor]) -> None:
        """One that starts at the endpoint later; and these, which may be asleep."""
        assert self._loop is not None
        assert self._own is not None
        assert self._server is not None
        place = self._place

        def make_link(callbacks: LinkCallbacks) -> LeaderLink:
            assert self._loop is not None
            about = place.run_id, place.secret, self._node_id, self._name
            return LeaderLink(self._loop, *about, callbacks, leads=term)

        own, endpoint = (self._own.address, self._server.port), (place.host, place.port)

        def call(
            at: tuple[str, int], *, once: bool, pause_s: Callable[[float], float]
        ) -> LeaderCall:
            about = at, self._finder, own, make_link, self._wake
            return LeaderCall(*about, once=once, pause_s=pause_s)

        pause_s = Pace.of(place.silence_s).call_pause_s
        addresses = ((one.addr, one.port) for one in called)
        calls = {at: call(at, once=True, pause_s=pause_s) for at in addresses}
        calls.pop(own, None)  # it has led before
        if self._server.port != place.port:  # else this launcher has it
            calls[endpoint] = call(endpoint, once=False, pause_s=lambda _: CALL_S)
        self._calls = tuple(calls.values())

    def _end_calls(self) -> None:
        for call in self._calls:
            call.close()
        self._calls = ()

    def _on_led_by(self, addr: str, port: int, term: int, node: str) -> None:
        self._events.append(LedBy(addr, port, term, node))
        self._on_news()

    def _step_down(self) -> None:
        assert self._server is not None
        self._leads = False
        self._server.step_down()
        self._end_calls()

    def _on_stepped_down(self, why: str) -> None:
        """The way to a leader was broken, and it does not lead any more."""
        if self._candidate is not None:
            self._report_candidate(NotReached(self._candidate.node))
        elif not self._is_over and not self._has_ended:
            ranks_s = Pace.of(self._place.silence_s).takeover_s
            self._events.append(Resigned(why, stays=True, ranks_s=ranks_s))
            self._on_news()

    def _send_on(self, addr: str, port: int, *, joins: bool) -> None:
        assert self._server is not None
        self._server.led_by(addr, port)
        if not joins:
            return
        self._leads = False
        self._link = self._make_link()
        self._named = LedElsewhere(addr, port, "")
        self._look(lambda: self._finder.find_at(addr, port))

    def _on_released(self, answer: NotAdmitted) -> None:
        if self._candidate is not None:
            about = answer.term, answer.asks, answer.ahead
            released = Released(self._candidate.node, *about)
            self._report_candidate(released)

    def _report_candidate(self, event: Reached | NotReached | PeerDied | Released) -> None:
        self._events.append(event)
        self._on_news()

    def _lead(self) -> None:
        assert self._server is not None
        self._leads = True
        self._server.lead(self._on_launcher_ended)
        if not self._has_met:
            self._meet(leads=True)

    def _meet(self, *, leads: bool) -> None:
        assert self._own is not None
        self._has_met = True
        if not self._is_leaving():
            port = self._server.port if self._server is not None else 0
            self._events.append(Met(leads, self._own.address, port))
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
