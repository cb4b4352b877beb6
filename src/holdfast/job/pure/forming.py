"""Decide when the next cycle of a job can be formed, and why launchers wait for it.

Pure. Times are seconds on the leader's clock. A round is formed at the moment nothing is missing:
the most nodes that the job can use, or after a failure all survivors. A node that comes early, late
or in surplus waits in one queue, in the order of joining. None of these can close a round, and none
that dies can keep one open for longer than ``silence_s``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.job.pure.assign import Assignment, AssignmentError, assign
from holdfast.job.pure.nodes import Nodes
from holdfast.job.pure.rules import Rules
from holdfast.job.pure.timing import Pace


@dataclass
class Forming:
    """The next cycle, and the reasons to wait for it.

    Attributes:
        cycle: The last one; -1: none yet.
        awaited: Survivors of that, until each has joined again.
        earliest_at: Not before that; later than now after a failure in a row of failures.
        join_by: The job is given up then.
        form_at: When it can be formed or decided about, if nothing else happens; None: never.
        why_not: Why the nodes that are ready cannot form it.
        is_hopeless: Nor can they unless one comes or goes.
    """

    rules: Rules
    pace: Pace
    nodes: Nodes

    cycle: int = field(default=-1, init=False)
    awaited: set[str] = field(default_factory=set, init=False)
    earliest_at: float = field(default=0.0, init=False)
    join_by: float = field(default=0.0, init=False)
    form_at: float | None = field(default=None, init=False)
    why_not: AssignmentError | None = field(default=None, init=False)
    is_hopeless: bool = field(default=False, init=False)
    _last_call_until: float | None = field(default=None, init=False)

    def open(self, cycle: int, earliest_at: float) -> None:
        """``cycle`` is over, or -1."""
        self.cycle = cycle
        self.earliest_at = earliest_at
        self.join_by = earliest_at + self.pace.join_timeout_s
        self.why_not = None
        self.is_hopeless = False
        self._last_call_until = None

    def joined(self, node: str) -> bool:
        """A node waits for a place; whether it is a survivor that was awaited."""
        was_awaited = node in self.awaited
        self.awaited.discard(node)
        self.nodes.ready[node] = None
        self.is_hopeless = False
        return was_awaited

    def forget(self, node: str) -> None:
        """A node is gone: the cycle may be possible without it."""
        self.awaited.discard(node)
        self.is_hopeless = False

    def extend(self, late_s: float) -> None:
        """The leader slept for so long."""
        self.join_by += late_s

    def is_late(self, now: float) -> bool:
        """No node is waited for any more."""
        return now >= self.join_by

    def may_decide(self, now: float, waits_until: float | None) -> bool:
        """Whether all survivors are back: is there another cycle?

        ``waits_until``: see :meth:`.Restarts.waits_until`.
        """
        self.form_at = None if self.awaited or self.is_late(now) else waits_until
        return not self.awaited and self.form_at is None

    def may_form(self, now: float) -> bool:
        """Whether the nodes that are ready form a cycle; if not yet, it is known when."""
        if self._lacks_nodes_for_good(now):
            self.form_at = self.complete_at
            return False
        at = self.can_form_at(now)
        if at is not None and now < at and not self.is_late(now):
            self.form_at = at
            return False
        return at is not None

    def is_in_vain(self, now: float) -> bool:
        """MIN can't be reached any more, although all nodes are there that can be."""
        return self._lacks_nodes_for_good(now) and now >= self.complete_at

    def _lacks_nodes_for_good(self, now: float) -> bool:
        return self.is_too_small_for_good() and not self.is_late(now)

    def can_form_at(self, now: float) -> float | None:
        """When the nodes that are ready form a cycle, if no other comes; None: they are too few."""
        ready = len(self.nodes.ready)
        if ready < self.rules.nodes.min_nodes:
            self._last_call_until = None
            return None
        if self._last_call_until is None:
            self._last_call_until = now + self.last_call_s
        if ready < self.rules.nodes.wanted:
            return max(self.earliest_at, self._last_call_until)
        return self.earliest_at

    @property
    def last_call_s(self) -> float:
        """How long more nodes are waited for, once MIN are ready."""
        rules = self.rules
        return rules.first_last_call_s if self.cycle < 0 else rules.later_last_call_s

    def is_too_small_for_good(self) -> bool:
        """Whether MIN can't be reached any more, as nodes of the job were found not to be fit.

        Places of nodes that were lost may be filled again; so may those that were never filled.
        """
        nodes, unfit = self.rules.nodes, len(self.nodes.unfit)
        may_come = (self.rules.launchers or nodes.max_nodes) - unfit
        return bool(unfit) and max(len(self.nodes.alive), may_come) < nodes.min_nodes

    @property
    def complete_at(self) -> float:
        """When all nodes are there that can be: the first cycle may get a spare started by hand."""
        is_counted = self.cycle >= 0 or self.rules.launchers is not None
        return self.earliest_at + (0.0 if is_counted else self.rules.first_last_call_s)

    def assign(self, before: Mapping[str, int]) -> tuple[Assignment | None, tuple[str, ...]]:
        """Ranks for the nodes that are ready, or nodes that can't have any (:attr:`why_not`).

        Neither: not now. ``before``: the group ranks of the last cycle.
        """
        nodes = self.nodes
        if self.is_hopeless or nodes.awaits_claimants:
            return None, ()
        try:
            ready = [nodes.alive[node] for node in nodes.ready]
            return assign(ready, self.rules.nodes, before), ()
        except AssignmentError as error:
            self.why_not = error
            at_fault = nodes.at_fault(error, self.pace.beat_s)
            self.is_hopeless = not at_fault and not nodes.has_open_claims
            return None, at_fault

    def news(self, *, is_decided: bool) -> tuple[object, ...] | None:
        """Facts that launchers that wait should know when they change; None: none.

        ``is_decided``: there is another cycle.
        """
        if self.rules.is_of_one:
            return (self.form_at,) if self.is_pausing(is_decided=is_decided) else None
        why_not = None if self.why_not is None else self.why_not.facts
        return len(self.nodes.ready), len(self.awaited), why_not, self._last_call_until

    def is_pausing(self, *, is_decided: bool) -> bool:
        """Whether the next cycle could begin, but for the pause after a failure."""
        return is_decided and self.form_at is not None and self.form_at <= self.earliest_at
