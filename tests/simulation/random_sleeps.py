"""Jobs of which all hosts sleep at the same time, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.timing import Pace
from tests.simulation.random_settings import WITH_SNAPSHOTS, random_network, random_rules
from tests.simulation.scenario import Crash, Fault, PowerLoss, RankFails, Scenario, Store, Suspend

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
        random_rules(rng, NodePolicy(least, hosts - spares)),
        max_restarts=0 if not is_one_lost and rng.random() < 0.2 else 20,
        launchers=1 if hosts == 1 else None,
        is_of_one=hosts == 1,
    )
    network, pace = random_network(rng), Pace(join_timeout_s=120.0)
    apart_s = pace.ask_s - 2 * network.longest_way_s - _WAKES_S
    at = rng.choice((rng.uniform(0.5, 5), rng.uniform(5, 20), rng.uniform(5, 30)))
    at = max(at, _FORMS_S) if is_one_lost else at
    is_forming = at < _FORMS_S
    sleeps: list[Suspend] = []
    faults: list[Fault] = []
    times = rng.choice((1, 1, 1, 2, 3))
    for _ in range(times):
        sleeps += _random_sleep(rng, range(hosts + witnesses), at, apart_s, pace)
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
        snapshots=most_cycles == 1 and not is_one_lost and rng.random() < WITH_SNAPSHOTS,
        store=Store() if has_store else None,
        witnesses=witnesses,
        must_succeed=True,
        most_cycles=None if is_one_lost else most_cycles,
    )


def _random_sleep(
    rng: random.Random, hosts: Sequence[int], at: float, apart_s: float, pace: Pace
) -> list[Suspend]:
    """Of all these hosts at once; they wake within ``apart_s``, one of them first, or in turn."""
    for_s = rng.uniform(*rng.choice(_SLEEPS_S))
    later_s = rng.choice((0.0, 0.005, 0.1, rng.uniform(0, apart_s), apart_s))
    if for_s < 2 * pace.beat_s:  # it may not be late, and counts the others' sleep as silence
        later_s = min(later_s, pace.fence_s - 3 * pace.beat_s - _WAKES_S)
    first = rng.choice((None, 0, rng.choice(hosts)))
    sleeps = []
    for host in hosts:
        more_s = rng.uniform(0, later_s) if first is None else later_s * (host != first)
        sleeps.append(Suspend(at + rng.uniform(0, 0.005), host, for_s + more_s))
    return sleeps
