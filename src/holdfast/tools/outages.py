"""Faults and recoveries of one node, from its events as they come. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.events.pure import schema
from holdfast.events.pure.schema import Event
from holdfast.health.pure import health
from holdfast.watch.pure.monitor_messages import Overdue

FAULTS = ("hang", "signal", "exit", "host", "elsewhere")
"""Kinds of faults; see Fault."""


@dataclass(frozen=True)
class FirstFault:
    """The first thing that went wrong in a cycle, as seen by this node.

    Attributes:
        kind: ``hang``, ``signal`` (a rank was killed), ``exit`` (a rank ended with an exit code),
            ``host`` (the node is not healthy) or ``elsewhere`` (another node ended the cycle).
        late_s: Of a hang, seconds from the end of the timeout until it was noticed.
        stalled_s: Of a hang, seconds for which the rank had shown no progress by then.
    """

    kind: str
    late_s: float | None = None
    stalled_s: float | None = None


@dataclass(frozen=True)
class RecoveryTime:
    """All ranks of the next cycle were started ``after_s`` seconds after the fault was noticed."""

    after_s: float


@dataclass
class RankStatus:
    """One rank of this node, in the latest cycle.

    Attributes:
        state: ``running``, ``overdue``, ``completed`` or ``failed``.
    """

    rank: int
    state: str = "running"


STATES = ("running", "overdue", "completed", "failed")


class Outages:
    """Follows the events of one node's launcher.

    Attributes:
        cycle: The latest; -1 before the first.
        ranks: By local rank; of the latest cycle.
        restarts_left: Of the job's budget, when a cycle was last over; None: not said.
        end: How the job ended; None: it goes on.
    """

    def __init__(self, nproc: int) -> None:
        self._nproc = nproc
        self._failed_at: float | None = None
        self.is_stopping = False
        self.cycle = -1
        self.ranks: dict[int, RankStatus] = {}
        self.is_spare = False
        self.restarts_left: int | None = None
        self.end: schema.JobOver | None = None

    @property
    def is_ready(self) -> bool:
        """All ranks of this node run, and nothing has gone wrong."""
        return len(self.ranks) == self._nproc and all(
            rank.state == "running" for rank in self.ranks.values()
        )

    def take(self, event: Event) -> Iterator[FirstFault | RecoveryTime]:
        """The fault or recovery that an event shows, if it shows one."""
        match event.body:
            case schema.LauncherStarted(max_restarts=most) if most is not None:
                self.restarts_left = most
            case schema.CycleJoined():
                self.cycle, self.ranks = event.cycle, {}
                self.is_spare = self.is_stopping = False
            case schema.RankStarted(local_rank, rank):
                self.ranks[local_rank] = RankStatus(rank)
                if len(self.ranks) == self._nproc and self._failed_at is not None:
                    yield RecoveryTime(event.t - self._failed_at)
                    self._failed_at = None
            case schema.RankExited(local_rank, _, code) | schema.RankRaised(local_rank, _, code):
                if one := self.ranks.get(local_rank):
                    one.state = "failed" if code else "completed"
                if code:
                    yield from self._fault(event.t, FirstFault("signal" if code < 0 else "exit"))
            case Overdue() as overdue:
                if one := self.ranks.get(overdue.local_rank):
                    one.state = "overdue"
                hang = FirstFault("hang", overdue.detected_at - overdue.at, overdue.age_s)
                if self._failed_at is not None:  # messages of two monitors may change places
                    self._failed_at = min(self._failed_at, overdue.detected_at)
                yield from self._fault(overdue.detected_at, hang)
            case health.Finding(verdict=health.Fitness.UNHEALTHY):
                yield from self._fault(event.t, FirstFault("host"))
            case schema.SignalReceived():  # the job is to end: that its ranks do is no fault
                self.is_stopping = True
            case schema.CycleOver(restart=restart, restarts_left=left):
                if restart:
                    yield from self._fault(event.t, FirstFault("elsewhere"))
                self.is_stopping = True
                if left is not None:
                    self.restarts_left = left
            case schema.StandingBy():
                self.is_spare = True
            case schema.JobOver() as end:
                self.end = end

    def _fault(self, at: float, fault: FirstFault) -> Iterator[FirstFault]:
        """The first of its cycle; a rank that the launcher stops is no fault."""
        if self._failed_at is None and not self.is_stopping:
            self._failed_at = at
            yield fault
