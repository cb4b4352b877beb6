"""The leader's part of snapshots: which one the next cycle begins from, and how often they come.

Pure. Launchers list with their Join the snapshots of their nodes; the Round names the one that all
ranks begin from (:mod:`holdfast.arena.pure.choice`). A leader that takes over knows the lineage
from the last Round, and the rest from the Joins that it gets itself: so nothing is decided twice or
forgotten. A job without snapshots has nothing of this in its messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.arena.pure.beginning import next_restore
from holdfast.arena.pure.lineage import cut, last_life
from holdfast.arena.pure.snapshots import Ancestor, Beginning, Holdings, Restore
from holdfast.arena.pure.trust import PROGRESS
from holdfast.job.pure import membership as msg

NOTICE_STEPS = 8
"""A cadence holds so many steps after the newest that any rank had ended: all know it by then."""


@dataclass
class StateChoice:
    """Of one job.

    Attributes:
        progress: New steps after which a snapshot counts as one that leads on.
    """

    progress: int = PROGRESS

    _holdings: dict[str, tuple[int, Holdings]] = field(default_factory=dict, init=False)
    """By node: the cycle that it had ranks in, and its snapshots since."""
    _lineage: tuple[Ancestor, ...] = field(default=(), init=False)
    """Of the last life."""
    _last: Ancestor | None = field(default=None, init=False)
    """That life; None: there was none."""
    _restore: Restore | None = field(default=None, init=False)
    """The snapshot that it began from."""
    _every: int = field(default=0, init=False)
    _costs: dict[str, msg.SnapshotCosts] = field(default_factory=dict, init=False)
    _is_used: bool = field(default=False, init=False)
    """A rank of the job has used snapshots."""

    def inherit(self, formed: msg.Round) -> None:
        """Go on after the last round of another leader."""
        self._last = last_life(formed.term, formed.cycle)
        if (beginning := formed.beginning) is not None:
            self._is_used = True
            self._lineage, self._restore = beginning.lineage, beginning.restore
            self._every = beginning.every

    def joined(self, join: msg.Join) -> None:
        """The ranks of this node are gone, and it holds this."""
        had, _ = self._holdings.get(join.node, (-1, None))
        if join.have_cycle < had:
            return  # a late copy
        if join.holdings is None:
            self._holdings.pop(join.node, None)
            return
        self._is_used = True
        self._holdings[join.node] = join.have_cycle, join.holdings
        self._every = max(self._every, join.holdings.every)

    def lost(self, node: str) -> None:
        """The node is gone, and all that it held."""
        self._holdings.pop(node, None)
        self._costs.pop(node, None)

    def begin(self, cycle: int, term: int, places: Iterable[msg.CyclePlace]) -> Beginning | None:
        """The snapshot that this cycle begins from; None: the job uses no snapshots."""
        life = last_life(term, cycle)
        before, self._last = self._last, life
        self._costs.clear()
        if not self._is_used:
            return None
        lives = self._lineage if before is None else (*self._lineage, before)
        ranks = {it.node: range(it.rank_offset, it.rank_offset + it.nproc) for it in places}
        last_step = -1
        if before is not None:
            known = self._holdings.values()
            of_it = (held.last_step for had, held in known if had == before.cycle)
            last_step = max(of_it, default=-1)
        restore, why = next_restore(
            {node: holdings.held for node, (_, holdings) in self._holdings.items()},
            ranks,
            lives,
            self._restore,
            last_step,
            [it for _, holdings in self._holdings.values() for it in holdings.refused],
            self.progress,
        )
        self._restore = restore
        self._lineage = cut(lives, None if restore is None else restore.snapshot)
        return Beginning(restore, self._lineage, self._every, why)

    def cost(
        self, costs: msg.SnapshotCosts, cycle: int, nodes: Iterable[str]
    ) -> msg.Cadence | None:
        """What snapshots cost one node; the cadence, when all nodes of the cycle have said it."""
        if costs.cycle != cycle or self._every:
            return None
        self._is_used = True
        self._costs[costs.node] = costs
        if not self._costs.keys() >= {*nodes}:
            return None
        self._every = max(it.every for it in self._costs.values())
        newest = max(it.step for it in self._costs.values())
        return msg.Cadence(cycle, self._every, newest + NOTICE_STEPS)
