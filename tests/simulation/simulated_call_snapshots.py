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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from holdfast.arena.pure.slots import next_slot
from holdfast.arena.pure.snapshots import Held, Restore, SnapshotId
from holdfast.arena.pure.trust import LIVES, PROGRESS
from holdfast.inplace.pure.guard import FoundSnapshot

N_SLOTS = 2
CYCLE = 1


@dataclass(eq=False)
class State:
    """After ``step`` steps; the epoch ``life`` has computed the last of them."""

    before: State | None
    life: int
    step: int


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
        self._worlds: dict[int, int] = {}
        self.cycle_began = Restore(SnapshotId(CYCLE - 1, 0, began), ranks) if began else None
        self.cycle_state = State(None, -1, began)
        self._starts: dict[int, State | None] = {}
        self._states: dict[tuple[int, int], State] = {}
        self.done: dict[int, dict[int, int]] = {}
        """By epoch and place: the last step that a rank has ended and copied."""
        self.restored = 0

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
        """After a step of an epoch."""
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
