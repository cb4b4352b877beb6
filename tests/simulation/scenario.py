"""What happens to a simulated job: its launchers, its network, and what goes wrong, when.

A scenario is data: it can be written by hand, or drawn from a seed (``random_*.py``, by kinds of
faults), which gives the same one every time. Times are seconds of virtual time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.job.pure.rules import Rules
from holdfast.job.pure.timing import Pace


@dataclass(frozen=True)
class Network:
    """How messages travel between launchers. Nothing is lost, but see Crash.

    Attributes:
        delay_s: Shortest and longest way; drawn for each message, so that they overtake each other.
        spike: Probability that a message takes up to ``spike_s`` instead.
        duplicate: Probability that a launcher sends a message again, up to a minute later, unsure
            whether it got through.
    """

    delay_s: tuple[float, float] = (0.0005, 0.01)
    spike: float = 0.0
    spike_s: float = 1.0
    duplicate: float = 0.0

    @property
    def longest_way_s(self) -> float:
        """Of a message, when nothing is cut off."""
        return max(self.delay_s[1], self.spike_s if self.spike else 0.0)


@dataclass(frozen=True)
class Store:
    """Of another rendezvous backend: its key decides which launcher leads.

    Attributes:
        delay_s: Shortest and longest way to it, and back.
        outages: From when to when it does not answer.
        late: Probability that a change is carried out once more, up to a minute later; the launcher
            that asked for it may be dead by then.
        is_apart: A host that is cut off from the others reaches it.
    """

    delay_s: tuple[float, float] = (0.0005, 0.01)
    outages: tuple[tuple[float, float], ...] = ()
    late: float = 0.0
    is_apart: bool = False


# ---------------------------------------------------------------- what goes wrong
@dataclass(frozen=True)
class RankFails:
    """A rank of this host exits, if it runs. ``every``: all of them. ``may_restart``: see State."""

    at: float
    host: int
    every: bool = False
    may_restart: bool = True


@dataclass(frozen=True)
class Crash:
    """The launcher is gone without a word; its ranks follow in a moment.

    Half of its messages that are still on their way are lost. Its kernel may prove to the
    leader that it has ended (``Scenario.proofs``).
    """

    at: float
    host: int


@dataclass(frozen=True)
class PowerLoss:
    """The host is gone without a word; its kernel says nothing, and accepts no connection."""

    at: float
    host: int


@dataclass(frozen=True)
class Partition:
    """Nothing gets from these hosts to the others for a while, nor back.

    ``host``: one of them; ``one_way``: what they send still arrives.
    """

    at: float
    host: int
    hosts: frozenset[int]
    for_s: float
    one_way: bool = False


@dataclass(frozen=True)
class Return:
    """A new launcher is started on this host, if none lives there."""

    at: float
    host: int


@dataclass(frozen=True)
class Cut:
    """Nothing gets from or to this host for a while; what is under way arrives afterwards."""

    at: float
    host: int
    for_s: float
    up: bool = True
    down: bool = True


@dataclass(frozen=True)
class Pause:
    """The launcher gets no processor for a while (stopped, swapped out); its ranks do."""

    at: float
    host: int
    for_s: float


@dataclass(frozen=True)
class Suspend:
    """No process of the host gets a processor for a while: launcher, monitors, ranks, store."""

    at: float
    host: int
    for_s: float


@dataclass(frozen=True)
class Ask:
    """A rank of this host asks its launcher for ``action``, then fails."""

    at: float
    host: int
    action: str


@dataclass(frozen=True)
class Signal:
    """The launcher is sent SIGTERM; its ranks take ``grace_s`` to end, well or not."""

    at: float
    host: int
    grace_s: float
    well: bool


@dataclass(frozen=True)
class Sick:
    """The next health check of this host finds a fault."""

    at: float
    host: int


@dataclass(frozen=True)
class Stuck:
    """The ranks that run on this host now cannot be killed."""

    at: float
    host: int


@dataclass(frozen=True)
class Hangs:
    """A rank of this host hangs, if it runs: its monitor takes evidence, and kills it.

    ``every``: all of them do.
    """

    at: float
    host: int
    every: bool = False


@dataclass(frozen=True)
class MonitorDies:
    """The monitor of a rank of this host is gone."""

    at: float
    host: int


@dataclass(frozen=True)
class HealthDies:
    """The health process of this host dies of the next so many questions."""

    at: float
    host: int
    times: int = 1


@dataclass(frozen=True)
class Breaks:
    """A device of this host breaks, under its ranks if there are any."""

    at: float
    host: int


Fault = (
    RankFails
    | Crash
    | PowerLoss
    | Partition
    | Return
    | Cut
    | Pause
    | Suspend
    | Ask
    | Signal
    | Sick
    | Stuck
    | Hangs
    | MonitorDies
    | HealthDies
    | Breaks
)


@dataclass(frozen=True)
class Scenario:
    """One job and its troubles. The leader lives in the launcher of host 0.

    Attributes:
        hosts: Launchers, each on a host of its own.
        witnesses: Each on a host of its own, numbered after those.
        starts_at: When each of them starts; missing ones at 0.
        work_s: How long the ranks of a cycle take to succeed, if nothing happens.
        cascade: Probability that a rank fails because one of another host has.
        slow_stop: Probability that ranks take all of their grace to stop.
        infra_ranks: Hosts are numbered by the infrastructure.
        codec: Every message travels as JSON.
        nproc: Ranks of each launcher.
        standby: Interpreters are parked.
        calls: The ranks of a host are in a call of the Wrapper for a part of each cycle.
        proofs: Probability that a launcher's kernel tells the leader of its end.
        snapshots: Ranks keep snapshots in the memory of their launchers. With
            ``Rules.snapshot_keep_s`` their peers keep some, too.
        others: Hosts whose launchers were started for another job, and come to this one's endpoint.
        store: With the key of the leader; None: launchers vote.
        must_succeed: A majority lives, and the network heals.
        most_cycles: So many have a cause; and no launcher fails that was awake at the end. None:
            faults may have consequences that are not counted.
    """

    hosts: int
    rules: Rules
    pace: Pace = field(default_factory=lambda: Pace(join_timeout_s=120.0))
    network: Network = field(default_factory=Network)
    faults: tuple[Fault, ...] = ()
    starts_at: tuple[float, ...] = ()
    work_s: float = 20.0
    cascade: float = 0.0
    slow_stop: float = 0.0
    infra_ranks: bool = False
    codec: bool = False
    nproc: int = 1
    standby: bool = False
    calls: bool = False
    proofs: float = 0.0
    snapshots: bool = False
    others: frozenset[int] = frozenset()
    store: Store | None = None
    witnesses: int = 0
    must_succeed: bool = False
    most_cycles: int | None = None

    @property
    def troubled_until(self) -> float:
        """After this instant nothing goes wrong any more."""
        ends = [
            fault.at + getattr(fault, "for_s", getattr(fault, "grace_s", 0.0))
            for fault in self.faults
        ]
        return max([*ends, *self.starts_at], default=0.0)

    @property
    def over_by(self) -> float:
        """By when the job must be over for all: a generous bound of what can follow each other."""
        rules, pace = self.rules, self.pace
        longest_cycle_s = self.work_s * 1.2 + rules.grow_cooldown_s
        waits_s = pace.silence_s + pace.join_timeout_s + pace.return_s
        waits_s = 0.0 if rules.is_of_one else waits_s
        longest_gap_s = waits_s + 140.0 + rules.backoff_max_s * bool(rules.backoff_s)
        # A restart for each that is left, a growth for each host, and the end.
        restarts = rules.max_restarts if rules.restarts_period_s is None else 2 * rules.max_restarts
        cycles = restarts + self.hosts + 2
        bound_s = min(cycles, 40) * (longest_cycle_s + longest_gap_s) + rules.linger_s
        return self.troubled_until + bound_s
