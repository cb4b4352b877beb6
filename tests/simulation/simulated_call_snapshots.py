"""Snapshots of the ranks of a simulated call, and what must hold of them.

Each rank does steps while it works; the step's collective keeps it from being more than one ahead
of the others. It writes into its own memory, as long as it lives; its guard keeps that afterwards.
A state is an object with its history, so two states of one name can be told apart.

- T-1: all ranks of an epoch begin from one state, or all from none.
- The state that they begin from is the newest that they all have on their nodes, and is of their
  history.
- T-2: as long as no rank is lost or moved, an epoch begins from a step that is at most one older
  than the newest of any rank.
- No third epoch in a row begins from a state from which two made fewer than ``PROGRESS`` new steps,
  as long as no guard is lost.

Where launchers end the ranks at some moment, and the leader chooses for the next cycle:

- T-1: it chooses one state, whole, of the history of the last epoch. If that began from none, and
  has made fewer than ``PROGRESS`` steps, the state may be of the epoch before.
- That state is not lost: it is the newest that all had when the epoch began from none.
- One that a rank refused or that led nowhere is not chosen, nor any that was computed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from holdfast.arena.pure.beginning import next_restore
from holdfast.arena.pure.lineage import last_life
from holdfast.arena.pure.slots import next_slot
from holdfast.arena.pure.snapshots import Ancestor, Held, Restore, SnapshotId
from holdfast.arena.pure.trust import LIVES, PROGRESS
from holdfast.inplace.pure.guard_snapshots import FoundSnapshot

N_SLOTS = 2
CYCLE = 1


@dataclass(eq=False)
class State:
    """After ``step`` steps; the epoch ``life`` has computed the last of them."""

    before: State | None
    life: int
    step: int

    def goes_back_to(self, other: State) -> bool:
        """Whether it was computed from that one, or is it."""
        state: State | None = self
        while state is not None and state is not other:
            state = state.before
        return state is not None


@dataclass
class Slot:
    """Of one rank's memory."""

    held: Held | None = None
    state: State | None = None


@dataclass
class Memory:
    """Of one process, whoever keeps it."""

    path: str
    slots: list[Slot] = field(default_factory=lambda: [Slot() for _ in range(N_SLOTS)])
    last_step: int = -1
    to_prove: int | None = None

    def proves(self) -> bool:
        """At the end of a step: as the rank does, before it takes a snapshot."""
        if self.to_prove is None:
            return True
        self.to_prove -= 1
        if self.to_prove > 0:
            return False
        self.to_prove = None
        self.void(None)
        return True

    def found(self) -> list[FoundSnapshot]:
        """The snapshots in it."""
        return [
            FoundSnapshot(slot.held, self.path, index)
            for index, slot in enumerate(self.slots)
            if slot.held is not None
        ]

    def void(self, but_until: SnapshotId | None) -> None:
        """As the guard does."""
        for slot in self.slots:
            if slot.held is not None and (but_until is None or slot.held.id > but_until):
                slot.held = None

    def begin(self) -> Slot:
        """The slot to write, void from now on."""
        held = {i: slot.held.id for i, slot in enumerate(self.slots) if slot.held is not None}
        index = next_slot(range(N_SLOTS), held)
        assert index is not None
        self.slots[index].held = None
        return self.slots[index]


class Epochs:
    """What the epochs of a call begin from; ``fail`` raises a violation.

    ``began``: the step that its cycle began from, or 0; ``keeps_guards``: none of them is lost.
    """

    def __init__(
        self, fail: Callable[[str], NoReturn], ranks: int, began: int, *, keeps_guards: bool
    ) -> None:
        self._fail = fail
        self._keeps_guards = keeps_guards
        self._ranks = ranks
        self._worlds: dict[int, int] = {}
        self.cycle_began = Restore(SnapshotId(CYCLE - 1, 0, began), ranks) if began else None
        self.cycle_state = State(None, -1, began)
        self._starts: dict[int, State | None] = {}
        self._states: dict[tuple[int, int], State] = {}
        self.done: dict[int, dict[int, int]] = {}
        """By epoch and place: the last step that a rank has ended and copied."""
        self._ended: dict[int, int] = {}
        """By epoch: the last step that a rank has ended."""
        self.restored = 0
        self._refused: dict[int, list[State]] = {}
        self._spent: dict[int, State] = {}
        self._given_up: list[State] = []
        """Of which guards know."""
        self._left: tuple[int, State] | None = None
        """From this epoch on all begin from none; before it, all had that state."""
        self.went_back = 0
        """Choices of a state from before an epoch that began from none."""

    def refuses(self, epoch: int, slot: Slot | None) -> None:
        """A rank cannot use it."""
        assert slot is not None
        assert slot.state is not None
        self._refused.setdefault(epoch, []).append(slot.state)

    def spends(self, epoch: int) -> None:
        """The coordinator gives up the state that the last epoch began from."""
        last = max((it for it in self._starts if it < epoch), default=None)
        if last is not None and (state := self._starts[last]) is not None:
            self._spent[epoch] = state

    def begins_from_none(self, epoch: int, common: State | None, *, is_spent: bool) -> None:
        """The coordinator says so; ``common``: the newest that all ranks of the cycle have."""
        last = max(self._starts, default=None)
        if last is None or is_spent or any(self._refused.values()):
            self._left = None
            return
        start, done = self._starts[last], self.done[last]
        if start is None and self._left is not None and self._ended.get(last, 0) < PROGRESS:
            return  # the second time
        n_ranks = len(done)
        self._left = None if common is None or n_ranks < self._ranks else (epoch, common)
        newest = max(done.values())
        # One that began from none takes no snapshot before it has made progress.
        first = start.step if start is not None else PROGRESS if last > 0 else 0
        is_full = n_ranks == self._ranks and min(done.values()) > first
        if is_full and self._keeps_guards and (common is None or common.step < newest - 1):
            self._fail(f"T-2: epoch {last} has ended step {newest}, and all have {common}")

    def check_next_cycle(self, memories: Mapping[str, Sequence[tuple[int, Memory | None]]]) -> None:
        """Launchers have ended all ranks; by node, its ranks and their memory."""
        own = [memory for its in memories.values() for _, memory in its if memory is not None]
        held = {
            node: [it.held for _, memory in its if memory is not None for it in memory.found()]
            for node, its in memories.items()
        }
        began = self.cycle_began
        lineage = [last_life(0, CYCLE)]
        if began is not None:
            lineage.insert(0, Ancestor(0, CYCLE - 1, 0, began.snapshot.step))
        steps = [it.step for its in held.values() for it in its if it.cycle == CYCLE]
        last_step = max((-1, *steps, *(memory.last_step for memory in own)))
        places = {node: [rank for rank, _ in its] for node, its in memories.items()}
        restore, _ = next_restore(held, places, lineage, began, last_step, {}, PROGRESS)
        state = None
        if restore is not None:
            found = [
                slot.state
                for memory in own
                for slot in memory.slots
                if slot.held is not None and slot.held.id == restore.snapshot
            ]
            state = found[0]
            if len(found) != self._ranks or any(it is not state for it in found):
                self._fail(f"T-1: ranks of the next cycle begin from different states: {restore}")
            assert state is not None
            self._check_may_go_back(state)
        self._check_left(state)

    def _check_may_go_back(self, state: State) -> None:
        if any(state.goes_back_to(bad) for bad in self._given_up):
            self._fail(f"the next cycle begins from {_named(state)}, which was given up")
        for epoch in sorted(self._starts, reverse=True):
            start = self._starts[epoch]
            if state.life == epoch or (start is not None and start.goes_back_to(state)):
                return
            if start is not None or self._ended.get(epoch, 0) >= PROGRESS:
                self._fail(f"the next cycle goes back to {_named(state)}, behind epoch {epoch}")
        if state is not self.cycle_state:
            self._fail(f"the next cycle begins from {_named(state)}, of no epoch")

    def _check_left(self, state: State | None) -> None:
        if self._left is None:
            return
        since, left = self._left
        after = [it for it in self._starts if it >= since]
        has_new = any(
            self._starts[it] is not None or self._ended.get(it, 0) >= PROGRESS for it in after
        )
        if has_new:
            return
        self.went_back += 1
        if state is None or not state.goes_back_to(left):
            self._fail(f"the next cycle begins from {_named(state)}, all had {_named(left)}")

    def begins(self, epoch: int, place: int, world: int, slot: Slot | None, name: object) -> int:
        """A rank begins; returns its step."""
        state = None if slot is None else slot.state
        if slot is not None:
            self.restored += 1
            held = slot.held
            if held is None or held.id != name:
                self._fail(f"T-2: place {place} of epoch {epoch} finds {held} for {name}")
            if (held.rank, held.world_size) != (place, world):
                self._fail(f"place {place} of {world} in epoch {epoch} begins from {held}")
        self._check_history(epoch, state)
        if epoch not in self._starts:
            self._check_trust(epoch, state)
            for earlier in [it for it in self._refused if it < epoch]:
                self._given_up += self._refused.pop(earlier)
            if self._keeps_guards and (spent := self._spent.get(epoch)) is not None:
                self._given_up.append(spent)
        self._worlds[epoch] = world
        start = self._starts.setdefault(epoch, state)
        if start is not state:
            self._fail(
                f"T-1: place {place} of epoch {epoch} begins from {_named(state)}, others from "
                f"{_named(start)}"
            )
        step = 0 if state is None else state.step
        self.done.setdefault(epoch, {})[place] = step
        return step

    def _check_trust(self, epoch: int, state: State | None) -> None:
        failed = 0
        for before in sorted(self._starts, reverse=True):
            if state is None or self._starts[before] is not state:
                break
            done = self.done[before]
            if max(done.values()) + 1 >= state.step + PROGRESS:
                break
            failed += len(done) == self._worlds[before]
        if failed >= LIVES and self._keeps_guards:
            self._fail(f"epoch {epoch} begins from {_named(state)}, as {failed} did that failed")

    def _check_history(self, epoch: int, state: State | None) -> None:
        """A state that was given up does not come back."""
        last = max((it for it in self._starts if it < epoch), default=None)
        if last is None or state is None or state.life == last:
            return
        before = self._starts[last]
        while before is not None and before is not state:
            before = before.before
        if before is None:
            self._fail(f"epoch {epoch} begins from {_named(state)}, which epoch {last} left behind")

    def state(self, epoch: int, step: int) -> State:
        """After a step of an epoch, which a rank has ended."""
        self._ended[epoch] = max(step, self._ended.get(epoch, 0))
        if (epoch, step) not in self._states:
            start = self._starts[epoch]
            first = 0 if start is None else start.step
            before = start if step == first + 1 else self._states.get((epoch, step - 1))
            self._states[epoch, step] = State(before, epoch, step)
        return self._states[epoch, step]

    def may_step(self, epoch: int, place: int, n_active: int) -> bool:
        """The collective of the step before is over."""
        done = self.done[epoch]
        return len(done) == n_active and min(done.values()) >= done[place]


def _named(state: State | None) -> str:
    return "none" if state is None else f"step {state.step} of epoch {state.life}"
