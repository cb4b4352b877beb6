"""A launcher's connection to the leader of its job: messages up, decisions down.

    connected ──greeting, proofs──► open ──closed──► connecting again ──► open
                       │                                    │
                       └── refused: lost                    └── no process listens there: lost

:mod:`holdfast.job.pure.link` has the words. While there is no connection, messages wait; those
that were sent and did not arrive are sent again. The member decides about a
silence of the leader (:mod:`holdfast.job.pure.member`); here only proof counts: the leader's
host is alive, and its launcher is not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.base import clock
from holdfast.base.pure.codec import MessageError, decode, encode
from holdfast.base.pure.value import Value
from holdfast.job.pure.link import (
    ANSWERS,
    FRAME_BYTES_MAX,
    NONCE_BYTES,
    Admitted,
    GreetLeader,
    LauncherProof,
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
from holdfast.job.pure.membership import DECISIONS, Decision, Message, Offer, Round
from holdfast.job.pure.timing import WELCOME_S
from holdfast.net.channel import Channel, RefusedError
from holdfast.net.pure import frames
from holdfast.net.pure.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    import socket

    from holdfast.net.descriptors import Descriptors


class LinkCallbacks(Value):
    """Results of a link.

    Attributes:
        admitted: The leader is there; called once, before the first decision.
        decided: The next decision.
        led_elsewhere: The connection leads to the leader of another job, which knows this job's.
        lead: It knows none: this launcher is to lead.
        broken: The connection is gone; to be made again with :meth:`LeaderLink.connected`.
        lost: The leader refuses this launcher, for this reason.
        log: A line for people.
        ended: The leader has died, as the program shows that has its address now.
        reached: It would take a vote (:class:`LeaderLink` ``offers``).
        released: It will not lead, and gives the vote back.
        stepped_down: The leader does not lead any more, and may live.
    """

    admitted: Callable[[], None]
    decided: Callable[[Decision], None]
    led_elsewhere: Callable[[LedElsewhere], None]
    lead: Callable[[LeadYourself], None]
    broken: Callable[[str], None]
    lost: Callable[[str], None]
    log: Callable[[str], None]
    ended: Callable[[str], None]
    reached: Callable[[], None] = lambda: None
    released: Callable[[NotAdmitted], None] = lambda _: None
    stepped_down: Callable[[str], None] = lambda _: None


class LeaderLink:
    """One launcher's way to its leader.

    Args:
        descriptors: The loop.
        run_id, secret: Of the job.
        launcher: Names this incarnation of the launcher.
        name: Its host and pid, for people.
        callbacks: See there.
        offers: The other end does not lead yet: it gets a vote, by :meth:`give`.
        leads: The term in which this launcher leads; the other end was started anew, and is to
            know that.
        answer_s: How long the other end may take to answer.
        is_witness: This is no launcher, and never leads.
    """

    def __init__(
        self,
        descriptors: Descriptors,
        run_id: str,
        secret: str | None,
        launcher: str,
        name: str,
        callbacks: LinkCallbacks,
        *,
        offers: bool = False,
        leads: int = 0,
        answer_s: float = WELCOME_S,
        is_witness: bool = False,
    ) -> None:
        self._descriptors = descriptors
        self._run_id = run_id
        self._job = ascii(run_id)
        self._secret = Secret(secret, self._job)
        self._launcher = launcher
        self._name = name
        self._do = callbacks
        self._offers = offers
        self._leads = leads
        self._has_given = False
        self._has_round = False
        self._answer_s = answer_s
        self._is_witness = is_witness
        self._messages = Outbox()
        self._received = 0
        """Number of the last decision that came."""
        self._session = ""
        self._greeting = ""
        self._channel: Channel | None = None
        self._is_open = False
        self._is_proved = False
        """The other end of this connection knows the secret."""
        self._answer_by: float | None = None
        self._warnings = RateLimitedLog()
        self._is_closed = False
        self.gone = ""
        """Address and port of a leader of this job that was found dead; see the greeting."""

    def connected(self, connected: socket.socket, addr: str, port: int) -> None:
        """There is a connection; this launcher would serve at ``addr``, ``port``."""
        if self._is_closed:
            connected.close()
            return
        self._is_open = self._is_proved = False
        self._answer_by = clock.monotonic() + self._answer_s
        self._channel = Channel(
            connected, self._descriptors, self._on_frame, self._on_closed, FRAME_BYTES_MAX
        )
        greeting = GreetLeader(
            self._job,
            os.urandom(NONCE_BYTES).hex(),
            self._launcher,
            self._name,
            addr,
            port,
            self._session,
            self._received,
            self.gone,
            self._offers and not self._session,
            self._leads,
            self._is_witness,
        )
        said = encode(greeting)
        self._greeting = as_sent(said)
        self._channel.send(said)

    def send(self, message: Message) -> None:
        """Send a message to the leader, once, however often the connection breaks."""
        frame = frames.encode(encode(message), FRAME_BYTES_MAX)
        self._messages.add(frame)
        if (self._is_open or self._is_held) and self._channel is not None:
            self._channel.send_frame(frame)

    @property
    def _is_held(self) -> bool:
        """The other end has this launcher's vote, and does not lead."""
        return self._has_given and self._is_proved and not self._session

    def give(self, offer: Offer) -> None:
        """Send the vote; all other messages follow it."""
        self._has_given = True
        self.send(offer)

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_time`, at the latest."""
        return self._answer_by

    def on_time(self) -> None:
        """Give up a leader that accepts a connection, and does not answer."""
        if self._answer_by is not None and clock.monotonic() >= self._answer_by:
            self._answer_by = None
            can_call_again = self._session or self._offers or self._leads
            if can_call_again and self._channel is not None:
                self._channel.cut_off(f"has not answered within {self._answer_s:g} s")
                return
            self._lose(
                f"the launcher that leads the job {self._run_id!r} has not answered within "
                f"{self._answer_s:g} s"
            )

    def close(self, timeout_s: float) -> None:
        """Send the last messages, within so long, and close."""
        self._is_closed, self._answer_by = True, None
        if self._channel is not None:
            self._channel.finish(timeout_s if self._is_open else 0.0)

    # ------------------------------------------------------------ from the leader
    def _on_frame(self, channel: Channel, frame: frames.Message) -> None:
        if self._is_open:
            self._take(frame)
            return
        try:
            answer = decode(ANSWERS, frame)
        except MessageError as error:
            self._lose(f"the leader of the job {self._run_id!r} is of another version: {error}")
            raise RefusedError("is of another version") from None
        match answer:
            case LeaderProof(nonce, proof):
                is_leader = is_nonce(nonce) and self._secret.is_proof(
                    proof, "leader", self._greeting, nonce
                )
                own = self._secret.proof("launcher", self._greeting, nonce) if is_leader else ""
                channel.send(encode(LauncherProof(own)))
                if not is_leader:
                    self._lose(self._other_secret())
                    raise RefusedError("does not know the secret of this job")
                self._is_proved = True
                if self._offers and not self._session:
                    self._on_candidate(channel)
            case Admitted():
                if not self._is_proved:  # a program that imitates a leader
                    self._lose(self._other_secret())
                    raise RefusedError("did not prove that it knows the secret of this job")
                self._on_admitted(channel, answer)
            case NotAdmitted(Refusal.NOT_ELECTED):
                self._leave(channel)
                self._do.released(answer)
            case NotAdmitted(why):
                self._on_refused(why)
            case LedElsewhere(host_of="") if not self._has_round:
                # Of this job, which the launcher here led for a moment.
                self._session, self._received = "", 0
                self._leave(channel)
                self._do.led_elsewhere(answer)
            case LedElsewhere() | LeadYourself() if self._session:
                # Never a second leader: another job's launcher has the address of this one's now.
                self._end("its launcher has ended, and another job is led there")
                raise RefusedError("leads another job")
            case LedElsewhere():
                self._leave(channel)
                self._do.led_elsewhere(answer)
            case LeadYourself():
                self._leave(channel)
                self._do.lead(answer)

    def _on_admitted(self, channel: Channel, admitted: Admitted) -> None:
        # All that a held connection was given went out on it, in order.
        missed = () if self._is_held else self._messages.after(admitted.received)
        if missed is None:
            self._lose(f"the leader of the job {self._run_id!r} has missed too many messages")
            raise RefusedError("has missed too many messages")
        self._is_open, self._answer_by = True, None
        is_new = not self._session
        self._session, self._received = admitted.session, admitted.decided
        for frame in missed:
            channel.send_frame(frame)
        if is_new:
            self._do.admitted()

    def _take(self, frame: frames.Message) -> None:
        self._received += 1
        try:
            decision = decode(DECISIONS, frame)
        except MessageError as error:  # of another version: the decisions after it count
            text = f"cannot be used: {error}"
            line = self._warnings.line("a decision of the leader", text, clock.monotonic())
            if line is not None:
                self._do.log(line)
            return
        self._has_round = self._has_round or isinstance(decision, Round)
        self._do.decided(decision)

    def _on_refused(self, why: Refusal) -> None:
        if why is Refusal.OTHER_SECRET:
            self._lose(self._other_secret())
        elif why is Refusal.STEPPED_DOWN:
            self._is_closed, self._answer_by = True, None
            self._do.stepped_down(why.value)
        elif why is Refusal.NOT_LEADER and self._session:
            self._end("its launcher has ended, and another one has its address")
        elif why is Refusal.NOT_LEADER and self._channel is not None:
            self._leave(self._channel)
            self._do.broken(why.value)  # not yet, or no more
        elif why is Refusal.OTHER_SESSION:
            self._end("its launcher has ended, and the job was started again")
        else:
            self._lose(f"it refuses this launcher: {why.value}")

    def _on_closed(self, channel: Channel) -> None:
        self._is_open, self._answer_by, self._channel = False, None, None
        if not self._is_closed:
            self._do.broken(channel.gone or "")

    def _leave(self, channel: Channel) -> None:
        self._answer_by, self._channel = None, None
        channel.close()

    def _on_candidate(self, channel: Channel) -> None:
        self._answer_by = None
        if not self._has_given:
            self._do.reached()
            return
        for frame in self._messages.after(0) or ():  # the connection was made again
            channel.send_frame(frame)

    def _end(self, why: str) -> None:
        self._is_closed, self._answer_by = True, None
        self._do.ended(why)

    def _lose(self, why: str) -> None:
        self._is_closed, self._answer_by = True, None
        self._do.lost(why)

    def _other_secret(self) -> str:
        own = "one, the leader has another or none" if self._secret.is_set else "none"
        return (
            f"the launcher that leads the job {self._run_id!r} refuses this one, as their secrets "
            f"differ (this launcher has {own}). Give all launchers of the job the same "
            "HOLDFAST_JOB_SECRET in their environment, or --rdzv-conf secret="
        )
