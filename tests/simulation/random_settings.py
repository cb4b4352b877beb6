"""The rules and the network of a job that moves its leadership, drawn from a seed."""

from __future__ import annotations

import random

from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.rules import Rules
from tests.simulation.scenario import Network

WITH_SNAPSHOTS = 0.5
"""Of all scenarios."""


def random_rules(rng: random.Random, nodes: NodePolicy) -> Rules:
    """Of a job that moves its leadership; all launchers are there when a leader dies."""
    return Rules(
        nodes=nodes,
        max_restarts=20,
        first_last_call_s=1.5,
        later_last_call_s=rng.choice((0.0, 0.0, 2.0)),
        grow_cooldown_s=rng.choice((0.0, 5.0)),
        evidence_s=rng.choice((0.0, 1.0)),
    )


def random_network(rng: random.Random) -> Network:
    return Network(
        delay_s=(0.0005, rng.choice((0.001, 0.02, 0.3))),
        spike=rng.choice((0.0, 0.0, 0.02)),
        duplicate=rng.choice((0.0, 0.05)),
    )


def random_directions(rng: random.Random) -> tuple[bool, bool]:
    """Whether a cut holds up what a host sends, and what it is sent: mostly both."""
    return rng.choice(((True, True), (True, True), (True, False), (False, True)))
