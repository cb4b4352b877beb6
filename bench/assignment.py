"""What a rank assignment costs one rank of a job of 16,384 ranks that has lost 1,000."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from bench.figures import Bar, Report
from holdfast.inprocess import Compose, State
from holdfast.inprocess._plugin_call import AssignmentPlugin
from holdfast.inprocess.rank_assignment import (
    ActivateAllRanks,
    FillGaps,
    FilterCountGroupedByKey,
    Layer,
    LayerFlag,
    ShiftRanks,
    Tree,
)

WORLD = 16_384
LOST = 1_000
ROUNDS = 10
BOTH = LayerFlag.RESERVE | LayerFlag.BACKFILL


class _Gathered:
    """A store that has everybody's values already: those that the rank itself would give."""

    def __init__(self, living: list[int], value_of: Callable[[int], Any]) -> None:
        self._values = [[rank, value_of(rank)] for rank in living]

    def gather(self, name: str, value: Any, timeout_s: float | None = None) -> list[Any]:
        del name, value, timeout_s
        return self._values


def tree() -> Tree:
    """Nodes of 8 with 7 at work, racks of 16 nodes."""
    return Tree(
        [
            Layer(flag=BOTH),
            Layer(key_or_fn=lambda state: state.rank // 128, flag=BOTH),
            Layer(key_or_fn=lambda state: state.rank // 8, flag=BOTH, max_ranks=7),
        ]
    )


def _ms(call: Callable[[], None]) -> float:
    began_ns = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - began_ns) / 1e6


def measure(rounds: int = ROUNDS, world: int = WORLD, lost: int = LOST) -> Report:
    """Each kind in turn, with other ranks lost in each round."""
    report = Report(f"{world:,} ranks, {lost:,} lost at random, on one rank; {rounds} rounds")
    kinds: dict[str, list[float]] = {}
    for seed in range(rounds):
        dead = set(random.Random(seed).sample(range(1, world), lost))
        living = [rank for rank in range(world) if rank not in dead]
        me = living[-1]

        def time_one(
            name: str, assign: AssignmentPlugin, state: State, store: Any, gone: set[int]
        ) -> None:
            kinds.setdefault(name, []).append(_ms(lambda: assign(state, store, gone)))

        for name, plugin in {
            "ShiftRanks": Compose(ActivateAllRanks(), ShiftRanks()),
            "FillGaps": Compose(ActivateAllRanks(), FillGaps()),
        }.items():
            time_one(name, AssignmentPlugin(plugin), State(me, world), None, dead)

        nodes = _Gathered(living, lambda rank: rank // 8)
        by_node = FilterCountGroupedByKey(0, lambda count: count >= 4)
        assign = AssignmentPlugin(Compose(ShiftRanks(), by_node))
        time_one("FilterCountGroupedByKey, gathered", assign, State(me, world), nodes, dead)

        paths = _Gathered(list(range(world)), lambda rank: ["", rank // 128, rank // 8])
        assign, state = AssignmentPlugin(tree()), State(me, world)
        time_one("Tree, the first time, gathered", assign, state, paths, set())
        time_one("Tree", assign, state, None, dead)
    for name, samples in kinds.items():
        report.add(name, "ms", samples, Bar(500, "max"))
    return report
