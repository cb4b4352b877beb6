"""Jobs with faults of all kinds, drawn from a seed."""

from __future__ import annotations

import random

from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.membership import EXCLUDE, SHUTDOWN
from holdfast.job.pure.rules import RestartPolicy, Rules
from tests.simulation.random_settings import WITH_SNAPSHOTS
from tests.simulation.scenario import (
    Ask,
    Breaks,
    Crash,
    Cut,
    Fault,
    Hangs,
    HealthDies,
    MonitorDies,
    Network,
    Pause,
    RankFails,
    Return,
    Scenario,
    Sick,
    Signal,
    Stuck,
    Suspend,
)


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
        snapshots=rng.random() < WITH_SNAPSHOTS,
    )


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
