"""Whether the cycle that runs goes on, on a virtual clock."""

from __future__ import annotations

import math

import pytest

from holdfast.job.pure.assign import Policy as NodePolicy
from holdfast.job.pure.exit_codes import Ending
from holdfast.job.pure.membership import Descriptor, Join, NodeState
from holdfast.job.pure.nodes import Nodes
from holdfast.job.pure.rules import RestartPolicy, Rules
from holdfast.job.pure.running import RunningCycle
from holdfast.job.pure.timing import Pace

H, U, F, S, L = (
    NodeState.HEALTHY,
    NodeState.UNHEALTHY,
    NodeState.FAILED,
    NodeState.SUCCEEDED,
    NodeState.LEAVING,
)
PACE = Pace()
GROWING = Rules(NodePolicy(1, 3), grow_cooldown_s=5.0)
MIN_HEALTHY = Rules(NodePolicy(2, 3), restart=RestartPolicy.MIN_HEALTHY)


def join(nodes: Nodes, node: str, now: float = 0.0) -> None:
    nodes.join(Join(node, Descriptor(f"10.0.0.{node[1]}", node, nproc=1, pid=7)), now)


def cycle(rules: Rules = GROWING, size: int = 2, *, is_last: bool = False) -> RunningCycle:
    """Began at 0 s."""
    one = RunningCycle(rules, PACE, Nodes())
    for k in range(size):
        join(one.nodes, f"n{k}")
    one.began({f"n{k}": k for k in range(size)}, is_last=is_last)
    return one


@pytest.mark.parametrize(
    ("rules", "states", "ending"),
    [
        (GROWING, (H, H), None),
        (GROWING, (S, H), None),
        (GROWING, (S, S), Ending.SUCCEEDED),
        (GROWING, (H, U), Ending.FAILED),
        (GROWING, (H, None), Ending.FAILED),
        (GROWING, (L, F), Ending.FAILED),
        (GROWING, (L, None), None),
        (GROWING, (L, L), None),
        (MIN_HEALTHY, (H, H, F), None),
        (MIN_HEALTHY, (H, F, None), Ending.FAILED),
        (MIN_HEALTHY, (S, S, F), Ending.SUCCEEDED),
        (MIN_HEALTHY, (S, H, F), None),
    ],
)
def test_the_states_of_its_nodes_decide(
    rules: Rules, states: tuple[NodeState | None, ...], ending: Ending | None
) -> None:
    one = cycle(rules, len(states))
    for k, state in enumerate(states):
        one.set_state(f"n{k}", state)
    over = one.over("rank 1 died")
    assert (over and over[0]) == ending
    if over is not None and ending is Ending.FAILED:
        assert over[1].endswith("rank 1 died")


def test_a_state_is_news_when_it_is_worse_and_none_of_a_node_that_is_lost() -> None:
    one = cycle()
    assert one.is_news("n0", U)
    one.set_state("n0", U)
    assert not one.is_news("n0", U)
    assert not one.is_news("n0", H)
    assert one.is_news("n0", F)
    one.set_state("n0", None)
    assert not one.is_news("n0", F)
    assert not one.is_news("n9", F)


def test_it_is_stopped_for_a_newcomer_that_makes_it_larger_after_a_while() -> None:
    one = cycle()
    join(one.nodes, "n7", 3.0)
    one.nodes.ready["n7"] = None
    one.joined("n7", started_at=0.0)
    assert one.grow_at == GROWING.grow_cooldown_s
    why = one.why_grow(5.0)
    assert why == "n7 (pid 7) joined, and the job grows from 2 nodes to 3"
    assert one.grow_at is None


@pytest.mark.parametrize("case", ["a node has failed", "the newcomer left", "it is as large"])
def test_it_goes_on_for_a_newcomer_that_is_not_wanted(case: str) -> None:
    one = cycle(size=3 if case == "it is as large" else 2)
    join(one.nodes, "n7", 3.0)
    if case != "the newcomer left":
        one.nodes.ready["n7"] = None
    one.joined("n7", started_at=0.0)
    if case == "a node has failed":
        one.set_state("n0", U)
    assert (one.grow_at is None) == (case == "it is as large")
    assert one.why_grow(5.0) is None


def test_a_last_cycle_does_not_grow_while_a_node_is_silent() -> None:
    """Its ranks might be waited for in vain."""
    one = cycle(is_last=True)
    join(one.nodes, "n7", 3.0)
    one.nodes.ready["n7"] = None
    one.joined("n7", started_at=0.0)
    assert one.why_grow(PACE.fence_s) is None
    assert one.grow_at == PACE.fence_s + PACE.silence_s
    for node in ("n0", "n1", "n7"):
        one.nodes.has_sent(node, 20.0)
    assert one.why_grow(25.0) is not None


def test_a_silent_node_is_awaited_while_ranks_of_others_run() -> None:
    one = cycle(is_last=True)
    assert one.awaited_until() == math.inf
    one.nodes.awaited.add("n1")
    assert one.awaited_until() == math.inf
    one.set_state("n0", S)
    assert one.awaited_until() == PACE.silence_s + PACE.return_s
