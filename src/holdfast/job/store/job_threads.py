"""The threads between a launcher's machines and the job's store.

    threads, each with a connection of its own          where the machines are
      follower  waits for the next decision    ──►  decided(decision)
      poster    sends messages                 ◄──  post(message)
      taker     waits for the next message     ──►  arrived(message)     only where
      publisher appends decisions              ◄──  publish(decision)    the store is

Threads carry bytes and wait, and decide nothing; ``Callbacks.run`` runs their results where the
machines are. Importing this module does not import torch; beginning does.

Any program that reaches the store may have written a value (:mod:`holdfast.job.pure.sealed`): one
that is not signed with the job's secret, or cannot be read, is logged and ignored, and ends no
thread. A launcher that is new asks first::

    hello {nonce}  ──►  mailbox, signed for no session         where the store is
    welcome/<nonce>  ◄──  {session, number of the last decision}, signed

So it knows that the leader is there, has the same secret, and belongs to this start of the job.
"""

from __future__ import annotations

import functools
import logging
import os
import queue
import re
import secrets
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar, cast

from holdfast.base import clock
from holdfast.base.pure.codec import MessageError, decode, encode
from holdfast.base.pure.printable import one_line
from holdfast.base.pure.value import Value
from holdfast.job.pure.job_secret import SECRET
from holdfast.job.pure.membership import (
    DECISIONS,
    HELLO,
    MAILBOX,
    WELCOME,
    Decision,
    End,
    Join,
    Message,
    OpenSession,
    SessionOpened,
    WakeMailbox,
)
from holdfast.job.pure.sealed import (
    Sealer,
    SealError,
    UnreadableError,
    UnsignedError,
    unsigned_body,
)
from holdfast.job.pure.timing import CONNECT_S, DOUBT_S, LAST_WORDS_S, WELCOME_S
from holdfast.job.store.store_address import StoreAddress
from holdfast.net.address import gloo_interface, is_own_address, publish, way_to_store
from holdfast.net.pure.rate_limited_log import RateLimitedLog
from holdfast.net.reach import PeerUnreachableError, wait_until_reachable

if TYPE_CHECKING:
    from holdfast.base.torch_private import Store
    from holdfast.job.store.job_store import Connect, JobStore, Mailbox, Seal

LOGGER = logging.getLogger("holdfast")

_NONCE = re.compile(r"[0-9a-f]{32}")
_ANSWERED_MOST = 256
_T = TypeVar("_T")
_WHAT_TO_DO = (
    "The launcher there hosts the store: check the endpoint (--rdzv-endpoint), that it "
    "was started and that no firewall is between; if it comes up later, give more time "
    "(--rdzv-conf read_timeout=SECONDS)"
)


class OwnAddress(Value):
    """Where others reach the ranks of this node.

    Attributes:
        address: An address, or a name that leads others here.
        gloo_interface: Ranks need it in ``GLOO_SOCKET_IFNAME``; None: they do not.
    """

    address: str
    gloo_interface: str | None = None


class Callbacks(Value):
    """Results of the threads; every one of them is called through ``run``.

    Attributes:
        run: Runs a function where the machines are, soon and in order; called by any thread.
        met: The way to the others and back is there. True: the leader is here, as the store is, or
            as this launcher was the first at another backend's. Returns False when it is too late,
            and no message is to be sent any more.
        decided: The next decision.
        arrived: The next message for the leader.
        lost: The store is gone for good, for this reason.
        no_torch: There is no way to a store on this machine, for this reason; None: as ``lost``.
        ended_before: How the job of this launcher has ended already, as this host knows; None: it
            has not, or nothing proves it. Called in the thread that looks for the others, when no
            launcher is found at an endpoint of this host.
    """

    run: Callable[[Callable[[], None]], None]
    met: Callable[[bool, OwnAddress], bool]
    decided: Callable[[Decision], None]
    arrived: Callable[[Message], None]
    lost: Callable[[str], None]
    no_torch: Callable[[str], None] | None = None
    ended_before: Callable[[], End | None] = lambda: None


class _Connections(Value):
    """To the store, one for each concern; ``taker`` and ``publisher``: where the leader is."""

    follower: JobStore
    first: int
    """Number of the first decision that concerns this launcher."""
    session: str
    poster: JobStore
    taker: JobStore | None
    publisher: JobStore | None
    own: OwnAddress


class _NoAnswerError(ConnectionError):
    """The launcher that leads the job is not there, or stopped."""


class JobThreads:
    """One launcher's ways to and from the store of its job."""

    def __init__(self, address: StoreAddress, callbacks: Callbacks) -> None:
        self._address = address
        self._do = callbacks
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._decided: queue.SimpleQueue[Decision | None] = queue.SimpleQueue()
        self._hosted: Store | None = None  # dies with the reference
        self._poster: threading.Thread | None = None
        self._publisher: threading.Thread | None = None
        self._taker: threading.Thread | None = None
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._sealer = Sealer(address.secret, address.run_id)
        self._session = ""
        """Drawn at each start of the job; known before any thread but the first needs it."""
        self._published = 0
        self._answered: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._stores: list[JobStore] = []  # with the lock; `close` hangs up
        self._absences = RateLimitedLog()  # with the lock

    def begin(self) -> None:
        """Set out to host or find the store; returns at once. ``lost``: there is none."""
        # torch warns about every wait that times out: these are part of the plan, and errors are
        # raised.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        self._start(self._meet)

    def post(self, message: Message) -> None:
        """Send a message to the leader, soon."""
        self._outbox.put(message)

    def publish(self, decision: Decision) -> None:
        """Append a decision to the log, soon; only where the leader is."""
        self._decided.put(decision)

    def close(self) -> None:
        """Send the messages that are left, then end the threads; none is in torch afterwards.

        Waits ``2 * LAST_WORDS_S`` at most for a store that does not answer. More than once does
        no harm.
        """
        self._closing.set()
        self._outbox.put(None)
        self._decided.put(None)
        _join([self._poster, self._publisher, self._taker], LAST_WORDS_S)
        with self._lock:
            for store in self._stores:
                store.hang_up()
        _join(self._threads, LAST_WORDS_S)
        self._hosted = None

    def _met(self, connections: _Connections) -> None:
        """Where the machines are."""
        leads = connections.taker is not None
        self._session = connections.session
        if not self._do.met(leads, connections.own):
            return
        if leads:
            self._taker = self._start(self._take, connections.taker)
            self._publisher = self._start(self._publish, connections.publisher)
        self._start(self._follow, connections.follower, connections.first)
        self._poster = self._start(self._post, connections.poster)

    # ------------------------------------------------------------ the threads' side
    def _start(self, run: Callable[..., None], *args: object) -> threading.Thread:
        name = f"holdfast-{run.__name__.strip('_')}"
        thread = threading.Thread(target=self._run, args=(run, *args), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _run(self, run: Callable[..., None], *args: object) -> None:
        """Report the end of a thread: the others would wait for it until the job is given up."""
        try:
            run(*args)
        except ConnectionError as error:
            self._give_up(f"the store at {self._address} is gone ({error})")
        except Exception as error:
            LOGGER.exception("the thread %s has ended", threading.current_thread().name)
            self._give_up(f"this launcher cannot go on: {type(error).__name__}: {error}")

    def _away(self, why: str) -> None:
        """By any thread, each of which finds out by itself."""
        at = self._address
        if self._closing.is_set() or at.other is None:
            return
        doing = f"does not answer ({why}); trying again for {at.other.patience_s:g} s"
        with self._lock:
            line = self._absences.line(f"the store at {at}", doing, clock.monotonic())
        if line is not None:
            LOGGER.warning("%s", line)

    def _give_up(self, text: str) -> None:
        if not self._closing.is_set():  # else this launcher has ended it
            self._call(self._do.lost, text)

    def _call(self, callback: Callable[[_T], None], argument: _T) -> None:
        self._do.run(functools.partial(callback, argument))

    def _meet(self) -> None:
        """Connect, which may take as long as the first node takes to come up."""
        try:
            from holdfast.job.store import job_store  # noqa: PLC0415 - imports torch
        except Exception as error:  # noqa: BLE001 - a broken torch may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            text = (
                f"torch cannot be imported by {sys.executable} ({reason}), and launchers of "
                "several nodes meet through torch's store: install torch there, or use one node"
            )
            if self._do.no_torch is None:
                self._give_up(text)
            else:
                self._call(self._do.no_torch, text)
            return
        at = self._address
        LOGGER.info("looking for the others of the job %r at %s", at.run_id, at)

        patience = job_store.StorePatience(at.other.patience_s if at.other else 0.0, self._away)
        try:
            way, seen = self._find_store()
            if self._hosted is not None and self._comes_late():
                return
            own = self._own_address(seen)

            def connect() -> JobStore:
                store = job_store.JobStore(way, at.prefix, patience)
                with self._lock:
                    self._stores.append(store)
                    if self._closing.is_set():
                        store.hang_up()
                return store

            follower = connect()
            leads = follower.is_first() if at.other else self._hosted is not None
            if at.other and not leads:
                self._refuse_a_job_that_is_over(follower)
            poster = connect()
            if not leads and at.other is None and self._is_guest(follower):
                leads = self._leads_as_guest(follower, poster)
            if leads and self._hosted is None:
                LOGGER.info("this launcher came first, and leads the job %r", at.run_id)
            session, published = (secrets.token_hex(8), 0) if leads else self._greet(poster)
            connections = _Connections(
                follower=follower,
                first=published + 1,
                session=session,
                poster=poster,
                taker=connect() if leads else None,
                publisher=connect() if leads else None,
                own=own,
            )
        except PeerUnreachableError as error:
            self._give_up(f"{error}. {_WHAT_TO_DO}")
        except ConnectionError as error:
            if at.other is None and is_own_address(at.host) and self._comes_late():
                return  # it met the job while that was ending
            self._give_up(f"launchers cannot meet at {at}: {error}")
        else:
            self._call(self._met, connections)

    def _comes_late(self) -> bool:
        """Whether this launcher's job is over, so that it would start it again: it ends instead."""
        end = self._do.ended_before()
        if end is not None and not self._closing.is_set():
            self._call(self._do.decided, end)
        return end is not None

    def _find_store(self) -> tuple[Connect, str | None]:
        """A way to the store, and this launcher's address as seen from there, if it was there."""
        from holdfast.job.store import job_store  # noqa: PLC0415 - imports torch

        at = self._address
        if at.other is not None:
            from holdfast.job.store.other_backends import open_backend  # noqa: PLC0415 - likewise

            return open_backend(at.other, at.run_id), None
        host, seen = at.host, None
        if at.hosts_store or (at.hosts_store is None and is_own_address(at.host)):
            host = way_to_store(at.host)
            try:
                self._hosted = job_store.host_store(host, at.port, at.connect_s, at.run_id)
            except ConnectionError as error:
                if at.hosts_store:
                    raise ConnectionError(_cannot_host(error)) from error
        if self._hosted is None:
            seen = wait_until_reachable(host, at.port, at.connect_s, self._closing, self._log_wait)
            seen = seen if host == at.host else None
        return lambda: job_store.store_client(host, at.port, CONNECT_S), seen

    def _log_wait(self, why: str) -> None:
        """A launcher cannot know whether the one it looks for was there before."""
        LOGGER.info(
            "waiting for the launcher that hosts the store at %s: %s (--rdzv-conf "
            "read_timeout=%g). If the job is over already, end this launcher: it cannot know that",
            self._address,
            why,
            self._address.connect_s,
        )

    def _own_address(self, seen: str | None) -> OwnAddress:
        address = self._address.local_addr
        if address is None:
            published = publish(self._address.host, seen)
            address = published.address
            LOGGER.info("others reach this host at %s: %s", address, published.why)
        interface = gloo_interface(address)
        if interface is not None:
            LOGGER.info(
                "the name of this host, %r, leads to no address that others reach, so its ranks "
                "have gloo listen on %s (GLOO_SOCKET_IFNAME, where that is not set)",
                socket.gethostname(),
                interface,
            )
        return OwnAddress(address, interface)

    # ------------------------------------------------------------ authentication
    def _seal(self, message: object, session: str | None = None) -> Seal:
        in_session, body = self._session if session is None else session, encode(message)
        return lambda slot: self._sealer.seal(slot, in_session, body)

    def _is_guest(self, store: JobStore) -> bool:
        """Whether the store is another job's; their names keep both apart, as under torchrun."""
        host, at = store.hosted_for(), self._address
        if host is None or host == ascii(at.run_id):
            return False
        LOGGER.warning(
            "the store at %s is that of another job, %s: this job, %r, ends when that store does. "
            "Give each job an --rdzv-endpoint of its own (another port will do)",
            at,
            one_line(host[:100]),
            at.run_id,
        )
        return True

    def _leads_as_guest(self, follower: JobStore, poster: JobStore) -> bool:
        """No launcher of this job hosts the store: the first leads, as in other backends."""
        self._refuse_a_job_that_is_over(follower)
        try:  # a leader would answer: any program may have written ``hosted_for``
            self._greet(poster, DOUBT_S)
        except _NoAnswerError:
            return follower.is_first()
        return False

    def _greet(self, store: JobStore, within_s: float = WELCOME_S) -> tuple[str, int]:
        """Ask the leader for the session, and for the number of the last decision."""
        at, nonce = self._address, secrets.token_hex(16)
        name = f"{socket.gethostname()} (pid {os.getpid()})"
        store.post(self._seal(OpenSession(nonce, name), session=""))
        slot = f"welcome/{nonce}"
        if not store.wait_for(slot, within_s):
            raise _NoAnswerError(
                f"the launcher that leads the job {at.run_id!r} has not answered within "
                f"{within_s:g} s"
            )
        pause_s, waited_s = 0.1, 0.0
        while True:
            try:
                welcome = self._sealer.open(slot, None, store.get(slot))
            except SealError:
                if waited_s >= DOUBT_S:
                    raise ConnectionError(_other_secret(self._sealer, at)) from None
                store.pause(pause_s)  # another program's, perhaps: the leader's replaces it
                waited_s += pause_s
                continue
            store.delete(slot)
            try:
                found = decode(WELCOME, welcome)
            except MessageError as error:
                raise ConnectionError(
                    f"the leader of the job {at.run_id!r} is of another version: {error}"
                ) from None
            return found.session, found.decided

    def _answer(self, body: object, store: JobStore) -> OpenSession | None:
        """Answer a hello, signed or not; None: it is none.

        A launcher with another secret can't read the answer, and knows by that.
        """
        try:
            hello = decode(HELLO, body)
        except MessageError:
            return None
        nonce = hello.nonce
        if not _NONCE.fullmatch(nonce):
            return None
        if nonce not in self._answered:
            self._answered[nonce] = None
            if len(self._answered) > _ANSWERED_MOST:
                self._answered.popitem(last=False)
            welcome = SessionOpened(self._session, self._published)
            store.put(f"welcome/{nonce}", self._seal(welcome))
        return hello

    def _refuse_a_job_that_is_over(self, store: JobStore) -> None:
        """Raise a ConnectionError if the last decision in a store that outlives jobs is an end."""
        slot, at = f"down/{store.published()}", self._address
        if not store.has(slot):
            return
        try:
            decision = decode(DECISIONS, self._sealer.open(slot, None, store.get(slot)))
        except (SealError, MessageError):
            return  # not the leader's: if there is one, it answers
        if isinstance(decision, End):
            raise ConnectionError(
                f"the job {at.run_id!r} is over there ({decision.cause}); a store that outlives "
                "jobs needs another --rdzv-id for each"
            )

    # ------------------------------------------------------------ each thread
    def _follow(self, store: JobStore, number: int) -> None:
        warnings = RateLimitedLog()

        def accept(slot: str, body: bytes) -> Decision | str | None:
            try:
                return decode(DECISIONS, self._sealer.open(slot, self._session, body))
            except (MessageError, UnreadableError) as error:  # signed: of another version, perhaps
                LOGGER.error("a decision of the leader cannot be used (%s): %s", slot, error)  # noqa: TRY400
                return _NONSENSE
            except SealError as error:
                writer = f"a writer to the log of the job {self._address.run_id!r}"
                _warn(warnings, writer, f"is not its leader, and ignored ({slot}: {error})")
                return None

        decision: Decision | str = ""
        while not isinstance(decision, End):  # the last; a wait for another would be cut off
            decision = cast("Decision | str", store.follow(number, accept))  # mypy joins unions
            number += 1
            if not isinstance(decision, str):
                self._call(self._do.decided, decision)

    def _post(self, store: JobStore) -> None:
        joined = False
        while (message := self._outbox.get()) is not None:
            store.post(self._seal(message))
            if not joined and isinstance(message, Join):  # a node that is not fit only leaves
                joined = True
                LOGGER.info("joined the job %r at %s", self._address.run_id, self._address)
        if self._taker is not None:
            store.post(self._seal(WakeMailbox()))

    def _take(self, store: JobStore) -> None:
        from holdfast.job.store.job_store import Mailbox  # noqa: PLC0415 - imports torch

        warnings = RateLimitedLog()
        where = f"the mailbox of the job {self._address.run_id!r}"

        def accept(slot: str, body: bytes) -> Message | str | None:
            try:
                return self._open_message(slot, body, store)
            except (MessageError, UnreadableError) as error:
                text = f"cannot be used ({slot}: {error})"
                _warn(warnings, f"a signed message in {where}", text)
                return _NONSENSE
            except SealError as error:
                if (launcher := self._launcher_kept_out(body, store)) is None:
                    text = f"is not a launcher of it, and ignored ({slot}: {error})"
                    _warn(warnings, f"a writer to {where}", text)
                else:
                    _warn(warnings, f"a launcher on {launcher}", self._why_kept_out())
                return None

        def lost(first: int, last: int) -> None:
            which = f"message {first}" if first == last else f"messages {first} to {last}"
            text = f"lacks {which}: its sender died, or a stranger took the number"
            _warn(warnings, where, text)

        mailbox: Mailbox[Message | str] = Mailbox(store, accept, lost)
        while not self._closing.is_set():
            message = mailbox.take()
            if not isinstance(message, str):
                self._call(self._do.arrived, message)

    def _open_message(self, slot: str, body: bytes, store: JobStore) -> Message | str:
        """A message for the leader; or the name of one that is for these threads."""
        try:
            opened = self._sealer.open(slot, self._session, body)
        except (UnsignedError, UnreadableError):
            raise
        except SealError:
            if self._answer(self._sealer.open(slot, "", body), store):
                return "hello"
            raise
        message = decode(MAILBOX, opened)
        return "wakes" if isinstance(message, WakeMailbox) else message

    def _launcher_kept_out(self, body: bytes, store: JobStore) -> str | None:
        """The name in an unsigned hello, which is answered; None: it is no launcher's."""
        try:
            claims = unsigned_body(body)
        except SealError:
            return None
        hello = self._answer(claims, store)
        return None if hello is None else ascii(hello.who[:100])

    def _why_kept_out(self) -> str:
        here = "this one has one" if self._sealer.has_secret else "this one has none"
        return (
            f"is kept out of the job {self._address.run_id!r}: its messages are not signed with "
            f"the secret of the launcher that leads ({here}). If it belongs to the job, give all "
            f"launchers the same {SECRET} in their environment, or --rdzv-conf secret="
        )

    def _publish(self, store: JobStore) -> None:
        while (decision := self._decided.get()) is not None:
            self._published += 1
            store.publish(self._published, self._seal(decision))


def _join(threads: Iterable[threading.Thread | None], within_s: float) -> None:
    """Wait for the ends of all of them, for so long together."""
    until = clock.monotonic() + within_s
    for thread in threads:
        if thread is not None:
            thread.join(max(0.0, until - clock.monotonic()))


_NONSENSE = "nonsense"
"""In the place of a message that a launcher has signed: no other value will replace it."""
_REMEDY = (
    "docs/security.md lists the programs that can write to a job's store, and how to keep "
    "strangers out"
)


def _warn(warnings: RateLimitedLog, writer: str, text: str) -> None:
    if (line := warnings.line(writer, f"{text}. {_REMEDY}", clock.monotonic())) is not None:
        LOGGER.warning("%s", line)


def _other_secret(sealer: Sealer, at: StoreAddress) -> str:
    own = "one, the leader has another or none" if sealer.has_secret else "none"
    return (
        f"the launcher that leads the job {at.run_id!r} refuses this one, as their secrets differ "
        f"(this launcher has {own}). Give all launchers of the job the same {SECRET} in their "
        "environment, or --rdzv-conf secret="
    )


def _cannot_host(error: ConnectionError) -> str:
    return (
        f"{socket.gethostname()} is to host the store there and cannot ({error}): another program "
        "has the port, or the address is not this host's (--rdzv-endpoint, --rdzv-conf is_host)"
    )
