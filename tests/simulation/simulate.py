"""Run simulated jobs from a shell: ``python -m tests.simulation.simulate --seeds 1000 --nodes 8``.

With ``--inprocess``, calls of a restartable function on so many ranks, instead of launchers.

A seed that breaks a promise is printed with the transcript of its history and the command that
repeats it.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence

from holdfast.base import clock
from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.rules import Rules
from tests.simulation.call_scenario import Call, RankFault, What
from tests.simulation.inprocess import CallSimulation, simulate_call
from tests.simulation.job_promises import Violation
from tests.simulation.scenario import RankFails, Scenario, random_scenario
from tests.simulation.simulation import Result, Simulation

_TAIL = 400
"""Lines of a transcript that are shown at most; the cause is near its end."""


def simulate(seed: int, nodes: int, *, trace: bool = False) -> tuple[Simulation, Violation | None]:
    """Run the random scenario of ``seed``; what it violated, if anything."""
    simulation = Simulation(random_scenario(seed, nodes), seed, trace=trace)
    try:
        simulation.run()
    except Violation as violation:
        return simulation, violation
    return simulation, None


def one_restart(nodes: int) -> Result:
    """A job of ``nodes`` whose ranks fail once, and everybody restarts: what does that cost?"""
    rules = Rules(NodePolicy(nodes, nodes), max_restarts=1)
    fault = RankFails(at=5.0, host=nodes // 2)
    return Simulation(Scenario(nodes, rules, faults=(fault,), work_s=10.0)).run()


def main(argv: Sequence[str] | None = None) -> int:
    """Say what was found; 1 if any promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.simulate",
        description="Simulate jobs of many launchers with faults, and check every promise at "
        "every step.",
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories (1000)")
    parser.add_argument("--nodes", type=int, default=8, help="launchers per job (8)")
    parser.add_argument("--seed", type=int, help="only this one, with its transcript")
    parser.add_argument("--cost", action="store_true", help="store operations of one restart")
    parser.add_argument(
        "--inprocess", action="store_true", help="in-process restart; --nodes is a number of ranks"
    )
    args = parser.parse_args(argv)
    if args.inprocess:
        return _calls(args.seed, args.seeds, args.nodes, cost=args.cost)
    if args.cost:
        return _cost(args.nodes)
    if args.seed is not None:
        return _replay(args.seed, args.nodes)
    return _many(random.SystemRandom().randrange(2**31), args.seeds, args.nodes)


def _many(first: int, seeds: int, nodes: int) -> int:
    began_at = clock.monotonic()
    steps = 0
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + seeds):
        simulation, violation = simulate(seed, nodes)
        steps += simulation.steps
        if violation is not None:
            _replay(seed, nodes)
            return 1
        end = simulation.leader.end if simulation.leader is not None else None
        outcomes[end.outcome.value if end is not None else "leader lost"] += 1
    took_s = clock.monotonic() - began_at
    ends = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    _print(
        f"{seeds} seeds from {first}, {nodes} nodes, {steps} steps: 0 violations in {took_s:.1f} s "
        f"({ends})"
    )
    return 0


def _replay(seed: int, nodes: int) -> int:
    simulation, violation = simulate(seed, nodes, trace=True)
    _print(str(simulation.scenario))
    _print("----")
    for line in simulation.transcript[-_TAIL:]:
        _print(line)
    _print("----")
    if violation is None:
        _print(f"seed {seed}: {simulation.steps} steps, 0 violations")
        return 0
    _print(f"VIOLATION: {violation}")
    _print(f"again: python -m tests.simulation.simulate --nodes {nodes} --seed {seed}")
    return 1


def _calls(seed: int | None, seeds: int, ranks: int, *, cost: bool) -> int:
    """In-process restart: one seed with its transcript, the cost of a restart, or many seeds."""
    began_at = clock.monotonic()
    if cost:
        per_node = 8
        fault = RankFault(0, ranks // 2, What.RAISE)
        simulation = CallSimulation(Call(ranks, per_node, (fault,)), 1)
        simulation.run()
        most = max(node.messages for node in simulation.nodes)
        _print(
            f"{ranks} ranks on {len(simulation.nodes)} nodes, start, one restart, end: {most} "
            f"messages up per node at most ({per_node} ranks each), {simulation.steps} steps, "
            f"{clock.monotonic() - began_at:.1f} s"
        )
        return 0
    first = random.SystemRandom().randrange(2**31) if seed is None else seed
    for number in range(first, first + (seeds if seed is None else 1)):
        simulation, violation = simulate_call(number, ranks, trace=seed is not None)
        if violation is None and seed is None:
            continue
        if seed is None:
            simulation, violation = simulate_call(number, ranks, trace=True)
        _print(str(simulation.call))
        for line in simulation.transcript[-_TAIL:]:
            _print(line)
        _print(f"VIOLATION: {violation}" if violation else f"seed {number}: 0 violations")
        if violation:
            _print(
                "again: python -m tests.simulation.simulate --inprocess "
                f"--nodes {ranks} --seed {number}"
            )
            return 1
    if seed is None:
        took_s = clock.monotonic() - began_at
        _print(f"{seeds} calls from seed {first}, {ranks} ranks: 0 violations in {took_s:.1f} s")
    return 0


def _cost(nodes: int) -> int:
    began_at = clock.monotonic()
    result = one_restart(nodes)
    ops = result.restart_ops.values()
    _print(
        f"{nodes} nodes, one restart: {max(ops)} store operations per node at most, "
        f"{sum(ops) / len(ops):.3f} on average; leader: {result.published} decisions, "
        f"{result.leader_reads} messages (beats included), {result.steps} steps, "
        f"{clock.monotonic() - began_at:.1f} s"
    )
    return 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
