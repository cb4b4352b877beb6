"""What happens to a simulated job: its launchers, its network, and what goes wrong, when.

A scenario is data: it can be written by hand, or drawn from a seed (:func:`random_scenario`), which
gives the same one every time. Times are seconds of virtual time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.membership import EXCLUDE, SHUTDOWN
from holdfast.job.pure.rules import RestartPolicy, Rules
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


_WITH_SNAPSHOTS = 0.5
"""Of all scenarios."""


def random_scenario(seed: int, hosts: int = 8) -> Scenario:
    """A job of ``hosts`` launchers with two or more faults, drawn from ``seed``."""
    rng = random.Random(seed)
    least = rng.randint(1, hosts)
    most = rng.randint(least, hosts)
    numbered = hosts > 1 and rng.random() < 0.3
    rules = Rules(
        nodes=NodePolicy(
            least, most, use_infra_group_rank=numbered, active=rng.choice(("max", "max", "min"))
        ),
        restart=rng.choice((RestartPolicy.ANY_FAILED,) * 3 + (RestartPolicy.MIN_HEALTHY,)),
        max_restarts=rng.choice((0, 1, 2, 3, 10)),
        restarts_period_s=rng.choice((None, None, 60.0)),
        first_last_call_s=rng.choice((0.0, 0.0, 2.0, 30.0)),
        later_last_call_s=rng.choice((0.0, 0.0, 2.0)),
        grow=rng.random() < 0.8,
        grow_cooldown_s=rng.choice((0.0, 5.0, 30.0)),
        backoff_s=rng.choice((0.0, 0.0, 4.0)),
        backoff_max_s=20.0,
        launchers=1 if hosts == 1 else None,
        is_of_one=hosts == 1,
        reads_iterations=rng.random() < 0.3,
        max_no_progress_cycles=3,
        evidence_s=rng.choice((0.0, 1.0, 1.0, 1.0)),
    )
    network = Network(
        delay_s=(0.0005, rng.choice((0.001, 0.02, 0.3))),
        spike=rng.choice((0.0, 0.02)),
        duplicate=rng.choice((0.0, 0.05, 0.5)),
    )
    starts_at = tuple(
        0.0 if rng.random() < 0.6 else rng.choice((rng.uniform(0, 1), rng.uniform(0, 60)))
        for _host in range(hosts)
    )
    work_s = rng.choice((5.0, 20.0, 60.0))
    faults: list[Fault] = []
    start = rng.choice((0.0, max(starts_at), rules.first_last_call_s))
    for _fault in range(rng.randint(2, 8)):
        # Faults like company: the second often comes while the first is being dealt with.
        close = bool(faults) and rng.random() < 0.6
        at = faults[-1].at + rng.uniform(0, 0.5) if close else start + rng.uniform(0, work_s)
        faults += _random_faults(rng, hosts, at)
    return Scenario(
        hosts=hosts,
        rules=rules,
        network=network,
        faults=tuple(faults),
        starts_at=starts_at,
        work_s=work_s,
        cascade=rng.choice((0.0, 0.3, 1.0)),
        slow_stop=rng.choice((0.0, 0.1, 0.5)),
        infra_ranks=numbered,
        codec=rng.random() < 0.1,
        nproc=rng.choice((1, 1, 2)) if hosts > 1 else rng.choice((1, 2, 4)),
        standby=rng.random() < 0.5,
        others=_random_others(rng, hosts, least),
        calls=rng.random() < 0.5,
        proofs=rng.choice((0.0, 0.5, 1.0)),
        snapshots=rng.random() < _WITH_SNAPSHOTS,
    )


def random_node_losses(seed: int, hosts: int = 4) -> Scenario:
    """A job that keeps steps at peers, and loses nodes, drawn from ``seed``; spares take over.

    ``hosts``: that have ranks; one or two more are spares.
    """
    rng = random.Random(seed)
    active = rng.randint(2, hosts)
    everyone = active + rng.choice((1, 2))
    rules = Rules(
        NodePolicy(active, active),
        max_restarts=30,
        snapshot_progress=3,
        snapshot_keep_s=rng.choice((0.2, 0.5, 2.0, 5.0)),
        first_last_call_s=rng.choice((0.1, 1.0)),
    )
    faults: list[Fault] = []
    at = rng.uniform(2, 10)
    for _ in range(rng.randint(1, 8)):
        host, kind = rng.randrange(everyone), rng.random()
        if kind < 0.6:
            faults += [Crash(at, host), Return(at + rng.choice((0.2, 3.0, 8.0)), host)]
        elif kind < 0.8:
            faults.append(RankFails(at, host, every=rng.random() < 0.5))
        else:
            faults.append(Suspend(at, host, rng.choice((0.3, 3.0))))
        at += rng.choice((0.05, 1.0, rng.uniform(2, 15), rng.uniform(4, 20)))
    return Scenario(
        everyone,
        rules,
        network=Network(delay_s=(0.001, 0.003)),
        faults=tuple(faults),
        work_s=rng.choice((6.0, 20.0, 60.0)),
        snapshots=True,
        nproc=rng.choice((1, 2)),
        proofs=rng.choice((0.0, 1.0)),
        codec=rng.random() < 0.1,
    )


def random_takeovers(seed: int, hosts: int = 5) -> Scenario:
    """A job whose leaders die, one after the other, drawn from ``seed``.

    Fewer than half of the hosts die, and some return. Unless hosts are cut off or sleep as well, or
    a kernel says nothing, the job must succeed.
    """
    return _takeovers(random.Random(seed), hosts, (hosts - 1) // 2)


def random_takeovers_witnessed(seed: int, hosts: int = 2) -> Scenario:
    """The same with one or two witnesses, which may come late, die, return, sleep and be cut off.

    Half of the launchers may die, unless a witness is lost as well. Of two launchers and a witness
    that is lost, too, the job may end with its leader.
    """
    rng = random.Random(seed)
    witnesses, is_one_lost = rng.choice((1, 2)), rng.random() < 0.4
    deaths = max(1, (hosts - 1) // 2) if is_one_lost else hosts // 2
    scenario = _takeovers(rng, hosts, deaths)
    faults = [*scenario.faults]
    starts_at = [*scenario.starts_at]
    for host in range(hosts, hosts + witnesses):
        # In time for the first death, where the job needs its vote.
        is_early = not is_one_lost and host == hosts
        starts_at.append(rng.uniform(0, 0.3) if is_early else rng.uniform(0, 30))
    if is_one_lost:
        near = max(0.0, (rng.choice(faults).at if faults else 5.0) + rng.uniform(-5, 1))
        host = rng.randrange(hosts, hosts + witnesses)
        for_s = rng.choice((0.5, 9.0, 40.0))
        crash, signal = Crash(near, host), Signal(near, host, 0.1, well=True)
        faults.append(rng.choice((crash, crash, signal, Suspend(near, host, for_s))))
        if rng.random() < 0.5:
            faults.append(Return(near + rng.choice((0.1, 1.0, 30.0)), host))
    if scenario.proofs < 1.0:
        near, host = rng.uniform(0, 30), rng.randrange(hosts, hosts + witnesses)
        faults.append(Cut(near, host, rng.choice((0.5, 9.0, 40.0)), down=rng.random() < 0.5))
    return replace(scenario, faults=tuple(faults), starts_at=tuple(starts_at), witnesses=witnesses)


def random_takeovers_by_key(seed: int, hosts: int = 3) -> Scenario:
    """The same where a store has the key of the leader: all hosts but one may die."""
    rng = random.Random(seed)
    scenario = _takeovers(rng, hosts, rng.randint(1, hosts - 1))
    outages: list[tuple[float, float]] = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        since = max(0.0, rng.choice(scenario.faults).at + rng.uniform(-1, 1))
        outages.append((since, since + rng.choice((0.1, 3.0, 20.0, 40.0))))  # join_timeout: 120
    store = Store(
        delay_s=(0.0005, rng.choice((0.001, 0.1, 2.0))),
        outages=tuple(outages),
        late=rng.choice((0.0, 0.5)),
        is_apart=rng.random() < 0.5,
    )
    return replace(scenario, store=store)


def _takeovers(rng: random.Random, hosts: int, deaths: int) -> Scenario:
    least = rng.randint(1, hosts - deaths)
    wanted = rng.randint(least, hosts)
    rules, network = _random_rules(rng, NodePolicy(least, wanted)), _random_network(rng)
    work_s = rng.choice((5.0, 20.0, 60.0))
    is_hostile = rng.random() < 0.6
    faults: list[Fault] = []
    at = rng.uniform(0 if is_hostile else 2, work_s)
    doomed = [0, *rng.sample(range(1, hosts), deaths - 1)]
    if rng.random() < 0.5:
        doomed = [*range(deaths)]  # the successors, in order
    for host in doomed:
        if rng.random() < 0.3:  # in the middle of a restart
            faults.append(RankFails(at, rng.randrange(hosts), every=rng.random() < 0.5))
        goes_at = at + rng.choice((0.0, rng.uniform(0, 0.5)))
        signal = Signal(goes_at, host, rng.choice((0.1, 20.0)), well=rng.random() < 0.5)
        faults.append(signal if rng.random() < 0.2 else Crash(goes_at, host))
        if rng.random() < 0.5:
            faults.append(Return(at + rng.choice((0.1, 1.0, 30.0)), host))
        at += rng.choice((rng.uniform(0, 0.1), rng.uniform(0, 2), rng.uniform(0, 40)))
    for _ in range(rng.randint(1, 4) if is_hostile else 0):
        near = rng.choice(faults).at + rng.uniform(-1, 1)
        host = rng.randrange(hosts)
        up, down = _random_directions(rng)
        for_s = rng.choice((0.5, 2.0, 9.0, 14.0, 40.0))
        cut = Cut(max(0.0, near), host, for_s, up=up, down=down)
        faults.append(rng.choice((cut, cut, Suspend(max(0.0, near), host, for_s))))
    return Scenario(
        hosts=hosts,
        rules=rules,
        network=network,
        faults=tuple(faults),
        starts_at=tuple(rng.choice((0.0, rng.uniform(0, 0.3))) for _ in range(hosts)),
        work_s=work_s,
        slow_stop=rng.choice((0.0, 0.5)),
        codec=rng.random() < 0.1,
        proofs=rng.choice((0.5, 0.9)) if is_hostile else 1.0,
        snapshots=rng.random() < _WITH_SNAPSHOTS,
    )


_HALVED = 0.05
"""Of the jobs with silences that have so many launchers, at least."""
_SMALLEST_HALVED = 4
_LEFT = 2
"""So many launchers beside the leader, and one of them leads if it dies."""
_ASLEEP = 0.05
"""Of the jobs with silences."""


def random_silences(seed: int, hosts: int = 3) -> Scenario:
    """A job whose leaders and other launchers are silent, drawn from ``seed``.

    Links are cut, in one direction or both; the network is parted; hosts sleep or lose their power;
    several at once, or one after the other. In most jobs a majority lives and the network heals, so
    they must succeed. Some are :func:`random_halved`, some :func:`random_asleep`.
    """
    # By generators of their own: all other seeds mean what they would without these.
    if random.Random(f"asleep {seed}").random() < _ASLEEP:
        return random_asleep(seed, hosts)
    if hosts >= _SMALLEST_HALVED and random.Random(f"halved {seed}").random() < _HALVED:
        return random_halved(seed, hosts)
    rng = random.Random(seed)
    witnesses = rng.choice((0, 0, 1))
    most = (hosts + (witnesses and hosts % 2 == 0) - 1) // 2  # that may be lost
    family = rng.choice(("heals", "heals", "few", "few", "any"))
    lost = {"heals": 0, "few": rng.randint(0, most), "any": rng.randint(0, hosts - 1)}[family]
    least = hosts - lost if family == "few" else rng.randint(1, hosts)
    wanted = rng.randint(max(1, least), hosts)
    rules = _random_rules(rng, NodePolicy(max(1, least), wanted))
    network = _random_network(rng)
    work_s = rng.choice((5.0, 20.0, 60.0))
    everyone = [*range(hosts + witnesses)]
    doomed = [0, *rng.sample(range(1, hosts), lost - 1)] if lost else []
    if rng.random() < 0.3:
        doomed = rng.sample(range(hosts), lost)
    at = rng.uniform(4, 4 + work_s)
    faults: list[Fault] = []
    for host in doomed:
        faults.append(rng.choice((PowerLoss, PowerLoss, Crash))(at, host))
        if rng.random() < 0.3:
            faults.append(Return(at + rng.choice((0.1, 1.0, 12.0, 30.0)), host))
        at += rng.choice((0.0, rng.uniform(0, 0.5), rng.uniform(0, 15), rng.uniform(0, 40)))
    at = rng.uniform(4, 4 + work_s)
    may_fail = everyone
    if family == "few":  # no more at a time than the job can miss
        alive = [host for host in everyone if host not in doomed]
        may_fail = [*doomed, *rng.sample(alive, most - lost)]
    for _ in range(rng.randint(not faults, 3) if may_fail else 0):
        for_s = rng.choice((0.5, 4.0, 9.0, 14.0, 17.0, 30.0))
        host = rng.choice([*may_fail, *[it for it in may_fail if it == 0]])
        up, down = _random_directions(rng)
        apart = frozenset(rng.sample(may_fail, rng.randint(1, len(may_fail))))
        one_way = rng.random() < 0.2
        faults += rng.choice(
            (
                [Cut(at, host, for_s, up=up, down=down)],
                [Partition(at, min(apart), apart, for_s, one_way=one_way)],
                [Suspend(at, host, for_s)],
                [Suspend(at, it, max(0.5, for_s + rng.uniform(-3, 3))) for it in apart],
            )
        )
        at += rng.choice((rng.uniform(0, 1), rng.uniform(0, 20), rng.uniform(0, 60)))
    if not faults or rng.random() < 0.3:
        near = rng.choice(faults).at + rng.uniform(-1, 1) if faults else at
        faults.append(RankFails(near, rng.randrange(hosts)))
    late = [rng.choice((0.0, rng.uniform(0, 0.3))) for _ in range(hosts)]
    return Scenario(
        hosts=hosts,
        rules=rules,
        network=network,
        faults=tuple(faults),
        starts_at=(*late, *[rng.uniform(0, 0.3)] * witnesses),
        work_s=work_s,
        slow_stop=rng.choice((0.0, 0.5)),
        codec=rng.random() < 0.1,
        proofs=rng.choice((0.0, 0.5, 1.0)),
        snapshots=rng.random() < _WITH_SNAPSHOTS,
        witnesses=witnesses,
        must_succeed=family != "any",
    )


def random_halved(seed: int, hosts: int = 6) -> Scenario:
    """A job of which half loses the leader, and the rest a little later, drawn from ``seed``.

    The first half is apart, or sleeps, until it has begun to look for another leader; this one
    leads the rest meanwhile. Then it dies, sleeps or is cut off, and may return. A rank may fail, a
    spare may join, and another launcher may die about that time.
    """
    rng = random.Random(f"half of {hosts} {seed}")
    witnesses = rng.choice((0, 0, 1))
    everyone = range(hosts + witnesses)
    spare = hosts - 1 if rng.random() < 0.3 else None
    others = [host for host in everyone[1:] if host != spare]
    half = rng.sample(others, min(len(everyone) // 2, len(others)))
    at, for_s = rng.uniform(6, 9), rng.choice((10.0, 10.0, 11.0, 12.0, 30.0)) + rng.uniform(0, 1)
    faults: list[Fault] = [Partition(at, min(half), frozenset(half), for_s)]
    if rng.random() < 0.4:
        faults = [Suspend(at, host, for_s + rng.uniform(-1, 3)) for host in half]
    lost_at = at + rng.choice((rng.uniform(10, 13), rng.uniform(10, 13), rng.uniform(5, 30)))
    if rng.random() < 0.7:
        crash, signal = Crash(lost_at, 0), Signal(lost_at, 0, rng.choice((0.1, 20.0)), well=True)
        faults.append(rng.choice((crash, crash, crash, signal, PowerLoss(lost_at, 0))))
        if rng.random() < 0.4:
            faults.append(Return(lost_at + rng.choice((0.1, 1.0, 12.0)), 0))
    else:
        up, down = _random_directions(rng)
        away_s = rng.choice((5.0, 11.0, 14.0, 30.0))
        cut = Cut(lost_at, 0, away_s, up=up, down=down)
        faults.append(rng.choice((cut, Suspend(lost_at, 0, away_s))))
    if rng.random() < 0.3:
        faults.append(RankFails(at + rng.uniform(-1, for_s), rng.randrange(hosts)))
    is_one_more_dead = rng.random() < 0.3
    if is_one_more_dead:
        dies_at = lost_at + rng.choice((0.0, rng.uniform(0, 1), rng.uniform(0, 15)))
        faults.append(Crash(dies_at, rng.choice(everyone[1:])))
    least = rng.randint(1, hosts - 2)
    wanted = rng.randint(least, hosts - (spare is not None))
    starts_at = [rng.uniform(0, 0.3) for _ in everyone]
    if spare is not None:
        starts_at[spare] = at + rng.uniform(-1, for_s)
    return Scenario(
        hosts=hosts,
        rules=_random_rules(rng, NodePolicy(least, wanted)),
        network=_random_network(rng),
        faults=tuple(faults),
        starts_at=tuple(starts_at),
        work_s=60.0,
        slow_stop=rng.choice((0.0, 0.5)),
        codec=rng.random() < 0.1,
        proofs=rng.choice((0.3, 0.5, 1.0)),
        snapshots=rng.random() < _WITH_SNAPSHOTS,
        witnesses=witnesses,
        # With fewer the leader may lead a job of two, which no other one can lead.
        must_succeed=not is_one_more_dead and len(others) - len(half) >= _LEFT,
    )


_SLEEPS_S = (
    (0.5, 2.5),
    (2.5, 5.0),  # a beat; the time to ask
    (7.0, 11.0),  # ranks end where others are awake
    (11.0, 16.0),  # the lease is over; nodes are given up
    (16.0, 22.0),  # another one may lead
    (22.0, 60.0),
    (120.0, 160.0),  # launchers without ranks leave
    (600.0, 7200.0),
)
"""From the shortest to the longest of each kind."""
_FORMS_S = 5.0
"""The first cycle has formed by then, and the nodes have its round."""
_WAKES_S = 0.5
"""Of the time to ask, for what a launcher does when it wakes."""


def random_asleep(seed: int, hosts: int = 4) -> Scenario:
    """A job of which all hosts sleep at the same time, once or several times, drawn from ``seed``.

    They fall asleep within milliseconds of each other, and wake so, or up to ``ask_s`` apart. About
    that time a rank may fail, or a host be lost. There may be a spare, and a witness, or a store
    with the key of the leader.
    """
    rng = random.Random(f"asleep {hosts} {seed}")
    witnesses = rng.choice((0, 0, 1)) if hosts > 1 else 0
    spares = rng.choice((0, 0, 1)) if hosts > 1 else 0
    is_one_lost = rng.random() < 0.2 and hosts > 2
    least = hosts - spares - is_one_lost
    rules = replace(
        _random_rules(rng, NodePolicy(least, hosts - spares)),
        max_restarts=0 if not is_one_lost and rng.random() < 0.2 else 20,
        launchers=1 if hosts == 1 else None,
        is_of_one=hosts == 1,
    )
    network, pace = _random_network(rng), Pace(join_timeout_s=120.0)
    apart_s = pace.ask_s - 2 * network.longest_way_s - _WAKES_S
    at = rng.choice((rng.uniform(0.5, 5), rng.uniform(5, 20), rng.uniform(5, 30)))
    at = max(at, _FORMS_S) if is_one_lost else at
    is_forming = at < _FORMS_S
    sleeps: list[Suspend] = []
    faults: list[Fault] = []
    times = rng.choice((1, 1, 1, 2, 3))
    for _ in range(times):
        sleeps += _random_sleep(rng, range(hosts + witnesses), at, apart_s)
        wakes_at = max(one.at + one.for_s for one in sleeps)
        if rules.max_restarts and rng.random() < 0.3:
            near = rng.choice((at, wakes_at)) + rng.uniform(-1, 1)
            faults.append(RankFails(max(0.0, near), rng.randrange(hosts)))
        # Before that a node may still ask, and has no more time than for that.
        at = wakes_at + pace.ask_s + pace.beat_s
        at += rng.choice((rng.uniform(0, 3), rng.uniform(0, 30)))
    # While a cycle forms: a round that comes as a node wakes may be old, and starts no ranks.
    most_cycles = 1 + len(faults) + (times if faults or is_forming else 0)
    if is_one_lost:
        one = rng.choice(sleeps)
        near = rng.choice((one.at, one.at + one.for_s)) + rng.uniform(-2, 2)
        host = rng.choice((0, rng.randrange(hosts)))
        faults.append(rng.choice((Crash, PowerLoss))(max(_FORMS_S, near), host))
    has_store = hosts > 1 and not witnesses and not is_one_lost and rng.random() < 0.1
    return Scenario(
        hosts=hosts,
        rules=rules,
        pace=pace,
        network=network,
        faults=(*sleeps, *faults),
        starts_at=tuple(rng.choice((0.0, rng.uniform(0, 0.3))) for _ in range(hosts + witnesses)),
        work_s=rng.choice((20.0, 60.0)),
        slow_stop=rng.choice((0.0, 0.5)),
        codec=rng.random() < 0.1,
        proofs=rng.choice((0.0, 0.5, 1.0)),
        # Those of an earlier cycle may be unfit, and end one more.
        snapshots=most_cycles == 1 and not is_one_lost and rng.random() < _WITH_SNAPSHOTS,
        store=Store() if has_store else None,
        witnesses=witnesses,
        must_succeed=True,
        most_cycles=None if is_one_lost else most_cycles,
    )


def _random_sleep(
    rng: random.Random, hosts: Sequence[int], at: float, apart_s: float
) -> list[Suspend]:
    """Of all these hosts at once; they wake within ``apart_s``, one of them first, or in turn."""
    for_s = rng.uniform(*rng.choice(_SLEEPS_S))
    later_s = rng.choice((0.0, 0.005, 0.1, rng.uniform(0, apart_s), apart_s))
    first = rng.choice((None, 0, rng.choice(hosts)))
    sleeps = []
    for host in hosts:
        more_s = rng.uniform(0, later_s) if first is None else later_s * (host != first)
        sleeps.append(Suspend(at + rng.uniform(0, 0.005), host, for_s + more_s))
    return sleeps


def _random_rules(rng: random.Random, nodes: NodePolicy) -> Rules:
    """Of a job that moves its leadership; all launchers are there when a leader dies."""
    return Rules(
        nodes=nodes,
        max_restarts=20,
        first_last_call_s=1.5,
        later_last_call_s=rng.choice((0.0, 0.0, 2.0)),
        grow_cooldown_s=rng.choice((0.0, 5.0)),
        evidence_s=rng.choice((0.0, 1.0)),
    )


def _random_network(rng: random.Random) -> Network:
    return Network(
        delay_s=(0.0005, rng.choice((0.001, 0.02, 0.3))),
        spike=rng.choice((0.0, 0.0, 0.02)),
        duplicate=rng.choice((0.0, 0.05)),
    )


def _random_directions(rng: random.Random) -> tuple[bool, bool]:
    """Whether a cut holds up what a host sends, and what it is sent: mostly both."""
    return rng.choice(((True, True), (True, True), (True, False), (False, True)))


def _random_others(rng: random.Random, hosts: int, least: int) -> frozenset[int]:
    """In some jobs of several hosts, those that the job can do without; host 0 has its leader."""
    if hosts == 1 or rng.random() < 0.7:
        return frozenset()
    return frozenset(rng.sample(range(1, hosts), rng.randint(0, hosts - max(1, least))))


def random_suspension(rng: random.Random, hosts: int, at: float) -> list[Suspend]:
    """Of some hosts, one of them, or all: at once, staggered, or one after the other."""
    which = rng.choice(([0], [rng.randrange(hosts)], rng.sample(range(hosts), hosts)))
    which = rng.choice((which, list(range(hosts))))
    how = rng.choice(("together", "together", "staggered", "in turn"))
    for_s, faults = rng.choice((rng.uniform(1, 60), 12.0, 25.0, 60.0)), []
    for number, host in enumerate(which):
        begins = at + (rng.uniform(0, 10) if how == "staggered" else 0.0)
        begins += number * (for_s + rng.uniform(-3, 3)) if how == "in turn" else 0.0
        lasts = for_s if how == "together" else max(1.0, for_s + rng.uniform(-10, 10))
        faults.append(Suspend(max(at, begins), host, min(lasts, 60.0)))
    return faults


def _random_faults(rng: random.Random, hosts: int, at: float) -> list[Fault]:
    host = rng.randrange(hosts)
    if host == 0 and hosts < 3 and rng.random() < 0.7:
        host = rng.randrange(hosts)  # without its leader such a job is over: have more of the rest
    kind = rng.randrange(120)
    if kind >= 100:
        if kind < 105:
            return [Hangs(at, host)]
        if kind < 110:  # ranks that wait for each other are overdue within milliseconds
            hosts_too = rng.sample(range(hosts), rng.randint(1, hosts))
            return [Hangs(at + rng.uniform(0, 0.007), it, every=True) for it in hosts_too]
        return [rng.choice((MonitorDies(at, host), HealthDies(at, host, 2), Breaks(at, host)))]
    if kind < 30:
        return [RankFails(at, host, every=rng.random() < 0.5, may_restart=rng.random() < 0.95)]
    if kind < 55:
        crash = Crash(at, host)
        comes_back = rng.random() < 0.6
        return [crash, Return(at + rng.choice((0.1, 5.0, 30.0)), host)] if comes_back else [crash]
    if kind < 70:
        both = rng.random() < 0.7
        up = both or rng.random() < 0.5
        return [Cut(at, host, rng.choice((0.5, 9.0, 14.0, 40.0)), up=up, down=both or not up)]
    if kind < 75:
        return [Pause(at, host, rng.choice((2.0, 12.0, 40.0)))]
    if kind < 78:
        return [*random_suspension(rng, hosts, at)]
    if kind < 84:
        return [Ask(at, host, EXCLUDE)]
    if kind < 87:
        return [Ask(at, host, SHUTDOWN)]
    if kind < 93:
        return [Signal(at, host, rng.choice((0.1, 20.0)), well=rng.random() < 0.5)]
    if kind < 95:
        return [Sick(at, host)]
    return [Stuck(at, host)]
