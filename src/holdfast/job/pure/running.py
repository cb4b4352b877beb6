"""Decide whether the cycle that runs goes on, is over, or is stopped so that the job can grow.

Pure. Times are seconds on the leader's clock. One word of a node changes its state, which only gets
worse within a cycle, except that all may end well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.base.pure.wording import count
from holdfast.job.pure.assign import AssignmentError, assign
from holdfast.job.pure.exit_codes import Ending
from holdfast.job.pure.membership import NodeState
from holdfast.job.pure.nodes import Nodes
from holdfast.job.pure.rules import RestartPolicy, Rules
from holdfast.job.pure.timing import Pace

_SEVERITY = {
    NodeState.HEALTHY: 0,
    NodeState.LEAVING: 1,
    NodeState.UNHEALTHY: 2,
    NodeState.FAILED: 3,
    NodeState.SUCCEEDED: 4,
}


@dataclass
class RunningCycle:
    """The last cycle that was formed, and its nodes.

    Attributes:
        ranks: The group rank of each, also where another leader has formed it.
        states: How the ranks of each fare; None: the node is lost. Empty: see ``ranks``.
        is_last: See :attr:`.Round.is_last`.
        newcomer: The last node that joined since it began; empty: none did.
        grow_at: When it may be stopped for more nodes; None: it is not.
    """

    rules: Rules
    pace: Pace
    nodes: Nodes

    ranks: Mapping[str, int] = field(default_factory=dict, init=False)
    states: dict[str, NodeState | None] = field(default_factory=dict, init=False)
    is_last: bool = field(default=False, init=False)
    newcomer: str = field(default="", init=False)
    grow_at: float | None = field(default=None, init=False)
    _tally: Counter[NodeState | None] = field(default_factory=Counter, init=False)

    def began(self, ranks: Mapping[str, int], *, is_last: bool) -> None:
        """All nodes start their ranks."""
        self.ranks, self.is_last = ranks, is_last
        self.states = dict.fromkeys(ranks, NodeState.HEALTHY)
        self._tally = Counter({NodeState.HEALTHY: len(ranks)})
        self.newcomer, self.grow_at = "", None

    # ------------------------------------------------------------ how its nodes fare
    def is_at_work(self, node: str) -> bool:
        """Whether it has ranks, or is lost, and has not completed the cycle."""
        return self.states.get(node, NodeState.SUCCEEDED) is not NodeState.SUCCEEDED

    def is_news(self, node: str, state: NodeState) -> bool:
        """Whether that is worse than the state that is known."""
        known = self.states.get(node)
        return known is not None and _SEVERITY[state] > _SEVERITY[known]

    def set_state(self, node: str, state: NodeState | None) -> None:
        """Of one of its nodes."""
        self._tally[self.states[node]] -= 1
        self._tally[state] += 1
        self.states[node] = state

    def over(self, cause: str) -> tuple[Ending, str] | None:
        """Whether it has succeeded or failed by the last change, and why; None: it goes on."""
        succeeded = self._tally[NodeState.SUCCEEDED]
        leaving = self._tally[NodeState.LEAVING]
        running = self._tally[NodeState.HEALTHY] + leaving
        if leaving and leaving + self._tally[None] == len(self.states):
            return None  # the whole job was signalled: nodes that still save their work may finish
        if self.rules.survives_ranks:
            running += self._tally[NodeState.UNHEALTHY]  # which is: ranks failed, and others run
        if self.rules.restart is RestartPolicy.ANY_FAILED or self.rules.is_of_one:
            if succeeded == len(self.states):
                return Ending.SUCCEEDED, "all ranks succeeded"
            return (Ending.FAILED, cause) if succeeded + running < len(self.states) else None
        least = self.rules.nodes.min_nodes
        if running == 0 and succeeded >= least:
            return Ending.SUCCEEDED, f"{count(succeeded, 'node')} succeeded"
        if running + succeeded >= least:
            return None
        healthy = f"{count(running + succeeded, 'node')} healthy or succeeded"
        return Ending.FAILED, f"{healthy}, at least {least} needed; last: {cause}"

    # ------------------------------------------------------------ silent nodes
    def awaited_until(self) -> float:
        """When a silent node is given up, although no ranks of other nodes wait for it."""
        nodes = self.nodes
        if not nodes.awaited:
            return math.inf
        if any(self.is_at_work(node) for node in nodes.alive if node not in nodes.awaited):
            return math.inf
        longest = nodes.longest_awaited(self.pace.silence_s + self.pace.return_s)
        return math.inf if longest is None else longest[1]

    # ------------------------------------------------------------ growth
    def joined(self, node: str, started_at: float) -> None:
        """A node has joined since the cycle began, at that time."""
        self.newcomer = node
        rules = self.rules
        may_grow = rules.grow and rules.restart is RestartPolicy.ANY_FAILED
        if may_grow and len(self.states) < rules.nodes.wanted:
            self.grow_at = started_at + rules.grow_cooldown_s

    def why_grow(self, now: float) -> str | None:
        """Why to stop it for the newcomers, if there will be more nodes, and all is well.

        Asked once at ``grow_at``. None: it goes on without them.
        """
        self.grow_at = None
        nodes = self.nodes
        if self._tally[NodeState.HEALTHY] < len(self.states) or not nodes.ready:
            return None
        is_silent = nodes.awaited or nodes.silent_at(self.pace.fence_s) <= now
        if self.is_last and is_silent:
            self.grow_at = now + self.pace.silence_s  # it might be waited for in vain
            return None
        everyone = [nodes.alive[node] for node in (*self.states, *nodes.ready)]
        try:
            after = len(assign(everyone, self.rules.nodes, self.ranks).places)
        except AssignmentError:
            return None  # reported when it matters: when the next cycle forms
        if after <= len(self.states):
            return None
        grown = f"from {count(len(self.states), 'node')} to {after}"
        return f"{nodes.shown(self.newcomer)} joined, and the job grows {grown}"
