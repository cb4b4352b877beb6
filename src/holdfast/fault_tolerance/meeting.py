"""Where the launchers of a job of several nodes meet: the member machine, the leader's, the store.

    threads, each with a connection of its own          the launcher's loop
      follower  waits for the next decision    ──►  Member.handle(Heard(...))
      poster    sends our messages             ◄──  Send
      taker     waits for the next message     ──►  Leader.handle(Arrived(...))   only where
      publisher appends decisions              ◄──  Publish                       the store is

The leader is in the launcher that hosts the store: it is lost when the store is, and not otherwise.
All machines run in the loop's thread; threads carry bytes and wait, and decide nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core import leader as leading
from holdfast.core import member as belonging
from holdfast.core.membership import (
    Descriptor,
    MessageError,
    decision_from_wire,
    message_from_wire,
)
from holdfast.core.never import assert_never
from holdfast.fault_tolerance.console import LOGGER
from holdfast.fault_tolerance.meeting_plan import MeetingPlan
from holdfast.host import clock
from holdfast.host.loop import Loop

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from holdfast.torch_edge.job_store import JobStore

OnEffect = Callable[[belonging.Effect], None]
"""Called with what the member machine wants of its launcher; never with ``Send``."""

_LAST_WORDS_S = 5.0


@dataclasses.dataclass(frozen=True)
class _Connections:
    """To the store, one for each concern; ``hosted``: the store itself, where it is ours."""

    hosted: Store | None
    follower: JobStore
    first: int
    """Number of the first decision that concerns us."""
    poster: JobStore
    taker: JobStore | None
    publisher: JobStore | None


class Meeting:
    """One launcher's part in its job. Main thread only.

    Args:
        member: This launcher's machine.
        plan: Where and how to meet.
        run_id: Names the job within the store.
    """

    def __init__(self, *, member: belonging.Member, plan: MeetingPlan, run_id: str) -> None:
        self.member = member
        self._plan = plan
        self._address = (plan.host, plan.port)
        self._run_id = run_id
        self._prefix = f"holdfast/{run_id}"
        self._leader: leading.Leader | None = None
        self._store: Store | None = None  # hosted here; dies with the reference
        self._outbox: queue.SimpleQueue[dict[str, object] | None] = queue.SimpleQueue()
        self._decided: queue.SimpleQueue[dict[str, object] | None] = queue.SimpleQueue()
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poster: threading.Thread | None = None
        self._publisher: threading.Thread | None = None
        self._on_effect: OnEffect = lambda _: None
        self._on_closed: Callable[[], None] = lambda: None

    @property
    def leads(self) -> bool:
        """The job's store and leader are in this launcher."""
        return self._leader is not None

    def begin(self, loop: Loop, on_effect: OnEffect, on_closed: Callable[[], None]) -> None:
        """Set out to meet the others: host or find the store, follow its log, join.

        Returns at once; that there is no store is told as any other loss of the leader.

        Args:
            loop: Of this launcher.
            on_effect: Called with what is decided for it.
            on_closed: Called when nobody needs the leader here any more.
        """
        # Its waits warn about every timeout; ours are part of the plan, and errors are raised.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        self._on_effect = on_effect
        self._on_closed = on_closed
        loop.watch(self._wake_read, self._deliver)
        self._start(self._meet)

    def feed(self, event: belonging.Event) -> None:
        """Tell the member machine what happened here."""
        for effect in self.member.handle(event, clock.monotonic()):
            if isinstance(effect, belonging.Send):
                self._outbox.put(effect.message.to_wire())
            else:
                self._on_effect(effect)

    def offer_port(self, port: int) -> None:
        """A port that is free here for rank 0 of the next cycle; told with the next join."""
        self.member.desc = dataclasses.replace(self.member.desc, port=port)

    def next_deadline(self) -> float | None:
        """When :meth:`on_time` wants to be called; None: never."""
        machines = (self.member, self._leader)
        deadlines = [machine.next_deadline() for machine in machines if machine is not None]
        return min((at for at in deadlines if at is not None), default=None)

    def on_time(self) -> None:
        """Time has passed."""
        self._deliver()  # who spoke meanwhile is not silent
        if self._leader is not None:
            self._feed_leader(leading.TimePassed())
        self.feed(belonging.TimePassed())

    @property
    def may_close(self) -> bool:
        """Nobody needs our leader any more, or there is none."""
        return self._leader is None or self._leader.phase is leading.Phase.CLOSED

    def abdicate(self, why: str) -> None:
        """This launcher must leave: if it leads, the job ends for all."""
        if self._leader is not None:
            self._feed_leader(leading.Abdicate(why))

    def close(self) -> None:
        """Send what is still to be sent. The process is to end soon: some threads wait for ever."""
        for words, thread in ((self._outbox, self._poster), (self._decided, self._publisher)):
            words.put(None)
            if thread is not None:
                thread.join(_LAST_WORDS_S)

    # ------------------------------------------------------------ the loop's side
    def _met(self, connections: _Connections) -> None:
        if self.member.phase is belonging.Phase.DONE:
            return  # told to end meanwhile
        if connections.hosted is not None:
            self._store = connections.hosted
            self._leader = leading.Leader(self._plan.rules, self._plan.pace)
            self._start(self._take, connections.taker)
            self._publisher = self._start(self._publish, connections.publisher)
            self._feed_leader(leading.Begin())
        self._start(self._follow, connections.follower, connections.first)
        self._poster = self._start(self._post, connections.poster)
        self.feed(belonging.Begin())

    def _deliver(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        while self._inbox:
            self._inbox.popleft()()

    def _feed_leader(self, event: leading.Event) -> None:
        assert self._leader is not None
        for effect in self._leader.handle(event, clock.monotonic()):
            match effect:
                case leading.Publish(decision):
                    self._decided.put(decision.to_wire())
                case leading.Note(level, text):
                    LOGGER.log({"info": 20, "warning": 30}.get(level, 40), "%s", text)
                case leading.Close(missing):
                    if missing:
                        LOGGER.warning("did not say goodbye: %s", ", ".join(missing))
                    self._on_closed()
                case _:
                    assert_never(effect)

    # ------------------------------------------------------------ the threads' side
    def _start(self, run: Callable[..., None], *args: object) -> threading.Thread:
        name = f"holdfast-{run.__name__.strip('_')}"
        thread = threading.Thread(target=run, args=args, name=name, daemon=True)
        thread.start()
        return thread

    def _tell(self, errand: Callable[[], None]) -> None:
        self._inbox.append(errand)
        with contextlib.suppress(BlockingIOError):  # it has wake-ups enough
            os.write(self._wake_write, b"\0")

    def _lost(self, error: ConnectionError) -> None:
        text = f"the store at {self._address[0]}:{self._address[1]} is gone ({error})"
        self._tell(lambda: self.feed(belonging.LeaderLost(text)))

    def _meet(self) -> None:
        """Connect, which may take as long as the first node takes to come up."""
        from holdfast.torch_edge import job_store  # noqa: PLC0415 - imports torch

        host, port = self._address
        hosts, connect_s = self._plan.hosts_store, self._plan.connect_s
        LOGGER.info("looking for the others of the job %r at %s:%d", self._run_id, host, port)
        hosted = None

        def connect() -> JobStore:
            return job_store.JobStore(
                lambda: job_store.store_client(host, port, connect_s), self._prefix
            )

        try:
            if hosts or (hosts is None and is_our_address(host)):
                try:
                    hosted = job_store.host_store(host, port, connect_s)
                except ConnectionError:
                    if hosts:
                        raise
            follower = connect()
            connections = _Connections(
                hosted=hosted,
                follower=follower,
                first=follower.published() + 1,
                poster=connect(),
                taker=connect() if hosted else None,
                publisher=connect() if hosted else None,
            )
        except ConnectionError as error:
            self._lost(error)
        else:
            self._tell(functools.partial(self._met, connections))

    def _follow(self, store: JobStore, number: int) -> None:
        try:
            while True:
                body = store.follow(number)
                number += 1
                try:
                    decision = decision_from_wire(body)
                except MessageError as error:
                    LOGGER.error("a decision of the leader makes no sense: %s", error)
                    continue
                self._tell(functools.partial(self.feed, belonging.Heard(decision)))
        except ConnectionError as error:
            self._lost(error)

    def _post(self, store: JobStore) -> None:
        joined = False
        try:
            while (message := self._outbox.get()) is not None:
                store.post(message)
                if not joined:  # the first word is always this
                    joined = True
                    LOGGER.info("joined the job %r at %s:%d", self._run_id, *self._address)
        except ConnectionError as error:
            self._lost(error)

    def _take(self, store: JobStore) -> None:
        number = 0
        try:
            while True:
                number += 1
                body = store.take(number)
                if body is None:
                    continue
                try:
                    message = message_from_wire(body)
                except MessageError as error:
                    LOGGER.warning("a message to the leader makes no sense: %s", error)
                    continue
                self._tell(functools.partial(self._feed_leader, leading.Arrived(message)))
        except ConnectionError as error:
            self._lost(error)

    def _publish(self, store: JobStore) -> None:
        number = 0
        try:
            while (decision := self._decided.get()) is not None:
                number += 1
                store.publish(number, decision)
        except ConnectionError as error:
            self._lost(error)


def is_our_address(host: str) -> bool:
    """Whether ``host`` names this machine: an address that a socket of ours can have."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
        except OSError:
            continue
        return True
    return False


def address_towards(host: str, port: int) -> str:
    """Our address as the launcher at ``host`` would see it: of the interface that leads there."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                ours: str = probe.getsockname()[0]
                return ours
    except OSError:
        pass
    return socket.getfqdn()


def describe_node(
    *, addr: str, nproc: int, port: int, infra_rank: int | None, infra_is_place: bool
) -> Descriptor:
    """What others need to know of this launcher."""
    return Descriptor(
        addr=addr,
        hostname=socket.gethostname(),
        nproc=nproc,
        pid=os.getpid(),
        infra_rank=infra_rank,
        infra_is_place=infra_is_place,
        port=port,
    )
