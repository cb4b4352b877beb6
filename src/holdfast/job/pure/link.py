"""The words with which a launcher and the leader of its job begin a connection. Pure.

    launcher                                            the launcher that serves
      GreetLeader(job, nonce) ──────────────────────►
                              ◄────────────────────── LeaderProof(nonce, proof)
      LauncherProof(proof) ─────────────────────────►
                              ◄────────────────────── Admitted(session, received, decided)
      messages 1, 2, 3 ... ─────────────────────────►
                              ◄────────────────────── decisions, from ``decided + 1`` on

Each side proves that it holds the job's secret, by a nonce of the other that was never used before:
a recording of one connection proves nothing in another. Both proofs are of the whole greeting, and
a launcher refuses its own: else a stranger that it greets could repeat that at the launcher's own
port, changed or not, and send the proof back.

After that the connection carries messages and decisions as they are, in order; so each has a number
that need not be sent. A connection that breaks is made again: each side says how many it has
received, and the other sends the rest (:class:`Outbox`).

When the leader of a job has died, a launcher greets another one of the job so that it may lead, and
gives it its vote (:class:`.Offer`) as the first message. The answer is `Admitted` when it leads; or
that it will not (`NOT_ELECTED`).

At an endpoint where another job is led, the answer is the address of the launcher that leads the
caller's job (:class:`LedElsewhere`), or that the caller is the first (:class:`LeadYourself`).

Without a secret the proofs keep out accidents, but no program that knows this file.
"""

from __future__ import annotations

import enum
import json
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Annotated

from holdfast.base.pure.codec import Count, Name, Raw, Text, Whole, family
from holdfast.base.pure.value import Value
from holdfast.job.pure.membership import Successor
from holdfast.net.pure.handshake import is_proof, proof

Port = Annotated[int, Whole(1, 65535)]
FRAME_BYTES_MAX = 16 << 20
"""Longest message or decision; the round of 10,000 nodes has 1 MiB."""
NONCE_BYTES = 16
KEPT_BYTES = 4 << 20
"""Of messages that are kept for a connection that breaks: the beats of a day, and a few rounds."""


class GreetLeader(Value):
    """A launcher looks for the leader of its job, or comes back to it.

    Attributes:
        job: Its name, escaped (``ascii``).
        nonce: Hexadecimal digits.
        launcher: Names this incarnation of the launcher among all of its job.
        name: Its host and pid, for people.
        addr, port: Where it would serve, and accepts connections from now on.
        session: Of the start of the job that it belongs to; empty: it is new.
        received: The last decision that it has; meaningless if it is new.
        gone: ``addr port`` of a leader of its job that the caller has found dead.
        offers: The caller would have this launcher lead.
        leads: The caller leads in this term, and calls a launcher that was started anew; 0: not so.
        is_witness: The caller never leads.
    """

    job: Name
    nonce: Name
    launcher: Name
    name: Raw
    addr: Name
    port: Port
    session: Raw = ""
    received: Count = 0
    gone: Raw = ""
    offers: bool = False
    leads: Count = 0
    is_witness: bool = False


class LeaderProof(Value):
    """The leader is here, and holds the secret."""

    nonce: Name
    proof: Name


class LauncherProof(Value):
    """So does the launcher; empty: the leader's proof was not right."""

    proof: Raw


class Admitted(Value):
    """The launcher belongs to the job.

    Attributes:
        session: Drawn at each start of the job.
        received: The last message of this launcher that the leader has.
        decided: The last decision that the launcher has, or need not have.
    """

    session: Name
    received: Count
    decided: Count


class Refusal(enum.Enum):
    """Why a launcher is not admitted."""

    NOT_LEADER = "this launcher does not lead the job"
    OTHER_SECRET = "the secrets differ"  # noqa: S105 - a reason
    OTHER_SESSION = "the job was started again"
    STEPPED_DOWN = "this launcher does not lead the job any more"
    BEHIND = "it has missed too much"
    NOT_ELECTED = "too few launchers would have it lead"
    LED_BY_CALLER = "the caller leads the job"


class NotAdmitted(Value):
    """The launcher has no part in the job that is led here."""

    why: Refusal
    text: Text = ""
    term: Count = 0
    asks: bool = False
    """With NOT_ELECTED: the next term in which it could lead; whether it asks for a vote in it."""
    ahead: Successor | None = None
    """With NOT_ELECTED: the launcher that it would have lead, or that leads."""


class LedElsewhere(Value):
    """The caller's job is led there, and another one, ``host_of``, here, or none."""

    addr: Name
    port: Port
    host_of: Raw


class LeadYourself(Value):
    """No launcher leads the caller's job: the caller does. ``host_of`` is led here."""

    host_of: Raw


GREETINGS: Mapping[str, type[GreetLeader]] = family(GreetLeader)
PROOFS: Mapping[str, type[LauncherProof]] = family(LauncherProof)
Answer = LeaderProof | Admitted | NotAdmitted | LedElsewhere | LeadYourself
ANSWERS: Mapping[str, type[Answer]] = family(Answer)


class Secret:
    """The job's secret; None: it has none."""

    def __init__(self, secret: str | None, job: str) -> None:
        self.is_set = secret is not None
        self._secret = secret or ""
        self._job = job

    def proof(self, by: str, greeting: str, leaders: str) -> str:
        """The proof of ``by`` ("leader" or "launcher"), for :func:`as_sent` and a nonce."""
        return proof(self._secret, by, f"{greeting} {leaders} {self._job}")

    def is_proof(self, value: str, by: str, greeting: str, leaders: str) -> bool:
        """Whether ``value`` is :meth:`proof`."""
        return is_proof(value, self._secret, by, f"{greeting} {leaders} {self._job}")


def as_sent(greeting: Mapping[str, object]) -> str:
    """All of a greeting, as the proofs have it, also what only a later version knows.

    Raises:
        ValueError, RecursionError: No launcher has sent this.
    """
    return json.dumps(greeting, sort_keys=True)


def is_nonce(value: str) -> bool:
    """Whether a nonce has the form that makes a proof unambiguous."""
    return len(value) == 2 * NONCE_BYTES and not value.strip("0123456789abcdef")


class Outbox:
    """Messages that were sent on a connection, numbered from 1; the last of them are kept."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: deque[bytes] = deque()
        self._bytes = 0

    def add(self, frame: bytes) -> None:
        """One more."""
        self.count += 1
        self._kept.append(frame)
        self._bytes += len(frame)
        while self._bytes > KEPT_BYTES and len(self._kept) > 1:
            self._bytes -= len(self._kept.popleft())

    def after(self, received: int) -> Iterable[bytes] | None:
        """All after number ``received``; None: not all of them are kept, or it is not one."""
        missing = self.count - received
        if not 0 <= missing <= len(self._kept):
            return None
        return [*self._kept][len(self._kept) - missing :]
