"""Jobs whose launchers are silent, drawn from a seed: cut off, parted, asleep or without power."""

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
from tests.simulation.random_sleeps import random_asleep
from tests.simulation.scenario import (
    Crash,
    Cut,
    Fault,
    Partition,
    PowerLoss,
    RankFails,
    Return,
    Scenario,
    Signal,
    Suspend,
)

_HALVED = 0.05
"""Of the jobs with silences that have so many launchers, at least."""
_SMALLEST_HALVED = 4
_BARE = 0.05
"""Of the jobs with silences that have so many launchers, at least."""
_SMALLEST_BARE = 3
_LEFT = 2
"""So many launchers beside the leader, and one of them leads if it dies."""
_ASLEEP = 0.05
"""Of the jobs with silences."""


def random_silences(seed: int, hosts: int = 3) -> Scenario:
    """A job whose leaders and other launchers are silent, drawn from ``seed``.

    Links are cut, in one direction or both; the network is parted; hosts sleep or lose their power;
    several at once, or one after the other. In most jobs a majority lives and the network heals, so
    they must succeed. Some are :func:`random_halved`, some :func:`random_bare`, some
    :func:`random_asleep`.
    """
    # By generators of their own: all other seeds mean what they would without these.
    if random.Random(f"asleep {seed}").random() < _ASLEEP:
        return random_asleep(seed, hosts)
    if hosts >= _SMALLEST_HALVED and random.Random(f"halved {seed}").random() < _HALVED:
        return random_halved(seed, hosts)
    if hosts >= _SMALLEST_BARE and random.Random(f"bare {seed}").random() < _BARE:
        return random_bare(seed, hosts)
    rng = random.Random(seed)
    witnesses = rng.choice((0, 0, 1))
    most = (hosts + (witnesses and hosts % 2 == 0) - 1) // 2  # that may be lost
    family = rng.choice(("heals", "heals", "few", "few", "any"))
    lost = {"heals": 0, "few": rng.randint(0, most), "any": rng.randint(0, hosts - 1)}[family]
    least = hosts - lost if family == "few" else rng.randint(1, hosts)
    wanted = rng.randint(max(1, least), hosts)
    rules = random_rules(rng, NodePolicy(max(1, least), wanted))
    network = random_network(rng)
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
        up, down = random_directions(rng)
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
        snapshots=rng.random() < WITH_SNAPSHOTS,
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
        up, down = random_directions(rng)
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
        rules=random_rules(rng, NodePolicy(least, wanted)),
        network=random_network(rng),
        faults=tuple(faults),
        starts_at=tuple(starts_at),
        work_s=60.0,
        slow_stop=rng.choice((0.0, 0.5)),
        codec=rng.random() < 0.1,
        proofs=rng.choice((0.3, 0.5, 1.0)),
        snapshots=rng.random() < WITH_SNAPSHOTS,
        witnesses=witnesses,
        # With fewer the leader may lead a job of two, which no other one can lead.
        must_succeed=not is_one_more_dead and len(others) - len(half) >= _LEFT,
    )


def random_bare(seed: int, hosts: int = 9) -> Scenario:
    """A job of which the leader and all others that can be missed lose their power, about one time.

    So each launcher that is left is needed, and all have to find together, most of them by asking
    hosts that are off. Some are apart for a while. Drawn from ``seed``.
    """
    rng = random.Random(f"bare majority of {hosts} {seed}")
    witnesses = rng.choice((0, 0, 1))
    most = (hosts + (witnesses and hosts % 2 == 0) - 1) // 2  # that may be lost
    others = range(1, hosts)
    doomed = rng.sample(others, most - 1)
    at, within_s = 20.0, rng.choice((5.0, 10.0, 20.0, 40.0))
    faults: list[Fault] = [PowerLoss(at, 0)]
    for host in doomed:
        lost = rng.choice((PowerLoss, PowerLoss, PowerLoss, Crash))
        faults.append(lost(at + rng.uniform(-5, within_s), host))
    slow = None
    if doomed and rng.random() < 0.3:  # one is back as a spare as the leader is lost
        died_at = at - rng.uniform(0.1, 0.8)
        faults[1] = Crash(died_at, doomed[0])
        faults.append(Return(died_at + 0.1, doomed[0]))
        slow = random.Random(f"slow {seed}").choice((None, None, 0.3))
    for _ in range(rng.randint(0, 3)):
        apart = frozenset(rng.sample(others, rng.randint(1, rng.choice((1, most)))))
        for_s = rng.choice((0.5, 4.0, 9.0, 14.0, 30.0))
        faults.append(Partition(at + rng.uniform(-5, within_s), min(apart), apart, for_s))
    scenario = Scenario(
        hosts=hosts,
        rules=random_rules(rng, NodePolicy(rng.randint(1, hosts - most), hosts)),
        network=random_network(rng),
        faults=tuple(faults),
        starts_at=tuple(rng.uniform(0, 0.3) for _ in range(hosts + witnesses)),
        work_s=60.0,
        slow_stop=rng.choice((0.0, 0.5)),
        codec=rng.random() < 0.1,
        proofs=rng.choice((0.0, 0.5, 1.0)),
        snapshots=rng.random() < WITH_SNAPSHOTS,
        witnesses=witnesses,
        must_succeed=True,
    )
    if slow is None:
        return scenario
    # The round in which it has a vote reaches some, and not others.
    return replace(scenario, network=replace(scenario.network, delay_s=(0.0005, slow)))
