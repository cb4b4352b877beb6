"""The leader's part of kept steps: which step all nodes send to their peers, and when. Pure.

A kept step is there for the loss of a node (:mod:`holdfast.arena.pure.kept_steps`). ::

    leader ──► Keep(0)       how far are you?          Missed(step) ──► leader
    leader ──► Keep(S, G)    ranks keep S when they    Complete(S) ───► leader, of each node
                             take it, and G
    leader ──► Kept(S)       S is the kept step, and G may be overwritten

Each decision names the step that is kept already: so a launcher that has lost one of them lets no
rank and no peer overwrite it. A node whose ranks were past S before they knew of it says so, and
the leader names a later one. Nothing waits for a kept step, and none is abandoned because it takes
long: a node that is slow has that reported by its monitors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.arena.pure.peers import peers
from holdfast.arena.pure.snapshots import Beginning, SnapshotId
from holdfast.base.pure.common_events import Note
from holdfast.job.pure import membership as msg

_MARGIN, _MARGIN_MAX = 2, 1000
"""Steps that ranks may do until they know which one is kept."""


def keepers(nodes: Sequence[msg.Descriptor]) -> tuple[msg.Keeper, ...]:
    """The part of each node, by group rank; none where one of them takes no snapshots."""
    if not all(it.keeps for it in nodes):
        return ()
    of_each = peers([it.domain for it in nodes])
    return tuple(msg.Keeper(it.keeps, peer) for it, peer in zip(nodes, of_each, strict=False))


@dataclass
class Keeping:
    """Of one job, while this leader leads it.

    Attributes:
        period_s: From one kept step to the next (``--ft-snapshot-keep``); 0: none is kept.
    """

    period_s: float

    kept: SnapshotId | None = field(default=None, init=False)
    """The kept step."""
    _kept_at: float | None = field(default=None, init=False)
    """When it was named; None: by another leader."""
    due_at: float = field(default=math.inf, init=False)
    """When the next one is asked for."""
    _cycle: int = field(default=-1, init=False)
    _nodes: frozenset[str] = field(default=frozenset(), init=False)
    """Of the cycle."""
    _safe_with: frozenset[str] = field(default=frozenset(), init=False)
    """The nodes that had ranks when the last step was kept."""
    _step: int | None = field(default=None, init=False)
    """That is being kept; 0: the ranks are asked how far they are; None: none is."""
    _asked_at: float = field(default=0.0, init=False)
    _named_at: float = field(default=0.0, init=False)
    """When the leader asked, and when it named the step."""
    _margin: int = field(default=_MARGIN, init=False)
    _every: int = field(default=0, init=False)
    _complete: dict[str, msg.Complete] = field(default_factory=dict, init=False)
    _has_warned: bool = field(default=False, init=False)

    def with_age(self, beginning: Beginning | None, now: float) -> Beginning | None:
        """Of the kept step, for launchers that join later; where it is known."""
        if beginning is None or beginning.kept != self.kept or self._kept_at is None:
            return beginning
        return beginning.but(kept_age_s=now - self._kept_at)

    def begin(self, formed: msg.Round, now: float) -> None:
        """A cycle begins. If its nodes are others than before, the next step is kept at once.

        The lost nodes had snapshots of their peers' ranks.
        """
        beginning = formed.beginning
        self._cycle, self._step = formed.cycle, None
        self._nodes = frozenset(place.node for place in formed.places)
        kept = None if beginning is None else beginning.kept
        self._kept_at = self._kept_at if kept == self.kept else None
        self.kept = kept
        self._every = 0 if beginning is None else beginning.every
        is_safe = self.kept is not None and self._nodes == self._safe_with
        self.due_at = math.inf
        if formed.keepers:
            self.due_at = max(now, self._asked_at + self.period_s) if is_safe else now

    def set_cadence(self, every: int) -> None:
        """Snapshots are taken of steps that this divides."""
        self._every = every

    def time_passed(self, now: float) -> list[msg.Keep]:
        """Ask for the next one, if it is time to."""
        if now < self.due_at:
            return []
        self.due_at, self._asked_at = math.inf, now
        return [self._ask(0)]

    def _ask(self, step: int) -> msg.Keep:
        self._step = step
        self._complete.clear()
        return msg.Keep(self._cycle, step, self.kept)

    def _ask_beyond(self, newest: int) -> msg.Keep:
        every = max(1, self._every)
        return self._ask(-(-(newest + self._margin) // every) * every)

    def missed(self, missed: msg.Missed, now: float) -> list[msg.Keep | Note]:
        """A node cannot keep the step: a later one is named, now or when the period is over."""
        step = self._step
        if missed.cycle != self._cycle or step is None or missed.keep != step:
            return []  # of another step
        if missed.for_good or missed.why:
            self._step = None
            self.due_at = math.inf if missed.for_good else now + self.period_s
            return [*(self._forget() if missed.gave_up else ()), *self._warn(missed)]
        if step:
            more = max(0, missed.step - step) + 1
            self._margin = min(self._margin + more, _MARGIN_MAX)
        self._named_at = now
        return [self._ask_beyond(missed.step)]

    def _forget(self) -> list[msg.Keep]:
        """No step is kept: ranks overwrite theirs, and copies at their nodes count no more.

        So no cycle begins from it if the node is lost whose rank has given it up.
        """
        has_one, self.kept, self._kept_at = self.kept is not None, None, None
        return [msg.Keep(self._cycle, 0)] if has_one else []

    def _warn(self, missed: msg.Missed) -> list[msg.Keep | Note]:
        if self._has_warned and not missed.for_good:
            return []
        self._has_warned = True
        instead = f"the last kept step is {self.kept.step}" if self.kept else "no step is kept"
        when = "" if missed.for_good else f". Next try in {self.period_s:g} s"
        return [Note("warning", f"no snapshots at peers: {missed.why}; {instead}{when}")]

    def complete(self, complete: msg.Complete, now: float) -> list[msg.Keep | msg.Kept]:
        """The peer of one node has it: when all have, it is the kept step."""
        snapshot = complete.snapshot
        if complete.cycle != self._cycle or not self._step or snapshot.step != self._step:
            return []  # of another step
        self._complete[complete.node] = complete
        if not self._complete.keys() >= self._nodes:
            return []
        if len({it.snapshot for it in self._complete.values()}) > 1:
            # A restart in place came between: the step was computed twice.
            return [self._ask(0)]
        self.kept, self._kept_at, self._step = snapshot, self._named_at, None
        self._safe_with, self._has_warned = self._nodes, False
        self._margin = max(_MARGIN, self._margin // 2)
        self.due_at = max(now, self._asked_at + self.period_s)
        n_bytes = sum(it.n_bytes for it in self._complete.values())
        return [msg.Kept(self._cycle, snapshot, n_bytes, now - self._named_at)]

    def stop(self) -> None:
        """The cycle is over."""
        self._step, self.due_at = None, math.inf
