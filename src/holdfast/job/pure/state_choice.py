"""The leader's part of snapshots: which one the next cycle begins from, and how often they come.

Pure. Launchers list with their Join the snapshots of their nodes; the Round names the one that all
ranks begin from (:mod:`holdfast.arena.pure.choice`). A leader that takes over knows the lineage
from the last Round, and the rest from the Joins that it gets itself: so nothing is decided twice or
forgotten. A job without snapshots has nothing of this in its messages.

A copy that a rank has found to be damaged refuses no snapshot of which another copy is there. The
round names those that other nodes still have, until they have voided them.

Where none is in memory, the ranks begin from one that an earlier job has left on disk
(:mod:`holdfast.arena.pure.file_choice`). It is given up as one in memory is, and also when the job
has got further: from then on the checkpoints of the job are newer (invariant T-5).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.arena.pure import trust
from holdfast.arena.pure.beginning import damaged_of, next_restore
from holdfast.arena.pure.file_choice import choose_file
from holdfast.arena.pure.kept_steps import kept_step
from holdfast.arena.pure.lineage import cut, last_life, names
from holdfast.arena.pure.snapshots import (
    OF_A_FILE,
    Ancestor,
    Beginning,
    DamagedCopy,
    Holdings,
    OnDisk,
    Restore,
    SnapshotId,
)
from holdfast.job.pure import membership as msg

NOTICE_STEPS = 8
"""A cadence holds so many steps after the newest that any rank had ended: all know it by then."""


@dataclass
class StateChoice:
    """Of one job.

    Attributes:
        progress: New steps after which a snapshot counts as one that leads on.
    """

    progress: int = trust.PROGRESS

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
    _given_up: set[str] = field(default_factory=set, init=False)
    """Names of snapshots on disk."""
    _origin: int = field(default=0, init=False)
    """Step of the one on disk that the job goes back to, or 0; steps after it are the job's own."""
    _damaged: set[DamagedCopy] = field(default_factory=set, init=False)
    """Of nodes that had sent them to others; ranks there could not use them."""
    _void_until: SnapshotId | None = field(default=None, init=False)
    """A rank has given up its snapshots up to this one: its node may be lost since."""
    _is_used: bool = field(default=False, init=False)
    """A rank of the job has used snapshots."""

    def inherit(self, formed: msg.Round) -> None:
        """Go on after the last round of another leader."""
        self._last = last_life(formed.term, formed.cycle)
        if (beginning := formed.beginning) is not None:
            self._is_used = True
            self._lineage, self._restore = beginning.lineage, beginning.restore
            self._every = beginning.every
            self._given_up.update(beginning.given_up)
            self._damaged.update(beginning.damaged)
            if beginning.restore is not None and beginning.restore.file:
                self._origin = beginning.restore.snapshot.step

    def joined(self, join: msg.Join) -> None:
        """The ranks of this node are gone, and it holds this."""
        had, _ = self._holdings.get(join.node, (-1, None))
        if join.have_cycle < had:
            return  # a late copy
        if join.holdings is None:
            self._holdings.pop(join.node, None)
            return
        self._is_used = True
        node, holdings = join.node, join.holdings
        self._holdings[node] = join.have_cycle, holdings
        self._every = max(self._every, holdings.every)
        before = Holdings(void_until=self._void_until)
        self._void_until = trust.void_until((before, holdings))
        here = {DamagedCopy(it.id, it.rank, node) for it in holdings.held}
        self._damaged = {it for it in self._damaged if it.node != node or it in here}
        refused = damaged_of({node: holdings.refused})
        self._damaged.update(it for it in refused if it.node != node)

    def lost(self, node: str) -> None:
        """The node is gone, and all that it held."""
        self._holdings.pop(node, None)
        self._costs.pop(node, None)

    def begin(
        self,
        cycle: int,
        term: int,
        places: Iterable[msg.CyclePlace],
        kept: SnapshotId | None = None,
        *,
        may_move: bool = False,
    ) -> Beginning | None:
        """The snapshot that this cycle begins from; None: the job uses no snapshots.

        ``kept``: the kept step, as far as this leader knows. ``may_move``: nodes send each other
        missing parts, and keep steps.
        """
        life = last_life(term, cycle)
        before, self._last = self._last, life
        self._costs.clear()
        if not self._is_used:
            return None
        lives = self._lineage if before is None else (*self._lineage, before)
        ranks = {it.node: range(it.rank_offset, it.rank_offset + it.nproc) for it in places}
        had_ranks = {
            node: holdings
            for node, (had, holdings) in self._holdings.items()
            if before is not None and had == before.cycle
        }
        last_step = max((it.last_step for it in had_ranks.values()), default=-1)
        everyone = {node: holdings for node, (_, holdings) in self._holdings.items()}
        held = {node: it.held for node, it in everyone.items()}
        refused = {node: it.refused for node, it in everyone.items()}
        restore, why = next_restore(
            *(held, ranks, lives, self._restore, last_step, refused, self.progress, self._damaged),
            void_until=self._void_until,
            had_ranks=had_ranks.keys(),
            may_move=may_move,
        )
        is_spent = trust.is_spent(self._restore, last_step, self.progress)
        reasons = [self._give_up(last_step, is_spent=is_spent), why]
        in_memory = None if restore is None else restore.snapshot
        if restore is None:
            on_disk = {node: holdings.files for node, (_, holdings) in self._holdings.items()}
            found = choose_file(on_disk, ranks, self._given_up)
            reasons.append(found.why)
            if found.file is not None:
                restore = self._from_disk(found.file, last_step)
            self._origin = 0 if restore is None else restore.snapshot.step
        self._restore, self._lineage = restore, cut(lives, in_memory)
        self._damaged = {it for it in self._damaged if names(self._lineage, it.snapshot)}
        why = next(filter(None, reasons), "")
        given_up = tuple(sorted(self._given_up))
        if may_move:
            bad = {*self._damaged, *damaged_of(refused)}
            kept = kept_step(everyone, had_ranks.keys(), kept, ranks, self._lineage, bad)
        beginning = Beginning(restore, self._lineage, self._every, why, given_up)
        damaged = tuple(sorted(self._damaged))
        return beginning.but(kept=kept if may_move else None, damaged=damaged)

    def _from_disk(self, file: OnDisk, last_step: int) -> Restore:
        snapshot = SnapshotId(OF_A_FILE, 0, file.step)
        last = self._restore if self._restore and self._restore.file == file.name else None
        times = trust.times(last, last_step, self.progress, snapshot)
        lost = last_step - file.step if last_step >= file.step else -1
        return Restore(snapshot, file.world_size, lost, times, file.name)

    def _give_up(self, last_step: int, *, is_spent: bool) -> str:
        """Give up snapshots on disk; why the one that the last life began from, for people."""
        known = [it for _, holdings in self._holdings.values() for it in holdings.files]
        passed = {
            it.name
            for it in known
            if self._void_until is not None  # how far that rank has got is not known
            or last_step - max(it.step, self._origin) >= self.progress
        }
        self._given_up.update(passed)
        last = self._restore
        if last is None or not last.file:
            return ""
        step = last.snapshot.step
        refused = (it for _, holdings in self._holdings.values() for it in holdings.refused)
        if (bad := next((it for it in refused if it.snapshot == last.snapshot), None)) is not None:
            self._given_up.add(last.file)
            return f"rank {bad.rank} could not use step {step} on disk: {bad.why}"
        if is_spent:
            self._given_up.add(last.file)
            return (
                f"two cycles from step {step} on disk made fewer than {self.progress} new steps "
                "each"
            )
        return ""

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
