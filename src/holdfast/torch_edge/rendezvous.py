"""Holdfast's membership for stock torchrun: ``torchrun --rdzv-backend=holdfast``.

    torch's agent (main thread)        this handler (one lock)             job_threads
      next_rendezvous ── ranks gone, join ──►  Member  ── messages ──►  the job's store
                      ◄── RendezvousInfo ────  Member  ◄── decisions ──
      num_nodes_waiting ◄── 1: stop ─────────  Member
      shutdown        ── done, gave up ──►     Member
                                               Leader: in the agent that hosts the store

Each agent is one member, so group ranks are ours; ranks within the groups are torch's own
arithmetic. What torch's agent does not tell, or does in its own way, stays so:

- It polls (``--monitor-interval``), and ends ranks with SIGTERM and up to 30 s of grace: a
  cut-off node is silent before others go on (:class:`~holdfast.core.job.membership.Pace`) as far as
  its ranks heed SIGTERM.
- It counts restarts by itself, each agent its own; the leader's budget has no limit here.
- It says that its ranks failed when they are gone, by asking for the next round.
- While it waits for others at the end (its exit barrier), it hears nothing.

``--rdzv-conf``: ``is_host``, ``read_timeout`` (until the store is there; 60 s), ``join_timeout`` or
``timeout`` (until a round is formed; 900 s), ``last_call_timeout`` (between MIN and MAX; 30 s),
``grow_cooldown`` (how long a cycle lives before a newcomer may stop it; 30 s),
``keep_alive_timeout`` (silence that means gone; 15 s), ``use_infra_group_rank`` (true), ``secret``
(better in the environment, as HOLDFAST_JOB_SECRET: torchrun logs its configuration).
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from holdfast.core.address import EndpointError, parse_endpoint
from holdfast.core.common_events import Begin, Note, TimePassed
from holdfast.core.deadlines import earliest
from holdfast.core.job import leader as leading
from holdfast.core.job import member as belonging
from holdfast.core.job.assign import Policy
from holdfast.core.job.infra_rank import infra_rank
from holdfast.core.job.job_secret import SECRET, drop_secret
from holdfast.core.job.membership import (
    SHUTDOWN,
    Control,
    Decision,
    Descriptor,
    End,
    Judged,
    Look,
    Message,
    Outcome,
    Pace,
)
from holdfast.core.job.rules import Rules
from holdfast.core.launch.node import RanksStopped, RanksSucceeded
from holdfast.core.never import assert_never
from holdfast.host import clock
from holdfast.host.address import interface_of, reached_at, way_to_store
from holdfast.host.port import ReservedPort
from holdfast.torch_edge.job_store import StoreLostError, store_client
from holdfast.torch_edge.job_threads import Callbacks, JobThreads, OwnAddress, StoreAddress
from holdfast.torch_edge.torch_private import PrefixStore

LOGGER = logging.getLogger("holdfast")

BACKEND = "holdfast"
DEFAULT_PORT = 29400
"""torchrun's for its rendezvous."""
_LAST_WORDS_S = 5.0
"""How long an agent that is done, or was told to end by a signal, stays for the others."""


def torchrun_handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Entry point of the group ``torchrun.handlers``: torch calls it for the maker of handlers."""
    return make_handler


def make_handler(params: RendezvousParameters) -> HoldfastRendezvous:
    """The handler for what torchrun was asked for.

    Raises:
        ValueError: The endpoint or a value of ``--rdzv-conf`` or the environment cannot be used.
    """
    try:
        endpoint = parse_endpoint(params.endpoint or "localhost")
    except EndpointError as error:
        raise ValueError(
            f"--rdzv-endpoint: {params.endpoint!r} cannot be used; {error}, the same on all nodes"
        ) from None
    host, port = endpoint.host, endpoint.port or DEFAULT_PORT
    join_s = _seconds(params, "join_timeout", _seconds(params, "timeout", 900.0))
    by_number = bool(params.get_as_bool("use_infra_group_rank", default=True))
    number = infra_rank(os.environ) if by_number and params.max_nodes > 1 else None
    port_of_ranks = ReservedPort()
    return HoldfastRendezvous(
        address=StoreAddress(
            host=host,
            port=port,
            hosts_store=params.get_as_bool("is_host"),
            connect_s=_seconds(params, "read_timeout", 60.0),
            run_id=params.run_id,
            secret=_secret(params),
            local_addr=params.local_addr,
        ),
        desc=Descriptor(
            addr="",  # found out where the store is found
            hostname=socket.gethostname(),
            nproc=1,  # torch's agents tell each other how many they are
            pid=os.getpid(),
            infra_rank=number.rank if number else None,
            infra_is_place=number.is_place if number else True,
            port=port_of_ranks.number,
        ),
        rules=Rules(
            nodes=Policy(params.min_nodes, params.max_nodes, use_infra_group_rank=by_number),
            max_restarts=sys.maxsize,  # torch's agents count for themselves
            first_last_call_s=_seconds(params, "last_call_timeout", 30.0),
            grow_cooldown_s=_seconds(params, "grow_cooldown", 30.0),
        ),
        pace=Pace.of(_seconds(params, "keep_alive_timeout", 15.0), join_s),
        port=port_of_ranks,
    )


def _secret(params: RendezvousParameters) -> str | None:
    """Of the job; taken out of the environment, which torch's agent hands on to its ranks."""
    global _secret_of_this_process  # noqa: PLW0603 - one environment, one place to keep what was in it
    _secret_of_this_process = os.environ.get(SECRET) or _secret_of_this_process
    drop_secret(os.environ)
    said: Any = params.get("secret")
    return said or _secret_of_this_process


_secret_of_this_process: str | None = None


def _seconds(params: RendezvousParameters, key: str, default: float) -> float:
    value: Any = params.get(key, default)
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise ValueError(f"--rdzv-conf: {key}={value} cannot be used; it takes seconds, 0 or more")
    return seconds


class HoldfastRendezvous(RendezvousHandler):
    """One torch agent's part in its job. Any thread; torch's agent uses one.

    Args:
        address: Where to meet.
        desc: What others need to know of this agent.
        rules: For the leader, if it is here.
        pace: How long silence may last.
        port: Kept for rank 0 of the first cycle, in case it will be here; ``desc`` names it.
    """

    def __init__(
        self,
        *,
        address: StoreAddress,
        desc: Descriptor,
        rules: Rules,
        pace: Pace,
        port: ReservedPort,
    ) -> None:
        self._address = address
        self._rules = rules
        self._pace = pace
        self._port = port
        node = f"{desc.hostname}-{desc.pid}-{secrets.token_hex(4)}"
        self._member = belonging.Member(node, desc, pace)
        self._leader: leading.Leader | None = None
        self._begun = False
        self._start: belonging.StartRanks | None = None
        self._finish: belonging.Finish | None = None
        self._left = False
        self._closed = False
        self._gloo_interface: str | None = None
        self._changed = threading.Condition(threading.RLock())  # machines run under its lock
        self._threads = JobThreads(
            address,
            Callbacks(
                tell=self._tell,
                met=self._met,
                heard=self._heard,
                arrived=self._arrived,
                lost=self._lost,
            ),
        )

    # ------------------------------------------------------------ torch's side
    def get_backend(self) -> str:
        """The name that torchrun knows this by."""
        return BACKEND

    def get_run_id(self) -> str:
        """Of the job."""
        return self._address.run_id

    @property
    def use_agent_store(self) -> bool:
        """Rank 0 hosts the ranks' store: a cycle's store dies with the cycle."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next cycle; whatever this agent ran before is gone.

        Waits, as a spare for as long as it takes.

        Raises:
            RendezvousClosedError: The job has ended, and not well.
            RendezvousGracefulExitError: The job has succeeded without this agent.
            RendezvousConnectionError: There is no store, or the leader is lost, or refuses us.
        """
        with self._changed:
            start = self._next_start()
            if start is None:
                raise self._why_not()
        self._have_gloo_listen()
        formed, at = start.round, self._address
        try:
            # one of its own: it does one thing at a time
            client = store_client(way_to_store(at.host), at.port, at.connect_s)
        except StoreLostError as error:
            raise RendezvousConnectionError(str(error)) from error
        return RendezvousInfo(
            PrefixStore(f"{at.prefix}/cycle/{formed.cycle}", client),
            start.place.group_rank,
            len(formed.places),
            RendezvousStoreInfo(formed.master_addr, formed.master_port),
        )

    def _have_gloo_listen(self) -> None:
        """Where others reach it; torch's agent hands its environment on to its ranks."""
        name = "GLOO_SOCKET_IFNAME"
        if self._gloo_interface is None or name in os.environ:
            return
        at = reached_at(self._address.port) if self._leader is not None else None
        os.environ[name] = (at and interface_of(at)) or self._gloo_interface

    def num_nodes_waiting(self) -> int:
        """1 when this agent's ranks have to stop: torch's agent then asks for the next round."""
        with self._changed:
            return int(self._member.phase in (belonging.Phase.STOPPING, belonging.Phase.LEAVING))

    def is_closed(self) -> bool:
        """Whether this agent will never have ranks again."""
        with self._changed:
            return self._member.phase in (belonging.Phase.LEAVING, belonging.Phase.DONE)

    def set_closed(self) -> None:
        """End the job for all."""
        with self._changed:
            self._ask_to_shut_down("its rendezvous was closed")

    def shutdown(self) -> bool:
        """This agent is done: well, unless an exception is on its way up; then no agent goes on.

        Where the leader is, returns when no agent needs it any more.
        """
        error = sys.exc_info()[1]
        with self._changed:
            phase = self._member.phase
            if error is None and phase is belonging.Phase.ACTIVE:
                self._feed(RanksSucceeded(self._member.cycle))
                self._changed.wait_for(lambda: self._finish is not None, _LAST_WORDS_S)
                # Whatever the others still do, it is over here: no Stop must call us back.
                self._feed(belonging.Heard(End(Outcome.SUCCEEDED, 0, "")))
            elif error is not None and phase is belonging.Phase.ACTIVE:
                self._ranks_failed(f"gave up: {type(error).__name__}", may_restart=False)
            elif error is not None and phase is belonging.Phase.STOPPING:
                self._ask_to_shut_down(f"it gave up: {type(error).__name__}")
            self._leave()
            self._changed.wait_for(self._is_free)
        self._close()
        return True

    # ------------------------------------------------------------ with the lock
    def _next_start(self) -> belonging.StartRanks | None:
        """Where our ranks stand in the next cycle; None: they never will again."""
        self._start = None
        if not self._begun:
            self._begun = True
            atexit.register(self._on_exit)
            threading.Thread(target=self._keep_time, name="holdfast-clock", daemon=True).start()
            self._threads.begin()
        elif self._member.phase is belonging.Phase.ACTIVE:
            self._ranks_failed("has lost its ranks", may_restart=True)
        while True:
            if self._member.ranks_alive:  # so it was told; torch has ended them
                self._offer_another_port()
                self._feed(RanksStopped(self._member.cycle))
            self._changed.wait_for(lambda: self._start or self._finish)
            start, self._start = self._start, None
            if self._member.phase is belonging.Phase.ACTIVE or start is None:
                return start
            # The cycle was over before we began; no other agent may be left to begin it with.

    def _why_not(self) -> RendezvousError:
        assert self._finish is not None
        text = self._finish.text
        if self._finish.outcome is Outcome.SUCCEEDED:
            return RendezvousGracefulExitError(text)
        if self._finish.outcome is not None:
            return RendezvousClosedError(f"the job is over: {text}")
        return RendezvousConnectionError(f"left the job ({self._finish.why.value}): {text}")

    def _offer_another_port(self) -> None:
        self._port.release()
        self._port = ReservedPort()
        self._member.desc = dataclasses.replace(self._member.desc, port=self._port.number)

    def _ranks_failed(self, what: str, *, may_restart: bool) -> None:
        member = self._member
        cause = f"{member.desc.hostname} (pid {member.desc.pid}) {what}"
        self._feed(belonging.RanksFailed(member.cycle, cause, every=True, may_restart=may_restart))

    def _ask_to_shut_down(self, why: str) -> None:
        self._threads.post(Control(self._member.node, SHUTDOWN, -1, why))

    def _leave(self) -> None:
        """Out of the job, whatever we were in it; torch has ended our ranks."""
        self._left = True
        self._feed(belonging.ToldToEnd("its agent is done"))
        self._feed(RanksStopped(self._member.cycle))
        self._abdicate_if_forming()

    def _is_free(self) -> bool:
        """No agent needs the leader that may be here."""
        return self._leader is None or self._leader.phase is leading.Phase.CLOSED

    def _abdicate_if_forming(self) -> None:
        """We may host the leader as long as others run, but not for cycles without us."""
        if self._left and self._leader and self._leader.phase is leading.Phase.FORMING:
            self._feed_leader(leading.Abdicate("its own part was over"))

    def _feed(self, event: belonging.Event) -> None:
        for effect in self._member.handle(event, clock.monotonic()):
            match effect:
                case belonging.Send(message):
                    self._threads.post(message)
                case belonging.StartRanks():
                    self._start = effect
                case belonging.CycleStopping(cycle, cause):
                    LOGGER.info("cycle %d is over for this node: %s", cycle, cause)
                case belonging.StopRanks() | Look() | Judged():
                    pass  # torch's agent stops them, once it is asked for the next round
                case belonging.JobReported():
                    pass  # its ranks have no monitors of ours
                case belonging.Standby(cycle):
                    LOGGER.info(
                        "cycle %d has started without this node, which waits as a spare", cycle
                    )
                case Note(level, text):
                    _log(level, text)
                case belonging.Finish():
                    self._finish = effect
                case _:
                    assert_never(effect)
        self._changed.notify_all()

    def _feed_leader(self, event: leading.Event) -> None:
        assert self._leader is not None
        for effect in self._leader.handle(event, clock.monotonic()):
            match effect:
                case leading.Publish(decision):
                    self._threads.publish(decision)
                case Note(level, text):
                    _log(level, text)
                case leading.Close(missing):
                    if missing:
                        LOGGER.warning(
                            "the job has ended, and these launchers sent no leave message: %s",
                            ", ".join(missing),
                        )
                case leading.ReadIteration():
                    raise AssertionError("the rules do not ask for that")
                case _:
                    assert_never(effect)
        self._changed.notify_all()
        self._abdicate_if_forming()

    # ------------------------------------------------------------ the threads' side
    def _tell(self, errand: Callable[[], None]) -> None:
        with self._changed:
            errand()

    def _met(self, leads: bool, ours: OwnAddress) -> bool:  # noqa: FBT001 - see Callbacks
        if self._member.phase is belonging.Phase.DONE:
            return False
        self._member.desc = dataclasses.replace(self._member.desc, addr=ours.address)
        self._gloo_interface = ours.gloo_interface
        if leads:
            self._leader = leading.Leader(self._rules, self._pace)
            self._feed_leader(Begin())
        self._feed(Begin())
        return True

    def _heard(self, decision: Decision) -> None:
        self._feed(belonging.Heard(decision))

    def _arrived(self, message: Message) -> None:
        self._feed_leader(leading.Arrived(message))

    def _lost(self, text: str) -> None:
        self._feed(belonging.LeaderLost(text))

    def _keep_time(self) -> None:
        with self._changed:
            while not self._closed:
                machines = (self._member, self._leader)
                at = earliest(*(machine.next_deadline() for machine in machines if machine))
                self._changed.wait(None if at is None else max(0.0, at - clock.monotonic()))
                if at is None or clock.monotonic() < at:
                    continue  # something happened, and may have moved the deadline
                if self._leader is not None:
                    self._feed_leader(TimePassed())
                self._feed(TimePassed())

    # ------------------------------------------------------------ the end
    def _on_exit(self) -> None:
        """The interpreter ends without a shutdown: torch does not after a signal."""
        with self._changed:
            self._leave()
            if not self._is_free():
                self._feed_leader(leading.Abdicate("it was asked to end"))
                self._changed.wait_for(self._is_free, _LAST_WORDS_S)
        self._close()

    def _close(self) -> None:
        atexit.unregister(self._on_exit)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._port.release()
        self._threads.close()


def _log(level: str, text: str) -> None:
    LOGGER.log(logging.getLevelName(level.upper()), "%s", text)
