"""Simulated jobs that keep steps at peers: the loss of a node never costs more than since then."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from holdfast.arena.pure import beginning, kept_steps, peer_messages, trust
from holdfast.arena.pure.choice import Chosen, choose
from holdfast.arena.pure.snapshots import (
    Ancestor,
    DamagedCopy,
    Held,
    Holdings,
    Refused,
    Restore,
    SnapshotId,
)
from holdfast.job.pure import state_choice
from holdfast.job.pure.keeping import Keeping
from holdfast.job.pure.membership import Keep
from tests.simulation import simulated_kept_steps, simulated_snapshots
from tests.simulation.kernel import Violation
from tests.simulation.random_node_losses import random_node_losses
from tests.simulation.random_scenario import random_scenario
from tests.simulation.random_takeovers import random_takeovers
from tests.simulation.scenario import Scenario
from tests.simulation.simulated_snapshots import SimulatedArenas
from tests.simulation.simulation import Simulation
from tests.simulation.test_snapshots import fails_often

SEEDS = 100


def with_kept_steps(scenario: Scenario, seed: int) -> Scenario:
    keep_s = random.Random(seed).choice((0.5, 3.0))
    rules = replace(scenario.rules, snapshot_progress=3, snapshot_keep_s=keep_s)
    return replace(scenario, snapshots=True, rules=rules)


def simulate(
    kind: Callable[[int, int], Scenario], hosts: int, seeds: Iterable[int]
) -> tuple[int, int]:
    """How many steps were kept, and how many rounds after the loss of a node began from one."""
    kept = survived = 0
    for seed in seeds:
        scenario = kind(seed, hosts)
        if kind is not random_node_losses:
            scenario = with_kept_steps(scenario, seed)
        simulation = Simulation(scenario, seed)
        try:
            simulation.run()
        except Violation as violation:
            raise Violation(f"{violation} (seed {seed}, {hosts} hosts)") from None
        kept += simulation.snapshots.kept.kept
        survived += simulation.snapshots.kept.survived
    return kept, survived


@pytest.mark.parametrize(
    ("kind", "hosts"),
    [
        (random_node_losses, 2),
        (random_node_losses, 4),
        (random_scenario, 3),
        (random_takeovers, 5),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_no_history_that_loses_nodes_begins_from_a_state_older_than_the_kept_step(
    kind: Callable[[int, int], Scenario], hosts: int, first_seed: int
) -> None:
    """Transfers fail, ranks miss steps, leaders die with what only they knew."""
    kept, survived = simulate(kind, hosts, range(first_seed, first_seed + SEEDS))
    assert kept > 0
    assert survived > 0 or kind is random_scenario


@pytest.mark.parametrize(("kind", "hosts"), [(random_node_losses, 3), (random_takeovers, 5)])
def test_no_history_goes_back_to_snapshots_that_a_rank_has_given_up(
    kind: Callable[[int, int], Scenario],
    hosts: int,
    first_seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other ranks have theirs, and its node's peer copies."""
    monkeypatch.setattr(simulated_snapshots, "GIVES_UP", 0.05)
    kept, _ = simulate(kind, hosts, range(first_seed, first_seed + SEEDS // 2))
    assert kept > 0


# ---------------------------------------------------------------- planted bugs
_ask, _slot_to_write = Keeping._ask, SimulatedArenas.slot_to_write
_slot_for = peer_messages.slot_for


def no_name_in_the_decision(self: Keeping, step: int) -> Keep:
    asked = _ask(self, step)
    return Keep(asked.cycle, asked.step)


def no_name_in_the_transfer(*_: object) -> frozenset[int]:
    return frozenset()


def whatever_is_listed(
    usable: Mapping[int, Held | None], kept: frozenset[int], **_: bool
) -> int | None:
    return _slot_for(usable, kept)


def no_pin(self: SimulatedArenas, rank: int) -> object:
    pins = self.keep, self.kept
    self.keep = self.kept = 0
    try:
        return _slot_to_write(self, rank)
    finally:
        self.keep, self.kept = pins


def forgotten(*_: object) -> None:
    return None


def only_of_the_leader(
    holdings: Mapping[str, Holdings],
    last_nodes: Collection[str],
    known: SnapshotId | None,
    places: Mapping[str, Collection[int]],
    lineage: Collection[Ancestor],
    *rest: Any,
) -> SnapshotId | None:
    silent = {node: it.but(kept=None, complete=None) for node, it in holdings.items()}
    return kept_steps.kept_step(silent, last_nodes, known, places, lineage, *rest)


def of_all_copies(refused: Mapping[str, Collection[Refused]]) -> Iterable[DamagedCopy]:
    """A damaged copy gives up the whole snapshot, as far as nodes know that have it."""
    for each in refused.values():
        for it in each:
            yield from (DamagedCopy(it.snapshot, it.rank, node) for node in refused)


def of_its_node_alone(refused: Mapping[str, Collection[Refused]]) -> Iterable[DamagedCopy]:
    """The node that had sent a damaged copy sends it again."""
    alone = {node: [it.but(source="") for it in each] for node, each in refused.items()}
    return _damaged_of(alone)


def not_voided(*_: object) -> None:
    pass


def as_if_it_led_nowhere(last: Restore | None, last_step: int, progress: int) -> bool:
    """A life that a damaged copy has ended counts."""
    return _is_spent(None if last is None else last.but(times=last.times + 1), last_step, progress)


_is_spent, _damaged_of = trust.is_spent, beginning.damaged_of


@pytest.mark.parametrize(
    ("where", "name", "bug"),
    [
        ((beginning, state_choice), "damaged_of", of_all_copies),
        ((beginning, state_choice), "damaged_of", of_its_node_alone),
        ((SimulatedArenas,), "void_damaged", not_voided),
        ((trust,), "is_spent", as_if_it_led_nowhere),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_simulator_finds_a_bug_in_the_choice_among_copies(
    monkeypatch: pytest.MonkeyPatch, where: tuple[Any, ...], name: str, bug: Any
) -> None:
    """A step with a good copy of each part is not given up; a bad copy is begun from once."""
    damage_more(monkeypatch)
    for each in where:
        monkeypatch.setattr(each, name, bug)
    with pytest.raises(Violation):
        simulate_all()


def test_without_a_bug_jobs_with_many_damaged_copies_break_no_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    damage_more(monkeypatch)
    simulate_all()


def damage_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies go bad ten times as often."""
    monkeypatch.setattr(simulated_snapshots, "GOES_BAD", 0.3)
    monkeypatch.setattr(simulated_kept_steps, "GOES_BAD", 0.3)


@pytest.mark.parametrize(
    ("kind", "name", "bug"),
    [
        (Keeping, "_ask", no_name_in_the_decision),
        (simulated_kept_steps, "untouchable", no_name_in_the_transfer),
        (peer_messages, "slot_for", whatever_is_listed),
        (SimulatedArenas, "slot_to_write", no_pin),
        (state_choice, "kept_step", forgotten),
        (state_choice, "kept_step", only_of_the_leader),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_simulator_finds_a_bug_in_kept_steps(
    monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, bug: Any
) -> None:
    monkeypatch.setattr(kind, name, bug)
    with pytest.raises(Violation):
        simulate_all()


def test_the_simulator_finds_a_copy_that_is_used_although_its_rank_has_given_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulated_snapshots, "GIVES_UP", 0.05)
    simulate_failing_ranks()
    monkeypatch.setattr(beginning, "choose", as_if_none_was_given_up)
    with pytest.raises(Violation, match="was given up by a rank"):
        simulate_failing_ranks()


def simulate_failing_ranks() -> None:
    """Of nodes that stay."""
    scenario = fails_often(hosts=2)
    keeps = replace(scenario, rules=replace(scenario.rules, snapshot_keep_s=0.5))
    for seed in range(20):
        Simulation(keeps, seed).run()


def as_if_none_was_given_up(*args: Any, void_until: object, **named: Any) -> Chosen:
    return choose(*args, **named)


def test_the_simulator_finds_that_one_slot_for_each_rank_of_a_peer_is_too_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next step has no place but that of the kept one."""
    monkeypatch.setattr(simulated_snapshots, "REPLICA_SLOTS", 1)
    monkeypatch.setattr(simulated_kept_steps, "untouchable", no_name_in_the_transfer)
    with pytest.raises(Violation):
        simulate_all()


def simulate_all() -> None:
    """Each of the bugs shows in one of these."""
    simulate(random_node_losses, 3, BUG_SEEDS)


BUG_SEEDS = range(50, 95)


def test_without_a_bug_the_same_jobs_break_no_promise() -> None:
    simulate_all()
