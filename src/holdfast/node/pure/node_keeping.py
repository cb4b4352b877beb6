"""The node's part of kept steps: send the snapshots of its ranks to its peer, when they are there.

Pure. The leader's part: :mod:`holdfast.job.pure.keeping`. ::

    KeepStep(S, G) ──► ranks pin S and G; a look at their memory now and then
    a rank holds S ──► its snapshot is sent to the peer, with the name of G
    all are sent   ──► StepCopied
    one is past S  ──► StepMissed: it has not taken it

At the beginning of a cycle a node also sends the snapshots that others lack (``Restore.sources``),
again and again, until they have them or the cycle is over.

Invariant T-2: while a snapshot may be chosen, it is in no slot that is written. Ranks pin two steps
for that, the kept one and the one that is being kept; a peer has two slots for each rank, and the
transfer names the one that it must leave alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from holdfast.arena.pure.snapshots import SnapshotId
from holdfast.base.pure.value import Value
from holdfast.job.pure.member_messages import KeepStep, StepCopied, StepKept, StepMissed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_LOOK_S, _LOOK_S_MAX, _LOOK_SHARE = 0.02, 1.0, 0.1
"""From one look at the ranks' memory to the next, as a share of the time that the step has been
waited for."""
_AGAIN_S = 1.0


# ---------------------------------------------------------------- events
class RankSeen(Value):
    """The memory of a rank, as it is.

    Attributes:
        last_step: That it has ended; -1: none.
        snapshot: Its snapshot of the step that is to be kept; None: it has none.
        n_bytes: Of that.
        is_missed: It will not have one: it was past that step.
        gave_up: It takes none any more.
    """

    last_step: int
    snapshot: SnapshotId | None = None
    n_bytes: int = 0
    is_missed: bool = False
    gave_up: bool = False


class CopySent(Value):
    """Another node has a rank's snapshot."""

    rank: int
    snapshot: SnapshotId
    node: str


class CopyFailed(Value):
    """It has not, and why, for people."""

    rank: int
    snapshot: SnapshotId
    node: str
    why: str


# ---------------------------------------------------------------- effects
class PinSteps(Value):
    """Ranks of this node overwrite snapshots of neither of these steps; 0: none."""

    keep: int
    kept: int


class SendCopy(Value):
    """Send a rank's snapshot to a node, which must leave the kept step alone; 0: none is kept."""

    rank: int
    snapshot: SnapshotId
    node: str
    kept: int


Effect = PinSteps | SendCopy | StepCopied | StepMissed


@dataclass
class NodeKeeping:
    """Of one launcher."""

    kept: SnapshotId | None = field(default=None, init=False)
    """The kept step, as far as this node knows."""
    complete: SnapshotId | None = field(default=None, init=False)
    """The last step of which its peer has the snapshots of all of its ranks."""
    _cycle: int = field(default=-1, init=False)
    _ranks: frozenset[int] = field(default=frozenset(), init=False)
    _peer: str = field(default="", init=False)
    _problem: str = field(default="", init=False)
    """Why this node can keep no steps in this cycle; empty: it can."""
    _step: int | None = field(default=None, init=False)
    """As in :class:`.Keep`."""
    _asked_at: float = field(default=0.0, init=False)
    _look_at: float = field(default=math.inf, init=False)
    _sending: dict[int, tuple[SnapshotId, int]] = field(default_factory=dict, init=False)
    """By rank, the snapshot of that step, and its bytes."""
    _sent: set[int] = field(default_factory=set, init=False)
    _pushed: dict[tuple[int, str], SnapshotId] = field(default_factory=dict, init=False)
    """Snapshots that other nodes lack, by rank and node, until they have them."""
    _again_at: float = field(default=math.inf, init=False)
    _again: set[tuple[int, str]] = field(default_factory=set, init=False)

    @property
    def step(self) -> int:
        """That is to be kept, of which snapshots are looked for; 0: none is."""
        return self._step or 0

    def next_deadline(self) -> float:
        """When to call :meth:`look`, or :meth:`time_passed`."""
        return min(self._look_at, self._again_at)

    def begin(
        self,
        cycle: int,
        ranks: Iterable[int],
        peer: str,
        kept: SnapshotId | None,
        sends: Mapping[tuple[int, str], SnapshotId],
    ) -> list[Effect]:
        """A cycle begins.

        Args:
            cycle: Its number.
            ranks: Of this node.
            peer: The node that takes their snapshots; empty: no steps are kept.
            kept: The kept step.
            sends: Snapshots that other nodes lack, by rank and node.
        """
        self._cycle, self._ranks, self._peer = cycle, frozenset(ranks), peer
        self._problem = "" if peer else "this node has no peer"
        self.kept, self.complete = kept, None
        self._drop()
        self._pushed = {**sends}
        self._again_at, self._again = math.inf, set()
        return [self._pin(), *self._push(self._pushed)]

    def end(self) -> None:
        """The ranks are gone: nothing is sent any more."""
        self._drop()
        self._pushed, self._again_at = {}, math.inf

    def _drop(self) -> None:
        self._step, self._look_at = None, math.inf
        self._sending.clear()
        self._sent.clear()

    def _pin(self) -> PinSteps:
        return PinSteps(self._step or 0, self.kept.step if self.kept else 0)

    # ------------------------------------------------------------ kept steps
    def cannot(self, why: str) -> list[Effect]:
        """This node keeps no steps in this cycle."""
        self._problem = self._problem or why
        return [] if self._step is None else self._missed(self._problem, for_good=True)

    def keep(self, asked: KeepStep, now: float) -> list[Effect]:
        """The leader names a step that is to be kept, or asks how far the ranks are."""
        if asked.cycle != self._cycle:
            return []
        self._drop()
        self._step, self.kept, self._asked_at = asked.step, asked.kept, now
        if self._problem:
            return self._missed(self._problem, for_good=True)
        self._look_at = now
        return [self._pin()]

    def step_kept(self, kept: StepKept) -> list[Effect]:
        """All nodes have sent theirs."""
        if kept.cycle != self._cycle:
            return []
        self.kept = kept.snapshot
        if self._step == kept.snapshot.step:
            self._drop()
        return [self._pin()]

    def look(self, seen: Mapping[int, RankSeen], now: float) -> list[Effect]:
        """The memory of those ranks that have some, as it is now."""
        if self._step is None or now < self._look_at:
            return []
        wait_s = _LOOK_SHARE * (now - self._asked_at)
        self._look_at = now + min(max(_LOOK_S, wait_s), _LOOK_S_MAX)
        if not seen.keys() >= self._ranks:
            return []
        last_step = max(seen[rank].last_step for rank in self._ranks)
        for rank in sorted(self._ranks):
            if seen[rank].gave_up:
                why = f"rank {rank} takes none any more"
                return self._missed(why, last_step, gave_up=True)
        if self._step == 0:
            has_begun = all(seen[rank].last_step >= 0 for rank in self._ranks)
            return self._missed("", last_step) if has_begun else []
        effects: list[Effect] = []
        for rank in sorted(self._ranks - self._sending.keys()):
            found = seen[rank]
            if found.snapshot is not None:
                self._sending[rank] = found.snapshot, found.n_bytes
                effects.append(self._send(rank, found.snapshot, self._peer))
            elif found.is_missed:
                return [*effects, *self._missed("", last_step)]
        if self._sending.keys() == self._ranks:
            self._look_at = math.inf
        return effects

    def _missed(
        self, why: str, last_step: int = -1, *, for_good: bool = False, gave_up: bool = False
    ) -> list[Effect]:
        """The step stays pinned until the leader names another: others may have it."""
        assert self._step is not None
        keep = self._step
        self._drop()
        return [StepMissed(self._cycle, keep, last_step, why, for_good, gave_up)]

    def _send(self, rank: int, snapshot: SnapshotId, node: str) -> SendCopy:
        return SendCopy(rank, snapshot, node, self.kept.step if self.kept else 0)

    # ------------------------------------------------------------ copies
    def sent(self, copy: CopySent) -> list[Effect]:
        """A node has a snapshot."""
        if self._pushed.get((copy.rank, copy.node)) == copy.snapshot:
            del self._pushed[copy.rank, copy.node]
        if copy.node != self._peer or not self._is_of_this_step(copy.rank, copy.snapshot):
            return []
        self._sent.add(copy.rank)
        if self._sent != self._ranks:
            return []
        names = {snapshot for snapshot, _ in self._sending.values()}
        n_bytes = sum(n_bytes for _, n_bytes in self._sending.values())
        if len(names) > 1:  # a restart in place came between
            return self._missed("", copy.snapshot.step)
        self.complete = copy.snapshot
        self._drop()
        return [StepCopied(self._cycle, copy.snapshot, n_bytes)]

    def failed(self, copy: CopyFailed, now: float) -> list[Effect]:
        """A node could not be sent a snapshot: the leader names another step, later."""
        key = copy.rank, copy.node
        if self._pushed.get(key) == copy.snapshot:
            self._again.add(key)
            self._again_at = min(self._again_at, now + _AGAIN_S)
        elif copy.node == self._peer and self._is_of_this_step(copy.rank, copy.snapshot):
            return self._missed(f"rank {copy.rank} to {copy.node}: {copy.why}")
        return []

    def _is_of_this_step(self, rank: int, snapshot: SnapshotId) -> bool:
        return rank in self._sending and self._sending[rank][0] == snapshot

    def time_passed(self, now: float) -> list[Effect]:
        """Send once more the snapshots that other nodes did not get."""
        if now < self._again_at:
            return []
        again, self._again, self._again_at = self._again, set(), math.inf
        return self._push(again & self._pushed.keys())

    def _push(self, keys: Collection[tuple[int, str]]) -> list[Effect]:
        return [self._send(rank, self._pushed[rank, node], node) for rank, node in sorted(keys)]
