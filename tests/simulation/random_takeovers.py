"""Jobs whose leaders die, drawn from a seed: without or with witnesses, or by a key in a store."""

from __future__ import annotations

import random
from dataclasses import replace

from holdfast.job.pure.assign import Policy as NodePolicy
from tests.simulation.random_settings import (
    WITH_SNAPSHOTS,
    random_directions,
    random_network,
    random_rules,
)
from tests.simulation.scenario import (
    Crash,
    Cut,
    Fault,
    RankFails,
    Return,
    Scenario,
    Signal,
    Store,
    Suspend,
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
    rules, network = random_rules(rng, NodePolicy(least, wanted)), random_network(rng)
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
        up, down = random_directions(rng)
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
        snapshots=rng.random() < WITH_SNAPSHOTS,
    )
