"""When the next cycle of a job can be formed, and what the launchers that wait for it are told.

Pure. Times are seconds on the leader's clock. A round is formed at the moment nothing is missing:
the most nodes that the job can use, or after a failure all survivors. A node that comes early, late
or in surplus waits in one queue, in the order of joining. None of those that wait can close a
round, and none that dies can keep one open for longer than ``silence_s``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.job.pure.assign import name_some
from holdfast.job.pure.membership import Pace
from holdfast.job.pure.nodes import Nodes
from holdfast.job.pure.rules import Rules

NEWS_S = 1.0
"""A wait as long as this is told to those who wait; so is, as long after, that it has changed.

With the beats that are due anyway: what a node reads grows with the time it waits, and not with
the number of nodes.
"""


@dataclass
class Forming:
    """What the next cycle waits for.

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
    why_not: str = field(default="", init=False)
    is_hopeless: bool = field(default=False, init=False)
    _last_call_until: float | None = field(default=None, init=False)

    def open(self, cycle: int, earliest_at: float) -> None:
        """``cycle`` is over, or -1."""
        self.cycle = cycle
        self.earliest_at = earliest_at
        self.join_by = earliest_at + self.pace.join_timeout_s
        self.why_not = ""
        self.is_hopeless = False
        self._last_call_until = None

    def forget(self, node: str) -> None:
        """A node is gone: what could not be formed with it may be formed now."""
        self.awaited.discard(node)
        self.is_hopeless = False

    def can_form_at(self, now: float) -> float | None:
        """When the nodes that are ready form a cycle, if no other comes; None: they are too few."""
        ready = len(self.nodes.ready)
        if ready < self.rules.nodes.min_nodes:
            self._last_call_until = None
            return None
        if self._last_call_until is None:
            self._last_call_until = now + self._last_call_s
        if ready < self.rules.nodes.wanted:
            return max(self.earliest_at, self._last_call_until)
        return self.earliest_at

    @property
    def _last_call_s(self) -> float:
        rules = self.rules
        return rules.first_last_call_s if self.cycle < 0 else rules.later_last_call_s

    def is_too_small_for_good(self) -> bool:
        """Whether MIN can't be reached any more, as nodes of the job's were found not to be fit.

        Places of nodes that were lost may be filled again; so may those that were never filled.
        """
        nodes, unfit = self.rules.nodes, len(self.nodes.unfit)
        may_come = (self.rules.launchers or nodes.max_nodes) - unfit
        return bool(unfit) and max(len(self.nodes.alive), may_come) < nodes.min_nodes

    @property
    def nobody_else_at(self) -> float:
        """When nobody is expected who is not in the scheduler's count: a spare started by hand."""
        is_counted = self.cycle >= 0 or self.rules.launchers is not None
        return self.earliest_at + (0.0 if is_counted else self.rules.first_last_call_s)

    # ------------------------------------------------------------ in words
    def why_too_few(self) -> str:
        """The job is given up at ``join_by``: why."""
        cause = (
            f"{len(self.nodes.ready)} of {self.rules.nodes.min_nodes} nodes joined within "
            f"{self.pace.join_timeout_s:g} s ({self.nodes.ready_named()})"
        )
        if self.nodes.unfit:
            cause = f"{cause}; not fit: {self.nodes.unfit_named()}"
        return f"{cause}: {self.why_not}" if self.why_not else cause

    def why_too_small(self) -> str:
        """The job is given up as it :meth:`is_too_small_for_good`: why."""
        here, nodes = len(self.nodes.alive), self.rules.nodes
        return (
            f"{here} of {nodes.min_nodes} nodes {'is' if here == 1 else 'are'} left, and no other "
            f"can take a place (--nnodes {nodes.nnodes}): {self.nodes.unfit_named()}"
        )

    def news(self, *, is_decided: bool) -> tuple[object, ...] | None:
        """What those who wait should be told of when it changes; None: nobody has to be told.

        ``is_decided``: that there is another cycle.
        """
        if self.rules.is_of_one:
            return (self.form_at,) if self._is_pausing(is_decided=is_decided) else None
        return len(self.nodes.ready), len(self.awaited), self.why_not, self._last_call_until

    def _is_pausing(self, *, is_decided: bool) -> bool:
        """The next cycle could begin, but for the pause after a failure."""
        return is_decided and self.form_at is not None and self.form_at <= self.earliest_at

    def what_is_waited_for(self, now: float, *, is_decided: bool) -> str:
        """For those who wait."""
        nodes, ready = self.rules.nodes, len(self.nodes.ready)
        backoff = f"(--ft-restart-backoff {self.rules.backoff_s:g})"
        if self.rules.is_of_one and self.form_at is not None:
            return f"the next cycle starts in {self.form_at - now:.0f} s {backoff}"
        here = (
            f"{ready} of {nodes.nnodes} nodes {'is' if ready == 1 else 'are'} here "
            f"({self.nodes.ready_named()})"
        )
        until = self.nobody_else_at if self.is_too_small_for_good() else self.join_by
        limit = f"up to {max(0.0, until - now):.0f} s"
        option = f"--rdzv-conf join_timeout={self.pace.join_timeout_s:g}"
        if self.awaited:
            late = name_some([self.nodes.alive[node] for node in self.awaited])
            return (
                f"{here}; waiting {limit} for {late} to end the ranks of cycle {self.cycle} "
                f"({option})"
            )
        if ready < nodes.min_nodes:
            more = nodes.min_nodes - ready
            return f"{here}; waiting {limit} for {more} more (--nnodes {nodes.nnodes}; {option})"
        if self.form_at is None:
            return f"{here}, and no cycle can be formed of them: {self.why_not}; waiting {limit}"
        start = f"{here}; starting in {self.form_at - now:.0f} s"
        if self._is_pausing(is_decided=is_decided):
            return f"{start}, after a pause {backoff}"
        return (
            f"{start}, or as soon as there are {nodes.wanted} "
            f"(--rdzv-conf last_call_timeout={self._last_call_s:g})"
        )


@dataclass
class News:
    """When those who wait are told what they wait for: not each change, and none twice.

    Attributes:
        text: What they were told last; empty: nothing that still holds.
        number: Of that, counted from 1; the same if it is told once more.
        tell_at: When they will be told; None: there is no news.
    """

    text: str = ""
    number: int = 0
    tell_at: float | None = None
    _told: tuple[object, ...] | None = None
    _last: tuple[object, ...] = ()

    def forget(self) -> None:
        """Nobody waits for that any more."""
        self.text = ""
        self.tell_at = self._told = None

    def are_due(self, news: tuple[object, ...] | None, cycle: int, now: float) -> bool:
        """Whether to tell this now, in a new ``text``. ``cycle``: the last that was formed."""
        if news is None or news == self._told:
            self.tell_at = None
        elif self.tell_at is None:
            self.tell_at = now + NEWS_S
        elif now >= self.tell_at:
            self._told, self.tell_at = news, None
            self.number += (cycle, *news) != self._last
            self._last = cycle, *news
            return True
        return False
