"""Run simulated jobs from a shell: ``python -m tests.simulation.simulate --seeds 1000 --nodes 8``.

With ``--inprocess``, calls of a restartable function on so many ranks, instead of launchers; with
``--takeovers``, jobs whose leaders die; with ``--silences``, jobs whose hosts are silent; with
``--witnessed``, jobs whose leaders die, with witnesses; with ``--by-key``, the same where a store
has a key that names the leader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.rules import Rules
from tests.simulation.call_scenario import Call, RankFault, What, random_call
from tests.simulation.inprocess import CallSimulation
from tests.simulation.kernel import Kind, command
from tests.simulation.random_scenario import random_scenario
from tests.simulation.random_silences import random_silences
from tests.simulation.random_takeovers import (
    random_takeovers,
    random_takeovers_by_key,
    random_takeovers_witnessed,
)
from tests.simulation.scenario import RankFails, Scenario
from tests.simulation.simulation import Result, Simulation


def one_restart(nodes: int) -> Result:
    """A job of ``nodes`` whose ranks fail once, and all restart: what does that cost?"""
    rules = Rules(NodePolicy(nodes, nodes), max_restarts=1)
    fault = RankFails(at=5.0, host=nodes // 2)
    return Simulation(Scenario(nodes, rules, faults=(fault,), work_s=10.0)).run()


def _cost_of_a_job(nodes: int) -> str:
    result = one_restart(nodes)
    ops = result.restart_ops.values()
    return (
        f"{nodes} nodes, one restart: {max(ops)} store operations per node at most, "
        f"{sum(ops) / len(ops):.3f} on average; leader: {result.published} decisions, "
        f"{result.leader_reads} messages (beats included), {result.steps} steps"
    )


def _cost_of_a_call(ranks: int) -> str:
    per_node = 8
    fault = RankFault(0, ranks // 2, What.RAISE)
    call = CallSimulation(Call(ranks, per_node, (fault,)), 1)
    call.run()
    most = max(node.messages for node in call.nodes)
    return (
        f"{ranks} ranks on {len(call.nodes)} nodes, start, one restart, end: {most} "
        f"messages up per node at most ({per_node} ranks each), {call.steps} steps"
    )


def _without_a_fault(scenario: Scenario) -> Iterator[Scenario]:
    faults = scenario.faults
    for k in range(len(faults)):
        yield replace(scenario, faults=faults[:k] + faults[k + 1 :])


def _call_without_a_fault(call: Call) -> Iterator[Call]:
    for name in ("faults", "node_faults"):
        faults = getattr(call, name)
        for k in range(len(faults)):
            yield Call(**{**vars(call), name: faults[:k] + faults[k + 1 :]})


def _jobs(
    option: str, words: str, draw: Callable[[int, int], Scenario]
) -> Kind[Scenario, Simulation]:
    return Kind(
        option,
        words,
        draw,
        lambda scenario, seed, trace: Simulation(scenario, seed, trace=trace),
        _without_a_fault,
        _cost_of_a_job,
    )


JOBS = _jobs("", "launchers per job", random_scenario)
CALLS = Kind(
    "--inprocess",
    "ranks of a restart in place",
    random_call,
    lambda call, seed, trace: CallSimulation(call, seed, trace=trace),
    _call_without_a_fault,
    _cost_of_a_call,
)
TAKEOVERS = _jobs("--takeovers", "launchers per job, whose leaders die", random_takeovers)
SILENCES = _jobs(
    "--silences",
    "launchers per job, which are cut off, sleep, or lose their power",
    random_silences,
)
WITNESSED = _jobs(
    "--witnessed",
    "launchers per job, whose leaders die, and which has witnesses",
    random_takeovers_witnessed,
)
BY_KEY = _jobs(
    "--by-key",
    "launchers per job, whose leaders die, and a store has the key of the leader",
    random_takeovers_by_key,
)
simulate, simulate_call = JOBS.simulate, CALLS.simulate


def main(argv: Sequence[str] | None = None) -> int:
    """Report the findings; 1 if any promise was broken."""
    return command(
        [JOBS, CALLS, TAKEOVERS, SILENCES, WITNESSED, BY_KEY],
        "python -m tests.simulation.simulate",
        "Simulate jobs of many launchers with faults, and check every promise at every step.",
        argv,
    )


if __name__ == "__main__":
    sys.exit(main())
