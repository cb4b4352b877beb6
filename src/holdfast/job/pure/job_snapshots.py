"""The snapshots of a job, for its leader: where a cycle begins, and which steps are kept at peers.

Pure. Times are seconds on the leader's clock. Two machines, each of which needs some of the other:
:mod:`.state_choice` takes the kept step into account, and says of which steps snapshots are taken;
:mod:`.keeping` names one of those. In a job where a node takes no snapshots, no step is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.arena.pure.snapshots import Beginning
from holdfast.base.pure.common_events import Note
from holdfast.job.pure import job_words as words
from holdfast.job.pure import membership as msg
from holdfast.job.pure.assign import NodeDesc
from holdfast.job.pure.keeping import Keeping, keepers
from holdfast.job.pure.leader_messages import Effect
from holdfast.job.pure.rules import Rules
from holdfast.job.pure.state_choice import StateChoice


@dataclass
class JobSnapshots:
    """Of one job, while this leader leads it."""

    rules: Rules

    _has_noted_keepers: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._choice = StateChoice(self.rules.snapshot_progress)
        self._keeping = Keeping(self.rules.snapshot_keep_s)

    @property
    def due_at(self) -> float:
        """When :meth:`time_passed` has something to do, while a cycle runs; infinity: never."""
        return self._keeping.due_at

    def inherit(self, formed: msg.Round) -> None:
        """Go on after the last round of another leader."""
        self._choice.inherit(formed)
        self._keeping.kept = formed.beginning.kept if formed.beginning is not None else None

    # ------------------------------------------------------------ launchers
    def joined(self, join: msg.Join) -> None:
        """The ranks of this node are gone; it says which snapshots it has."""
        self._choice.joined(join)

    def lost(self, node: str) -> None:
        """The node is gone, and all that it held."""
        self._choice.lost(node)

    # ------------------------------------------------------------ cycles
    def choose(
        self,
        cycle: int,
        term: int,
        places: Iterable[msg.CyclePlace],
        nodes: Sequence[NodeDesc],
        now: float,
    ) -> tuple[Beginning | None, tuple[msg.Keeper, ...], list[Note]]:
        """For the round of the next cycle. ``nodes``: those of its places, in order.

        None: the job uses no snapshots. No keepers: no step is kept.
        """
        parts, notes = self._keepers(nodes)
        kept, may_move = self._keeping.kept, bool(parts)
        beginning = self._choice.begin(cycle, term, places, kept, may_move=may_move)
        return self._keeping.with_age(beginning, now), parts, notes

    def _keepers(self, nodes: Sequence[NodeDesc]) -> tuple[tuple[msg.Keeper, ...], list[Note]]:
        if not self.rules.snapshot_keep_s:
            return (), []
        parts = keepers(nodes)
        if parts or self._has_noted_keepers:
            return parts, []
        self._has_noted_keepers = True
        return (), [Note("warning", words.no_keepers(nodes))]

    def begin(self, formed: msg.Round, now: float) -> None:
        """The cycle begins."""
        self._keeping.begin(formed, now)

    def on_message(
        self,
        message: msg.SnapshotCosts | msg.Missed | msg.Complete,
        cycle: int,
        nodes: Iterable[str],
        now: float,
    ) -> Sequence[Effect]:
        """A node of the cycle that runs reports; ``nodes``: all of them."""
        match message:
            case msg.Missed():
                return self._keeping.missed(message, now)
            case msg.Complete():
                return self._keeping.complete(message, now)
            case msg.SnapshotCosts():
                cadence = self._choice.cost(message, cycle, nodes)
                if cadence is None:
                    return []
                self._keeping.set_cadence(cadence.every)
                return [cadence]

    def time_passed(self, now: float) -> Sequence[Effect]:
        """Ask for the next kept step, if it is time to."""
        return self._keeping.time_passed(now)

    def stop(self) -> None:
        """The cycle is over."""
        self._keeping.stop()
