"""Where the launchers of a job of several nodes meet: the member machine, the leader's, the store.

    torch_edge.job_threads           the launcher's loop
      follower  ── decision ──►  Member.handle(Heard(...))
      poster    ◄── message ──   Send
      taker     ── message ──►   Leader.handle(Arrived(...))   only where
      publisher ◄── decision ──  Publish                       the store is

The leader is in the launcher that hosts the store: it is lost when the store is, and not otherwise.
Over the store of another backend it is in the launcher that came first; its loss is its silence.
All machines run in the loop's thread; threads carry bytes and wait, and decide nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import socket
from collections import deque
from collections.abc import Callable

from holdfast.core import leader as leading
from holdfast.core import member as belonging
from holdfast.core.membership import (
    Decision,
    Descriptor,
    End,
    Leave,
    LeaveWhy,
    Message,
    NodeState,
    Outcome,
    State,
)
from holdfast.core.never import assert_never
from holdfast.errors import LaunchError
from holdfast.fault_tolerance.console import LOGGER
from holdfast.fault_tolerance.meeting_plan import MeetingPlan
from holdfast.host import clock
from holdfast.host.address import interface_of, reached_at
from holdfast.host.iteration_file import BoundedIterationFile
from holdfast.host.loop import Loop
from holdfast.torch_edge.job_threads import Callbacks, JobThreads, OwnAddress, StoreAddress

OnEffect = Callable[[belonging.Effect], None]
"""Called with what the member machine wants of its launcher; never with ``Send``."""


class _Progress:
    """How far the job's checkpoints are, read when a cycle may be over. For one thread."""

    def __init__(self, plan: MeetingPlan) -> None:
        assert plan.iteration_file is not None
        # well below the leader's patience, which no beat must exceed in the queue behind
        self._file = BoundedIterationFile(plan.iteration_file, plan.pace.silence_s / 4)
        self._is_first = True

    def before(self, message: Message) -> int | None:
        """The iteration, if ``message`` makes it matter; the first time it is where we begin."""
        if self._is_first:
            self._is_first = False
            return self._file.read(quiet=True)
        match message:
            case Leave(why=why) if why is not LeaveWhy.FINISHED:
                return self._file.read()
            case State(state=NodeState.UNHEALTHY | NodeState.FAILED):
                return self._file.read()
        return None


class Meeting:
    """One launcher's part in its job. Main thread only.

    Args:
        member: This launcher's machine.
        plan: Where and how to meet.
        run_id: Names the job within the store.
        extend: Called whenever it may have changed how long our ranks may live without us.
    """

    def __init__(
        self,
        *,
        member: belonging.Member,
        plan: MeetingPlan,
        run_id: str,
        extend: Callable[[float | None], None],
    ) -> None:
        self.member = member
        self._extend = extend
        self._plan = plan
        self._leader: leading.Leader | None = None
        self._threads = JobThreads(
            StoreAddress(
                plan.host,
                plan.port,
                plan.hosts_store,
                plan.connect_s,
                run_id,
                plan.other,
                plan.secret,
                plan.local_addr,
            ),
            Callbacks(
                tell=self._tell,
                met=self._met,
                heard=self._heard,
                arrived=self._arrived,
                lost=self._lost,
                look=self._look,
                no_torch=_refuse_to_run,
            ),
        )
        self._progress = _Progress(plan) if plan.iteration_file else None
        self._has_met = False
        self._ours = OwnAddress("")
        self._may_join = False
        self._problem: str | None = None
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._on_effect: OnEffect = lambda _: None
        self._on_closed: Callable[[], None] = lambda: None
        self.end_of_others: End | None = None
        """How the job ended that this launcher had left, and stayed for as its host."""

    @property
    def leads(self) -> bool:
        """The job's leader is in this launcher."""
        return self._leader is not None

    @property
    def gloo_interface(self) -> str | None:
        """What our ranks need in ``GLOO_SOCKET_IFNAME``; known when ranks start."""
        guessed = self._ours.gloo_interface
        if guessed is None or not self.leads:
            return guessed
        at = reached_at(self._plan.port)  # the others have met us by now
        return (at and interface_of(at)) or guessed

    def begin(self, loop: Loop, on_effect: OnEffect, on_closed: Callable[[], None]) -> None:
        """Set out to meet the others: host or find the store, follow its log, join.

        Returns at once; that there is no store is told as any other loss of the leader. A torch
        that cannot be loaded is a LaunchError, raised by the loop.

        Args:
            loop: Of this launcher.
            on_effect: Called with what is decided for it.
            on_closed: Called when nobody needs the leader here any more.
        """
        self._on_effect = on_effect
        self._on_closed = on_closed
        loop.watch(self._wake_read, self._deliver)
        self._threads.begin()

    def may_join(self, problem: str | None) -> None:
        """The launcher is ready for ranks, once the others are met; or never, for a problem.

        Until then it only hosts the store and the leader, if that is its part: others need them.
        """
        self._may_join, self._problem = True, problem
        if self._has_met:
            self._join()

    def feed(self, event: belonging.Event) -> None:
        """Tell the member machine what happened here."""
        effects = self.member.handle(event, clock.monotonic())
        self._extend(self.member.ranks_may_live_until)  # before there are ranks
        for effect in effects:
            if isinstance(effect, belonging.Send):
                self._threads.post(effect.message)
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
        """Send what is still to be sent, and end the threads."""
        self._threads.close()

    # ------------------------------------------------------------ the loop's side
    def _met(self, leads: bool, ours: OwnAddress) -> bool:  # noqa: FBT001 - see Callbacks
        if self.member.phase is belonging.Phase.DONE:
            return False  # told to end meanwhile
        self.member.desc = dataclasses.replace(self.member.desc, addr=ours.address)
        self._ours = ours
        if leads:
            self._leader = leading.Leader(self._plan.rules, self._plan.pace)
            self._feed_leader(leading.Begin())
        self._has_met = True
        if self._may_join:
            self._join()
        return True

    def _join(self) -> None:
        if self._problem is None:
            self.feed(belonging.Begin())
        else:
            self.feed(belonging.Unhealthy(self._problem))

    def _heard(self, decision: Decision) -> None:
        self.feed(belonging.Heard(decision))

    def _look(self, message: Message) -> None:
        """In the taker's thread: what the leader is to know before it hears this."""
        found = self._progress.before(message) if self._progress else None
        if found is not None:
            self._tell(functools.partial(self._feed_leader, leading.IterationRead(found)))

    def _arrived(self, message: Message) -> None:
        self._feed_leader(leading.Arrived(message))

    def _lost(self, text: str) -> None:
        self.feed(belonging.LeaderLost(text))

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
                    self._threads.publish(decision)
                    if isinstance(decision, End) and not isinstance(event, leading.Abdicate):
                        self._tell_the_end(decision)
                case leading.Note(level, text):
                    LOGGER.log({"info": 20, "warning": 30}.get(level, 40), "%s", text)
                case leading.Close(missing):
                    if missing:
                        LOGGER.warning(
                            "the job has ended, and these launchers sent no leave message: %s",
                            ", ".join(missing),
                        )
                    self._on_closed()
                case _:
                    assert_never(effect)

    def _tell_the_end(self, end: End) -> None:
        """Who has left the job, and stayed as its host, hears of its end from nobody else."""
        if self.member.phase is belonging.Phase.DONE:
            self.end_of_others = end
            level = 20 if end.outcome is Outcome.SUCCEEDED else 40
            text = f"{end.outcome.value}: {end.cause}" if end.cause else end.outcome.value
            LOGGER.log(level, "the job of the others has ended, %s", text)

    # ------------------------------------------------------------ the threads' side
    def _tell(self, errand: Callable[[], None]) -> None:
        self._inbox.append(errand)
        with contextlib.suppress(BlockingIOError):  # it has wake-ups enough
            os.write(self._wake_write, b"\0")


def _refuse_to_run(why: str) -> None:
    """Nobody was met, nothing runs: the launcher ends with these words and no others."""
    raise LaunchError(why)


def describe_node(
    *,
    nproc: int,
    port: int,
    infra_rank: int | None,
    infra_is_place: bool,
    domain: str | None,
) -> Descriptor:
    """What others need to know of this launcher, but for its address: that is found out."""
    return Descriptor(
        addr="",
        hostname=socket.gethostname(),
        nproc=nproc,
        pid=os.getpid(),
        infra_rank=infra_rank,
        infra_is_place=infra_is_place,
        domain=domain,
        port=port,
    )
