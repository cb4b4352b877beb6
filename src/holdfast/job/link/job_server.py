"""A launcher's port: launchers of its job, where it leads, and those that look for theirs.

:mod:`holdfast.job.pure.link` has the words. Messages of a launcher are handed over in order, none
twice; a connection that breaks may be made again, and nothing is lost. A launcher has ended if
its connection has closed and no process listens at its own port: a living kernel says so, and it is
given up without waiting for its silence.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from holdfast.base import clock
from holdfast.base.pure.codec import MessageError, decode, encode
from holdfast.job.pure.job_secret import SECRET
from holdfast.job.pure.link import (
    FRAME_BYTES_MAX,
    GREETINGS,
    NONCE_BYTES,
    PROOFS,
    Admitted,
    GreetLeader,
    LeaderProof,
    LeadYourself,
    LedElsewhere,
    NotAdmitted,
    Outbox,
    Refusal,
    Secret,
    as_sent,
    is_nonce,
)
from holdfast.job.pure.membership import (
    MESSAGES,
    Decision,
    Leave,
    Message,
    Round,
    StopCycle,
    Successor,
)
from holdfast.net.channel import RefusedError
from holdfast.net.pure import frames
from holdfast.net.pure.address import is_address, is_link_local, is_loopback, unmapped
from holdfast.net.pure.handshake import is_token
from holdfast.net.server import Server
from holdfast.net.tcp import tune

if TYPE_CHECKING:
    from holdfast.net.channel import Channel
    from holdfast.net.descriptors import Descriptors

_UNAUTHENTICATED_MAX = 1024
"""The launchers of a large job all come within a second."""
_OTHER_JOBS_MAX = 256


def _ignore(*_: object) -> None:
    """The connection has served its purpose."""


_CONNECTING = (errno.EINPROGRESS, errno.EWOULDBLOCK)


class _Launcher:
    """One that has been admitted; it may come back while the job lives."""

    __slots__ = (
        "address", "answers", "channel", "has_left", "id", "name", "node", "own_address",
        "received",
    )  # fmt: skip

    def __init__(self, id_: str, name: str) -> None:
        self.id = id_
        self.name = name
        self.channel: Channel | None = None
        self.received = 0
        self.node = ""
        """Its id in its last message; it changes when it comes back as another node."""
        self.has_left = False
        self.address: tuple[Any, ...] = ()
        """Where it would serve."""
        self.answers = False
        """It has accepted a connection there, so that a refusal says something."""
        self.own_address = ""
        """Where it has reached this host."""


class JobServer:
    """One launcher's listener. Before :meth:`lead` it takes votes for its own job, and no more.

    Args:
        listener: Bound and listening; closed with the server.
        descriptors: The loop.
        run_id: Name of the job.
        secret: Of the job.
        silence_s: How long a launcher may be silent.
        log: Called with each line about a caller that was cut off.
        on_message: Called with each message.
        on_led_by: Called with the address, the term and the node of a launcher that proves that it
            leads the job.
        own: Names this incarnation of the launcher; see :class:`.GreetLeader`.
    """

    def __init__(
        self,
        listener: socket.socket,
        descriptors: Descriptors,
        run_id: str,
        secret: str | None,
        silence_s: float,
        log: Callable[[str], None],
        on_message: Callable[[Message], None],
        on_led_by: Callable[[str, int, int, str], None] = lambda *_: None,
        own: str = "",
    ) -> None:
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self._descriptors = descriptors
        self._job = ascii(run_id)
        self._secret = Secret(secret, self._job)
        self._silence_s = silence_s
        self._session = ""
        self._on_message = on_message
        self._on_led_by = on_led_by
        self._own = own
        self._led_at: tuple[str, int] | None = None
        self._sessions_before: set[str] = set()
        """In which this launcher has led, and does not any more."""
        self._on_ended: Callable[[str], None] = lambda _: None
        self._decisions = Outbox()
        self._round: bytes | None = None
        """That of the cycle that runs: a launcher that comes late finds the next leader by it."""
        self._launchers: dict[str, _Launcher] = {}
        self._id_of: dict[str, str] = {}
        """Of the launcher that had a node's id last; it may have another since, or be gone."""
        self._other_jobs: dict[str, tuple[str, int]] = {}
        self._probes: dict[int, socket.socket] = {}
        self._server = Server(
            listener,
            descriptors,
            self._greet,
            log,
            identify=self._identify,
            greeting="greeting",
            unauthenticated_max=_UNAUTHENTICATED_MAX,
        )
        self._server.open()

    def lead(self, on_ended: Callable[[str], None]) -> None:
        """Admit the launchers of the job from now on, and those that have given their votes.

        ``on_ended``: called with the id of a node whose launcher has ended without a last message.
        """
        self._session = os.urandom(8).hex()
        self._on_ended = on_ended
        for launcher in self._launchers.values():
            if launcher.channel is not None:
                launcher.channel.send(encode(Admitted(self._session, launcher.received, 0)))
            elif launcher.has_left:
                on_ended(launcher.node)

    def led_by(self, addr: str, port: int) -> None:
        """The job is led there: callers are sent on, also those that have come already."""
        self._session, self._led_at = "", (addr, port)
        launchers, self._launchers, self._id_of = self._launchers, {}, {}
        for launcher in launchers.values():
            if launcher.channel is not None:
                launcher.channel.close()

    def step_down(self) -> None:
        """Lead no more. Callers that come back learn it; others may give their votes."""
        self._sessions_before.add(self._session)
        self._session = ""
        self._on_ended, self._round, self._decisions = lambda _: None, None, Outbox()
        launchers, self._launchers, self._id_of = self._launchers, {}, {}
        for launcher in launchers.values():
            if launcher.channel is not None:
                launcher.channel.close()

    def send_on(self, at: tuple[str, int] | None) -> None:
        """New launchers of the job that come here find its leader there; None: it is not known."""
        self._led_at = at

    def release(
        self,
        nodes: Collection[str],
        term: int,
        *,
        asks: bool = False,
        ahead: Successor | None = None,
    ) -> None:
        """Give the votes of these back; see :class:`.Released`."""
        answer = encode(NotAdmitted(Refusal.NOT_ELECTED, "", term, asks, ahead))
        for node in nodes:
            launcher = self._launchers.get(self._id_of.get(node, ""))
            if launcher is not None and launcher.node == node and launcher.channel is not None:
                del self._launchers[launcher.id], self._id_of[node]
                launcher.channel.send(answer)
                launcher.channel.on_closed = _ignore

    def publish(self, decision: Decision) -> None:
        """Send the next decision to all launchers."""
        frame = frames.encode(encode(decision), FRAME_BYTES_MAX)
        self._decisions.add(frame)
        if isinstance(decision, StopCycle):
            self._round = None
        elif isinstance(decision, Round) and not decision.again_for:
            self._round = frame
        for launcher in self._launchers.values():
            if (channel := launcher.channel) is None:
                continue
            if channel.is_full:
                channel.cut_off("does not read: it may come back for what it has missed")
            else:
                channel.send_frame(frame)

    def reached_at(self) -> str | None:
        """The address at which others have reached this host; None: they are all on it."""
        for launcher in self._launchers.values():
            own, theirs = launcher.own_address, launcher.address[0]
            if own != theirs and not is_loopback(unmapped(own)):
                return unmapped(own)
        return None

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_time`, at the latest."""
        return self._server.next_deadline()

    def on_time(self) -> None:
        """Cut off callers that said nothing."""
        self._server.tick(clock.monotonic())

    def close(self, timeout_s: float) -> None:
        """Send the last decisions, within so long for all, and close."""
        self._server.close()
        self._listener.close()
        for probe in [*self._probes.values()]:
            self._forget_probe(probe)
        until = clock.monotonic() + timeout_s
        for launcher in self._launchers.values():
            if launcher.channel is not None:
                launcher.channel.finish(until - clock.monotonic())
                launcher.channel = None

    # ------------------------------------------------------------ greetings
    def _identify(self, connected: socket.socket, address: Any) -> str:
        tune(connected, self._silence_s)
        return f"a caller from {unmapped(address[0])}"

    def _greet(self, channel: Channel, frame: frames.Message) -> None:
        greeting = decode(GREETINGS, frame)
        if not is_nonce(greeting.nonce):
            raise RefusedError("sent a greeting with a malformed nonce")
        if greeting.job != self._job:
            channel.send(encode(self._lead_to(greeting)))
            self._server.admit(channel, _ignore, _ignore, len(greeting.job))
            channel.close()
            return
        if greeting.session and greeting.session in self._sessions_before:
            # Also if this launcher leads again: its death is not to be proved by that.
            channel.send(encode(NotAdmitted(Refusal.STEPPED_DOWN)))
            self._server.admit(channel, _ignore, _ignore, len(greeting.job))
            channel.close()
            return
        is_welcome = self._session or greeting.offers or greeting.leads
        if not is_welcome and self._led_at is not None:
            channel.send(encode(LedElsewhere(*self._led_at, "")))
            self._server.admit(channel, _ignore, _ignore, len(greeting.job))
            channel.close()
            return
        if not is_welcome:
            channel.send(encode(NotAdmitted(Refusal.NOT_LEADER)))
            raise RefusedError("looks for the leader of the job, which is not here")
        if greeting.launcher == self._own:
            raise RefusedError("repeats the greeting of this launcher itself")
        try:
            said = as_sent(frame)
        except (ValueError, RecursionError):
            raise RefusedError("sent a greeting that no launcher sends") from None
        nonce = os.urandom(NONCE_BYTES).hex()
        proof = self._secret.proof("launcher", said, nonce)
        channel.on_message = lambda channel, frame: self._admit(channel, frame, greeting, proof)
        own = self._secret.proof("leader", said, nonce)
        channel.send(encode(LeaderProof(nonce, own)))

    def _lead_to(self, greeting: GreetLeader) -> LedElsewhere | LeadYourself:
        """The leader of a job that meets at this launcher's endpoint: the first of it that came.

        Their names keep the jobs apart, as under torchrun.
        """
        known = self._other_jobs.get(greeting.job)
        if known is not None and greeting.gone != f"{known[0]} {known[1]}":
            return LedElsewhere(*known, self._job)
        if greeting.is_witness:
            raise RefusedError("is a witness of another job, which has no leader yet")
        if known is None and len(self._other_jobs) >= _OTHER_JOBS_MAX:
            raise RefusedError("leads one job too many at this endpoint")
        self._other_jobs[greeting.job] = greeting.addr, greeting.port
        return LeadYourself(self._job)

    def _admit(
        self, channel: Channel, frame: frames.Message, greeting: GreetLeader, proof: str
    ) -> None:
        if not is_token(decode(PROOFS, frame).proof, proof):
            channel.send(encode(NotAdmitted(Refusal.OTHER_SECRET)))
            here = "this one has one" if self._secret.is_set else "this one has none"
            raise RefusedError(
                f"is a launcher on {greeting.name[:100]!a} that is kept out of the job {self._job}:"
                " it does not prove that it has the secret of the launcher that leads "
                f"({here}). If it belongs to the job, give all launchers the same {SECRET} in "
                "their environment, or --rdzv-conf secret="
            )
        if greeting.leads:
            channel.send(encode(NotAdmitted(Refusal.LED_BY_CALLER)))
            self._server.admit(channel, _ignore, _ignore, FRAME_BYTES_MAX)
            channel.close()
            self._on_led_by(greeting.addr, greeting.port, greeting.leads, greeting.launcher)
            return
        launcher, decided = self._launchers.get(greeting.launcher), self._decisions.count
        missed = self._decisions.after(greeting.received) if greeting.session else ()
        if greeting.session not in ("", self._session):
            refusal = Refusal.OTHER_SESSION
        elif greeting.session and (launcher is None or missed is None):
            refusal = Refusal.BEHIND
        else:
            refusal = None
        if refusal is not None:
            channel.send(encode(NotAdmitted(refusal)))
            raise RefusedError(f"({greeting.name[:100]!a}) is not admitted: {refusal.value}")
        own, theirs = channel.addresses()  # or the caller has gone meanwhile
        if launcher is None:
            launcher = _Launcher(greeting.launcher, greeting.name)
            self._launchers[launcher.id] = launcher
        if launcher.channel is not None:
            launcher.channel.close()  # the launcher has seen its end before this side did
        if greeting.offers:
            launcher.received = 0  # it sends its vote again, and all after that
        if greeting.session:
            decided = greeting.received
        launcher.channel, launcher.own_address = channel, own[0]
        # As it says itself: the other end of the connection may be a gateway between them.
        is_literal = is_address(greeting.addr) and not is_link_local(greeting.addr)
        at = (greeting.addr,) if is_literal else (theirs[0], *theirs[2:])
        launcher.address = (at[0], greeting.port, *at[1:])
        channel.report = lambda channel, why: self._server.report(
            channel.peer, f"({launcher.name[:100]!a}) was cut off: {why}"
        )
        self._server.admit(
            channel,
            lambda _, frame: self._take(launcher, frame),
            lambda _: self._lose(launcher, channel),
            FRAME_BYTES_MAX,
        )
        is_new = not greeting.session and not greeting.offers  # it has no round
        if self._session and is_new and self._round is not None:
            missed, decided = [self._round], decided - 1
        if self._session:
            channel.send(encode(Admitted(self._session, launcher.received, decided)))
        for missed_frame in missed or ():
            channel.send_frame(missed_frame)
        if not launcher.answers:
            self._probe(launcher)

    # ------------------------------------------------------------ launchers of the job
    def _take(self, launcher: _Launcher, frame: frames.Message) -> None:
        launcher.received += 1
        try:
            message = decode(MESSAGES, frame)
        except MessageError as error:  # of another version: the messages after it count
            self._server.report(f"a message of {launcher.name!a}", f"cannot be used: {error}")
            return
        launcher.node = message.node
        self._id_of[launcher.node] = launcher.id
        launcher.has_left = isinstance(message, Leave)
        self._on_message(message)

    def _lose(self, launcher: _Launcher, channel: Channel) -> None:
        if launcher.channel is channel:
            launcher.channel = None
            if launcher.node and not launcher.has_left:
                self._probe(launcher)

    def _probe(self, launcher: _Launcher) -> None:
        """Connect to the port of a launcher: when it comes, and when its connection has ended.

        A connection may also end on its way, and its launcher comes back. If the launcher is gone,
        its kernel refuses a connection to its port; if its host is, no answer comes, and its
        silence decides. A firewall refuses connections, too, and from the first one on.
        """
        family = socket.AF_INET6 if ":" in launcher.address[0] else socket.AF_INET
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # no descriptor is free: nothing is proved
            return
        probe.setblocking(False)
        try:
            refused = probe.connect_ex(launcher.address)
        except OSError:  # an address of no meaning here
            probe.close()
            return
        if refused in _CONNECTING:
            self._probes[probe.fileno()] = probe
            self._descriptors.epoll.register(probe.fileno(), select.EPOLLOUT)
            self._descriptors.call(probe.fileno(), lambda: self._answered(launcher, probe))
        else:
            probe.close()
            self._conclude(launcher, refused)

    def _answered(self, launcher: _Launcher, probe: socket.socket) -> None:
        refused = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._forget_probe(probe)
        self._conclude(launcher, refused)

    def _conclude(self, launcher: _Launcher, refused: int) -> None:
        if launcher.channel is not None:
            launcher.answers = launcher.answers or refused == 0
        elif refused == errno.ECONNREFUSED and launcher.answers and not launcher.has_left:
            launcher.has_left = True
            self._on_ended(launcher.node)

    def _forget_probe(self, probe: socket.socket) -> None:
        del self._probes[probe.fileno()]
        self._descriptors.forget(probe.fileno())
        probe.close()
