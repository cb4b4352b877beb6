"""Jobs that keep steps at peers and lose nodes, drawn from a seed."""

from __future__ import annotations

import random

from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.rules import Rules
from tests.simulation.scenario import Crash, Fault, Network, RankFails, Return, Scenario, Suspend


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
