"""Simulated jobs whose ranks keep snapshots: all ranks of a life begin from one state, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from holdfast.arena.pure import beginning, choice, trust
from holdfast.arena.pure.choice import Chosen
from holdfast.arena.pure.snapshots import Held
from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.membership import EXCLUDE, Round
from holdfast.job.pure.rules import Rules
from holdfast.job.pure.state_choice import StateChoice
from tests.simulation.kernel import Violation
from tests.simulation.random_scenario import random_scenario
from tests.simulation.random_takeovers import random_takeovers
from tests.simulation.scenario import Ask, Crash, Network, RankFails, Scenario
from tests.simulation.simulated_snapshots import SimulatedArenas
from tests.simulation.simulation import Simulation

CALM = Network(delay_s=(0.001, 0.003))
SEEDS = 100


def with_snapshots(scenario: Scenario) -> Scenario:
    return replace(scenario, snapshots=True, rules=replace(scenario.rules, snapshot_progress=3))


def restored(kind: Callable[[int, int], Scenario], hosts: int, seeds: Iterable[int]) -> int:
    """How many cycles began from a snapshot."""
    found = 0
    for seed in seeds:
        simulation = Simulation(with_snapshots(kind(seed, hosts)), seed)
        try:
            simulation.run()
        except Violation as violation:
            raise Violation(f"{violation} (seed {seed}, {hosts} hosts)") from None
        found += simulation.snapshots.restored
    return found


@pytest.mark.parametrize(
    ("kind", "hosts"),
    [(random_scenario, 1), (random_scenario, 3), (random_scenario, 8), (random_takeovers, 5)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_no_history_has_ranks_that_begin_from_two_states(
    kind: Callable[[int, int], Scenario], hosts: int, first_seed: int
) -> None:
    """Ranks die in mid-copy, nodes and leaders die, copies are found to be wrong."""
    assert restored(kind, hosts, range(first_seed, first_seed + SEEDS)) > 0


def fails_often(hosts: int = 3, fails: int = 4) -> Scenario:
    """A rank fails again and again."""
    rules = Rules(NodePolicy(hosts, hosts), max_restarts=fails + 20, snapshot_progress=3)
    faults = tuple(RankFails(5.0 + 6.1 * k, k % hosts, every=k % 2 == 0) for k in range(fails))
    return Scenario(hosts, rules, network=CALM, faults=faults, work_s=12.0, snapshots=True, nproc=2)


def leads_nowhere() -> Scenario:
    """Each life fails before it has ended a step."""
    faults = (RankFails(9.0, 0), *(RankFails(9.0 + 0.45 * k, 1) for k in range(1, 12)))
    return replace(fails_often(), faults=faults)


def leader_dies() -> Scenario:
    """It has no ranks by then: its node was excluded. So the state of all ranks lives on."""
    rules = Rules(NodePolicy(3, 4), max_restarts=9, snapshot_progress=3, first_last_call_s=0.1)
    faults = (Ask(2.0, 0, EXCLUDE), RankFails(9.0, 1), Crash(17.0, 0), RankFails(26.0, 2))
    return Scenario(4, rules, network=CALM, faults=faults, work_s=12.0, snapshots=True, proofs=1.0)


def lost(simulation: Simulation) -> list[int]:
    """Steps that each restart computed again."""
    begins = [it.beginning for it in simulation._log if isinstance(it, Round) and not it.revision]
    restores = [it.restore for it in begins if it is not None and it.restore is not None]
    return [it.lost_steps for it in restores]


def test_at_most_one_step_is_lost_when_a_rank_fails_and_snapshots_are_taken_of_each() -> None:
    """Two slots are enough where the copy is part of the step."""
    found: list[int] = []
    for seed in range(20):
        simulation = Simulation(fails_often(fails=1), seed)
        simulation.run()
        found += lost(simulation)[:1]
    assert len(found) > 10
    assert {*found} <= {0, 1}


def test_a_leader_that_takes_over_goes_on_with_the_lineage() -> None:
    """The cycle after it begins from the state of the cycle before."""
    simulation = Simulation(leader_dies(), 3)
    simulation.run()
    assert simulation.takeovers == 1
    begins = [it.beginning for it in simulation._log if isinstance(it, Round) and not it.revision]
    after = [it for it in begins if it is not None and it.restore is not None]
    assert len(after) >= 2
    assert len(after[-1].lineage) >= 2


def newest_of_any(held: Mapping[str, Iterable[Held]], *_args: Any, **_named: Any) -> Chosen:
    names = [it.id for snapshots in held.values() for it in snapshots]
    return Chosen(max(names, default=None))


def without_refused(*args: Any, **named: Any) -> Chosen:
    held, places, lineage, _refused, spent, _damaged = args
    return choice.choose(held, places, lineage, (), spent, **named)


def never_void(self: SimulatedArenas, beginning: object) -> None:
    pass


def forgets(self: StateChoice, formed: object) -> None:
    self._is_used = True


def never_spent(*args: object) -> bool:
    return False


@pytest.mark.parametrize(
    ("kind", "name", "bug"),
    [
        (beginning, "choose", newest_of_any),
        (beginning, "choose", without_refused),
        (SimulatedArenas, "void", never_void),
        (StateChoice, "inherit", forgets),
        (trust, "is_spent", never_spent),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_simulator_finds_a_bug_in_the_choice(
    monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, bug: Any
) -> None:
    monkeypatch.setattr(kind, name, bug)
    with pytest.raises(Violation):
        simulate_all()


def simulate_all() -> None:
    for seed in range(40):
        for scenario in (leader_dies(), fails_often(), leads_nowhere()):
            Simulation(scenario, seed).run()


def test_without_a_bug_the_same_jobs_break_no_promise() -> None:
    simulate_all()
