"""What the events of one node say of its faults and recoveries, as they come. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]
FAULTS = ("hang", "signal", "exit", "host", "elsewhere")
"""Kinds of faults; see Fault."""


@dataclass(frozen=True)
class Fault:
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
class Recovered:
    """All ranks of the next cycle were started ``after_s`` seconds after the fault was noticed."""

    after_s: float


@dataclass
class Rank:
    """One rank of this node, in the latest cycle.

    Attributes:
        rank: Global.
        state: ``running``, ``overdue``, ``completed`` or ``failed``.
    """

    rank: int
    state: str = "running"


STATES = ("running", "overdue", "completed", "failed")


class Outages:
    """Follows the events of one node's launcher.

    Args:
        nproc: Ranks of the node.

    Attributes:
        cycle: The latest; -1 before the first.
        ranks: By local rank; of the latest cycle.
        is_stopping: The launcher ends the ranks of that cycle.
        is_spare: The job runs without this node, which waits.
        restarts_left: Of the job's budget, when a cycle was last over; None: not said.
        end: ``job_succeeded`` or ``job_failed`` once it is over.
    """

    def __init__(self, nproc: int) -> None:
        self._nproc = nproc
        self._failed_at: float | None = None
        self.is_stopping = False
        self.cycle = -1
        self.ranks: dict[int, Rank] = {}
        self.is_spare = False
        self.restarts_left: int | None = None
        self.end = ""

    @property
    def is_ready(self) -> bool:
        """All ranks of this node run, and nothing has gone wrong."""
        return len(self.ranks) == self._nproc and all(
            rank.state == "running" for rank in self.ranks.values()
        )

    def take(self, event: Event) -> Iterator[Fault | Recovered]:
        """What an event means; events that mean nothing here, or are malformed, are passed over."""
        try:
            yield from self._take(event)
        except (KeyError, TypeError, ValueError, OverflowError):
            return

    def _take(self, event: Event) -> Iterator[Fault | Recovered]:
        match event["kind"]:
            case "launcher_started" if "max_restarts" in event:
                self.restarts_left = int(event["max_restarts"])
            case "cycle_started":
                self.cycle, self.ranks = int(event["cycle"]), {}
                self.is_spare = self.is_stopping = False
            case "worker_started":
                self.ranks[int(event["local_rank"])] = Rank(int(event["rank"]))
                if len(self.ranks) == self._nproc and self._failed_at is not None:
                    yield Recovered(float(event["t"]) - self._failed_at)
                    self._failed_at = None
            case "worker_exited" | "rank_raised":
                code = int(event["exit_code"])
                if rank := self.ranks.get(int(event["local_rank"])):
                    rank.state = "failed" if code else "completed"
                if code:
                    yield from self._fault(event, Fault("signal" if code < 0 else "exit"))
            case "rank_overdue":
                if rank := self.ranks.get(int(event["local_rank"])):
                    rank.state = "overdue"
                found_at = float(event["detected_at"])
                hang = Fault("hang", found_at - float(event["at"]), float(event["age_s"]))
                yield from self._fault(event, hang)
            case "finding" if event["verdict"] == "unhealthy":
                yield from self._fault(event, Fault("host"))
            case "signal_received":  # the job is to end: that its ranks do is no fault
                self.is_stopping = True
            case "cycle_stopping":
                if event["restart"]:
                    yield from self._fault(event, Fault("elsewhere"))
                self.is_stopping = True
                if "restarts_left" in event:
                    self.restarts_left = int(event["restarts_left"])
            case "standing_by":
                self.is_spare = True
            case "job_succeeded" | "job_failed" as end:
                self.end = end

    def _fault(self, event: Event, fault: Fault) -> Iterator[Fault]:
        """The first of its cycle; ranks that we stop are none."""
        at = float(event.get("detected_at", event["t"]))
        if self._failed_at is not None:
            if "detected_at" in event:  # two monitors may be heard in the other order
                self._failed_at = min(self._failed_at, at)
        elif not self.is_stopping:
            self._failed_at = at
            yield fault
