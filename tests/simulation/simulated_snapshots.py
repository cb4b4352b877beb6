"""Ranks of a simulated job that train, and keep snapshots in the memory of their launchers.

A step ends on all ranks or on none: it has a collective. Then each copies its state into a slot,
which takes it a while, and can be killed in the middle. A rank may be in the copy of a step while
another has ended the next one. What a slot holds is a :class:`State`, which knows the one that it
was computed from: so the truth is known, whatever the names say.

:class:`SnapshotPromises`:

- T-1: all ranks of a life begin from one state, or from none.
- That is of the history of the last life, was committed by all, and refused by none.
- It is never older than the newest of those, but for one that has led nowhere. A part counts where
  any node of the cycle has a copy of it that was not found to be damaged.
- No copy that was found to be damaged is begun from again.
- Nor a state of which a rank has given up its part, or an older one, once a node has said so.
- When ranks start, their node holds nothing outside of their history.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.arena.pure import lineage
from holdfast.arena.pure.kept_steps import replicas_in_use
from holdfast.arena.pure.slots import next_slot
from holdfast.arena.pure.snapshots import Beginning, Held, Holdings, Refused, SnapshotId
from holdfast.job.pure.member_messages import SnapshotsMeasured
from holdfast.job.pure.membership import CyclePlace, Decision, Kept, Round
from holdfast.job.pure.succession_messages import Leads
from tests.simulation.simulated_kept_steps import KeptPromises, ranks_of

if TYPE_CHECKING:
    from holdfast.testing.clock import VirtualClock
    from tests.simulation.scenario import Scenario
    from tests.simulation.simulated_node import SimulatedNode

N_SLOTS, REPLICA_SLOTS = 2, 2
_STEPS = 12
"""In a cycle that nothing ends, about."""
_BAD, _UNFIT, GOES_BAD = 0.03, 0.01, 0.03
"""Of all snapshots, those whose bytes are wrong before they are copied, those that no rank can use,
and copies that go bad before they are used."""
GIVES_UP = 0.0
"""Of all steps, those from which on a rank takes none in that life."""
_SKIPPED = 0.03
"""Of all steps where some are kept, those of which a rank takes none."""
_MEASURED_STEPS = 3
Life = tuple[int, int]
"""Term and cycle."""


@dataclass(eq=False)
class State:
    """Of the training, after a step; of all ranks."""

    before: State | None
    life: Life
    step: int
    is_unfit: bool = False

    def goes_back_to(self, other: State) -> bool:
        """Whether it was computed from that one, or is it."""
        state: State | None = self
        while state is not None and state.step >= other.step:
            if state is other:
                return True
            state = state.before
        return False


@dataclass
class Slot:
    """``held`` None: it is being written, or void."""

    held: Held | None = None
    state: State | None = None
    is_bad: bool = False
    """Its bytes are not those of the state."""
    found_by: str = ""
    """The node whose rank has found that."""
    writer: object = None
    """The transfer that writes it."""
    is_late: bool = False
    """It has come when the node had joined already, so the leader does not know of it."""


@dataclass
class SimulatedArenas:
    """What the ranks of a node write into; the launcher's part of it as in production."""

    slots: dict[int, list[Slot]] = field(default_factory=dict)
    """By global rank."""
    terms: dict[int, int] = field(default_factory=dict)
    every: int = 0
    from_step: int = 0
    last_step: int = -1
    refused: list[Refused] = field(default_factory=list)
    n_slots: int = N_SLOTS
    replicas: dict[int, list[Slot]] = field(default_factory=dict)
    """Of ranks of other nodes."""
    keep: int = 0
    kept: int = 0
    moved: dict[int, str] = field(default_factory=dict)
    """By rank of this node, the node that sends the snapshot that it begins from;"""
    awaited: dict[int, SnapshotId] = field(default_factory=dict)
    """that snapshot, until it is here."""
    is_listed: bool = False
    """The leader has a list of what is here, or is about to."""
    void_until: SnapshotId | None = None
    gave_up: set[int] = field(default_factory=set)
    """The ranks that take none in this life."""

    def begin(self, formed: Round, place: CyclePlace) -> None:
        """Ranks are about to start."""
        beginning = formed.beginning or Beginning()
        self.terms[formed.cycle] = formed.term
        self.every, self.from_step, self.last_step = beginning.every, 0, -1
        self.void_damaged(beginning, place.node)
        self.refused.clear()
        self.gave_up.clear()
        if self.void_until is not None and self.void_until.cycle >= formed.cycle:
            self.void_until = None
        self.void(beginning)
        ranks = range(place.rank_offset, place.rank_offset + place.nproc)
        restore = beginning.restore
        sources = restore.sources if restore is not None else ()
        self.moved = {it.rank: it.node for it in sources if it.rank in ranks}
        self.awaited = {rank: restore.snapshot for rank in self.moved if restore is not None}
        kept = {rank: self.slots[rank] for rank in ranks if rank in self.slots}
        free = [slots for rank, slots in self.slots.items() if rank not in kept]
        if formed.keepers:
            others = {rank: slots for rank, slots in self.slots.items() if rank not in kept}
            for rank, slots in others.items():
                self.replicas[rank] = [*slots, *self.replicas.get(rank, ())]
            free = []
        for rank in ranks:
            if rank not in kept and rank in self.replicas:
                kept[rank] = self.replicas.pop(rank)
                kept[rank] += [Slot() for _ in range(self.n_slots - len(kept[rank]))]
            elif rank not in kept:
                kept[rank] = free.pop() if free else [Slot() for _ in range(self.n_slots)]
        self.slots, self.is_listed = kept, False
        for slot in self.all_slots():
            slot.is_late = False

    def all_slots(self) -> list[Slot]:
        """Of its own ranks and of others."""
        both = [*self.slots.values(), *self.replicas.values()]
        return [slot for slots in both for slot in slots]

    def void(self, beginning: Beginning) -> None:
        for slot in self.all_slots():
            slot.writer = None
            if slot.held is not None and not lineage.belongs(slot.held, beginning.lineage):
                slot.held = None

    def void_damaged(self, beginning: Beginning, node: str) -> None:
        damaged = {(it.snapshot, it.rank) for it in self.refused if it.is_damaged}
        damaged |= {(it.snapshot, it.rank) for it in beginning.damaged if it.node == node}
        for slot in self.all_slots():
            if slot.held is not None and (slot.held.id, slot.held.rank) in damaged:
                slot.held = None

    def give_up(self, rank: int, cycle: int) -> None:
        """A rank takes none any more, and those that it has are void."""
        self.void_until = SnapshotId(cycle, 0, lineage.ANY)
        self.gave_up.add(rank)
        for slot in self.slots[rank]:
            slot.held = None

    def holdings(self) -> Holdings:
        """When the ranks are gone."""
        self.is_listed = True
        held = [
            slot.held for slots in self.slots.values() for slot in slots if slot.held is not None
        ]
        held += [slot.held for slot in self.replicas_in_use() if slot.held is not None]
        about = self.last_step, tuple(self.refused), self.every
        return Holdings(tuple(held), *about, void_until=self.void_until)

    def replicas_in_use(self) -> list[Slot]:
        """Those of snapshots that its own ranks have, too."""
        own = [
            {it.held.id for it in slots if it.held is not None}
            | {name for awaiting, name in self.awaited.items() if awaiting == rank}
            for rank, slots in self.slots.items()
        ]
        slots = [it for its in self.replicas.values() for it in its if it.held is not None]
        used = {*replicas_in_use(own, [it.held for it in slots if it.held is not None])}
        return [it for it in slots if it.held in used]

    def slot_to_write(self, rank: int) -> Slot | None:
        """For the next snapshot of a rank."""
        slots = self.slots[rank]
        held = {k: it.held.id for k, it in enumerate(slots) if it.held is not None}
        pinned = [k for k, name in held.items() if name.step in (self.keep, self.kept)]
        index = next_slot(range(len(slots)), held, pinned)
        return None if index is None else slots[index]

    def replica(self, rank: int) -> list[Slot]:
        """Of a rank of another node."""
        slots = self.replicas.setdefault(rank, [])
        slots += [Slot() for _ in range(REPLICA_SLOTS - len(slots))]
        return slots

    def restored(self, rank: int, name: SnapshotId) -> Slot | None:
        """The slot of a rank that holds this."""
        for slot in [*self.slots.get(rank, []), *self.replicas.get(rank, [])]:
            if slot.held is not None and slot.held.id == name and slot.held.rank == rank:
                return slot
        return None

    def takes(self, step: int) -> bool:
        """Whether there is a snapshot of this step."""
        return not self.every or step < self.from_step or step % self.every == 0


class World(Protocol):
    """What the training needs of the simulation."""

    clock: VirtualClock
    scenario: Scenario

    def check(self, holds: bool, otherwise: str) -> None:
        """Raise a violation if it does not hold."""

    def fail_ranks(self, one: SimulatedNode, cycle: int) -> None:
        """A rank of this cycle raises."""


@dataclass
class Training:
    """Of one life."""

    formed: Round
    start: State | None
    nodes: dict[str, SimulatedNode] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    """By rank, the last step that it has ended and copied."""
    states: dict[int, State] = field(default_factory=dict)
    copying: set[int] = field(default_factory=set)
    has_measured: set[str] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)
    """Ranks whose snapshots are on their way."""
    has_begun: bool = False

    def __post_init__(self) -> None:
        places = self.formed.places
        self.owners = [(place.node, local) for place in places for local in range(place.nproc)]
        """By rank: its node, and its number there."""

    @property
    def first(self) -> int:
        """The step that it begins from."""
        return 0 if self.start is None else self.start.step

    def state(self, step: int) -> State:
        """After this step."""
        if step not in self.states:
            before = self.start if step == self.first + 1 else self.states.get(step - 1)
            life = self.formed.term, self.formed.cycle
            self.states[step] = State(before, life, step)
        return self.states[step]


class Trainings:
    """Of all lives of a job."""

    def __init__(self, world: World, promises: SnapshotPromises, seed: int) -> None:
        self._world = world
        self._promises = promises
        self._rng = random.Random(seed ^ 0x5EED)
        self._damage = random.Random(seed ^ 0xBAD)
        self._ends = random.Random(seed ^ 0xE4D)
        self._trainings: dict[Life, Training] = {}

    def start(self, one: SimulatedNode, formed: Round) -> None:
        """The ranks of a node start; when all have, they train."""
        life = formed.term, formed.cycle
        known = self._trainings.get(life)
        if known is None:
            known = Training(formed, self._promises.start_of(life))
            self._trainings[life] = known
        place = formed.place_of(one.name)
        assert place is not None
        self._promises.check_void(one, formed)
        known.nodes[one.name] = one
        restore = formed.beginning.restore if formed.beginning is not None else None
        moved = {it.rank for it in restore.sources} if restore is not None else set()
        for rank in range(place.rank_offset, place.rank_offset + place.nproc):
            known.awaited |= {rank} & moved
            if rank not in moved:
                self._restore(one, formed, rank)
        self._begin_if_ready(known)

    def _restore(self, one: SimulatedNode, formed: Round, rank: int) -> None:
        goes_bad = self._damage.random() < GOES_BAD
        if not self._promises.check_start(one, formed, rank, goes_bad=goes_bad):
            self._world.clock.call_in(0.01, partial(self._world.fail_ranks, one, formed.cycle))

    def arrived(self, one: SimulatedNode, rank: int) -> None:
        """A snapshot of a rank, at a node that may have that rank."""
        for training in self._trainings.values():
            formed = training.formed
            is_its = one.running == formed.cycle and training.nodes.get(one.name) is one
            place = formed.place_of(one.name)
            is_awaited = is_its and rank in training.awaited
            if is_awaited and place is not None and rank in ranks_of(place):
                training.awaited.discard(rank)
                assert one.arenas is not None
                one.arenas.awaited.pop(rank, None)
                self._restore(one, formed, rank)
                self._begin_if_ready(training)

    def _begin_if_ready(self, known: Training) -> None:
        if len(known.nodes) < len(known.formed.places) or known.awaited or known.has_begun:
            return
        known.has_begun = True
        for rank in range(known.formed.world_size):
            known.done[rank] = known.first
            self._soon(partial(self._end_step, known, rank))

    def _soon(self, call: Callable[[], None], share: float = 1.0) -> None:
        step_s = self._world.scenario.work_s / _STEPS
        self._world.clock.call_in(step_s * share * self._rng.uniform(0.3, 1.2), call)

    def _node_of(self, training: Training, rank: int) -> tuple[SimulatedNode, int] | None:
        """Of a rank that lives, and its local rank."""
        node, local_rank = training.owners[rank]
        one = training.nodes[node]
        lives = one.running == training.formed.cycle and local_rank in one.ranks
        return (one, local_rank) if lives else None

    def _end_step(self, training: Training, rank: int) -> None:
        """Unless the collective of the step waits for another."""
        own = self._node_of(training, rank)
        if own is None:
            return
        one, _ = own
        everyone = [self._node_of(training, it) for it in training.done]
        if any(it is None for it in everyone):
            return  # its ranks are going to be stopped
        step = training.done[rank] + 1
        behind = min(training.done.values()) < step - 1
        asleep = any(it is not None and it[0].clock.is_asleep for it in everyone)
        if behind or asleep:
            self._soon(partial(self._end_step, training, rank), 0.2)
            return
        assert one.arenas is not None
        is_new = step not in training.states
        state = training.state(step)
        if is_new:
            state.is_unfit = self._damage.random() < _UNFIT
        one.arenas.last_step = max(one.arenas.last_step, step)
        if self._ends.random() < GIVES_UP and rank not in one.arenas.gave_up:
            one.arenas.give_up(rank, training.formed.cycle)
            self._promises.note_given_up(training.formed)
        if rank in one.arenas.gave_up or not one.arenas.takes(step):
            self._copied(training, rank, step, None)
            return
        slot = one.arenas.slot_to_write(rank)
        is_kept = one.keeping is not None
        if slot is None or (is_kept and self._rng.random() < _SKIPPED):
            self._copied(training, rank, step, None)
            return
        self._promises.kept.check_write(slot)
        slot.held, slot.state = None, state
        self._soon(partial(self._copied, training, rank, step, slot), 0.5)

    def _copied(self, training: Training, rank: int, step: int, slot: Slot | None) -> None:
        own = self._node_of(training, rank)
        if own is None:
            return  # killed in the middle
        one, _ = own
        formed = training.formed
        if slot is not None:
            slot.held = Held(rank, formed.world_size, formed.cycle, 0, step, formed.term)
            slot.is_bad, slot.found_by = self._rng.random() < _BAD, ""
        training.done[rank] = step
        self._measure(training, one, step)
        self._soon(partial(self._end_step, training, rank))

    def _measure(self, training: Training, one: SimulatedNode, step: int) -> None:
        assert one.arenas is not None
        is_early = step - training.first < _MEASURED_STEPS
        if is_early or one.arenas.every or one.name in training.has_measured:
            return
        training.has_measured.add(one.name)
        every = self._rng.choice((1, 2, 3))
        one.tell(SnapshotsMeasured(training.formed.cycle, step, every))


class SnapshotPromises:
    """See the module's docstring."""

    def __init__(
        self,
        scenario: Scenario,
        by_node: Mapping[str, SimulatedNode],
        check: Callable[[bool, str], None],
    ) -> None:
        self._progress = scenario.rules.snapshot_progress
        self._is_on = scenario.snapshots
        self._by_node = by_node
        self._check = check
        self._starts: dict[Life, State | None] = {}
        self._times: dict[Life, int] = {}
        self._known: dict[int, Life] = {}
        """By term: the last life that its leader knows of."""
        self.restored = self.given_up = 0
        self._void: set[Life] = set()
        """Lives in which a rank has given up its snapshots;"""
        self._reported: set[Life] = set()
        """those of which the leader knows it."""
        self.kept = KeptPromises(by_node, check)

    def start_of(self, life: Life) -> State | None:
        """What all ranks of a life begin from."""
        return self._starts.get(life)

    def note_given_up(self, formed: Round) -> None:
        """A rank takes none any more in this life."""
        self._void.add((formed.term, formed.cycle))
        self.given_up += 1
        self.kept.state = None

    def _is_given_up(self, state: State, lives: set[Life]) -> bool:
        """It was computed in one of these lives, or before."""
        return any(self._is_of(state, life) for life in lives)

    def check_takeover(self, leads: Leads) -> None:
        """It may know fewer rounds; the leader before may form another before it steps down."""
        self._known[leads.term] = leads.round.term, leads.round.cycle

    def check_decision(self, decision: Decision) -> None:
        """What all ranks of a round begin from."""
        if isinstance(decision, Kept):
            formed = self.kept.formed
            if formed is not None and (formed.term, formed.cycle) not in self._void:
                self.kept.check_kept(decision)
        if not isinstance(decision, Round):
            return
        if not self._is_on:
            self._check(decision.beginning is None, "a job without snapshots speaks of them")
            return
        life, known = (decision.term, decision.cycle), self._known.get(decision.term)
        if decision.revision or life == known:
            return
        restore = decision.beginning.restore if decision.beginning is not None else None
        said = {it.void_until.cycle for it in self._memories(decision) if it.void_until is not None}
        self._reported |= {it for it in self._void if it[1] in said}
        best = self._newest_common(decision, known)
        state, times = None, 0
        if restore is not None:
            self.restored += 1
            state = self._common_state(decision, restore.snapshot)
            self._check(
                known is not None and self._is_of(state, known),
                f"cycle {decision.cycle} begins from {restore.snapshot}, which is void",
            )
            is_given_up = self._is_given_up(state, self._reported)
            self._check(not is_given_up, f"{restore.snapshot} was given up by a rank")
            is_refused = restore.snapshot in self._refused(decision)
            self._check(not is_refused, f"{restore.snapshot} was refused")
        if known is not None and state is not None and state is self._starts.get(known):
            times = self._times_of(decision, known)
            if self._progress_of(known, state) >= self._progress:
                times = 0
            self._check(times < 2, f"cycle {decision.cycle} begins a third time from {state.step}")
        is_newest = best is None or (state is not None and state.goes_back_to(best))
        self._check(
            is_newest,
            f"cycle {decision.cycle} begins from {restore and restore.snapshot}, and "
            f"{best and (best.life, best.step)} is there",
        )
        self._starts[life], self._times[life] = state, times + 1
        self.kept.check_round(decision, state, is_void=partial(self._is_void, decision, known))
        self._known[decision.term] = life

    def _refused(self, formed: Round) -> set[SnapshotId]:
        """Of which no copy is used."""
        everyone = (it for one in self._nodes(formed) for it in one.arenas.refused)
        return {it.snapshot for it in everyone if not it.is_damaged}

    def _times_of(self, formed: Round, known: Life) -> int:
        """Lives in a row that began from the start of this one, but for one with a damaged copy."""
        times, start = self._times.get(known, 0), self._starts.get(known)
        refused = [it for one in self._nodes(formed) for it in one.arenas.refused]
        is_start = (
            it.is_damaged
            and start is not None
            and it.snapshot == SnapshotId(start.life[1], 0, start.step)
            for it in refused
        )
        return times - any(is_start)

    def _is_void(self, formed: Round, known: Life | None, state: State) -> bool:
        """It is not of the history of the last life, was refused, or led nowhere."""
        if known is None or not self._is_of(state, known):
            return True
        refused = self._refused(formed)
        start = self._starts.get(known)
        is_doubtful = start is not None and self._times_of(formed, known) >= 2
        is_spent = is_doubtful and start is not None and state.goes_back_to(start)
        return SnapshotId(state.life[1], 0, state.step) in refused or is_spent

    def _nodes(self, formed: Round) -> list[Any]:
        return [self._by_node[place.node] for place in formed.places]

    def _memories(self, formed: Round) -> list[SimulatedArenas]:
        return [one.arenas for one in self._nodes(formed)]

    def _common_state(self, formed: Round, name: SnapshotId) -> State:
        """T-1, before any rank starts: what they are going to find."""
        found: list[State | None] = []
        restore = formed.beginning.restore if formed.beginning is not None else None
        moved = {it.rank: it.node for it in restore.sources} if restore is not None else {}
        for place in formed.places:
            for rank in range(place.rank_offset, place.rank_offset + place.nproc):
                arenas = self._by_node[moved.get(rank, place.node)].arenas
                assert arenas is not None
                slot = arenas.restored(rank, name)
                found.append(None if slot is None else slot.state)
                is_bad = slot is not None and formed.place_of(slot.found_by) is not None
                self._check(not is_bad, f"a damaged copy of {name} of rank {rank} is used again")
        state = found[0]
        self._check(state is not None, f"T-1: rank 0 has no {name}")
        self._check(
            all(it is state for it in found),
            f"T-1: ranks of cycle {formed.cycle} begin from different states, all named {name}",
        )
        assert state is not None
        return state

    def _is_of(self, state: State, life: Life) -> bool:
        """Whether a life has computed a state, or goes back to it."""
        if state.life == life:
            return True
        start = self._starts.get(life)
        return start is not None and start.goes_back_to(state)

    def _newest_common(self, formed: Round, known: Life | None) -> State | None:
        """By brute force; without what was refused, or has led nowhere twice."""
        if known is None:
            return None
        common: dict[State, set[int]] = {}
        refused = self._refused(formed)
        for place in formed.places:
            arenas = self._by_node[place.node].arenas
            assert arenas is not None
            own = [it for slots in arenas.slots.values() for it in slots]
            for slot in [*own, *arenas.replicas_in_use()]:
                held, state = slot.held, slot.state
                if held is None or state is None or held.id in refused or slot.found_by:
                    continue
                if slot.is_late:
                    continue
                rank = held.rank
                is_own = place.rank_offset <= rank < place.rank_offset + place.nproc
                is_there = is_own or bool(formed.keepers)
                if is_there and held.world_size == formed.world_size:
                    common.setdefault(state, set()).add(rank)
        start = self._starts.get(known)
        is_doubtful = start is not None and self._times_of(formed, known) >= 2
        fit = [
            state
            for state, ranks in common.items()
            if len(ranks) == formed.world_size
            and self._is_of(state, known)
            and not any(SnapshotId(state.life[1], 0, state.step) == name for name in refused)
            and not self._is_given_up(state, self._void)
            and not (is_doubtful and start is not None and state.goes_back_to(start))
        ]
        return max(fit, key=lambda it: (it.life[1], it.step), default=None)

    def _progress_of(self, life: Life, start: State) -> int:
        """New steps of a life, as far as nodes that live know."""
        living = [one for one in self._by_node.values() if one.alive and not one.has_quit]
        memories = [(one, one.arenas) for one in living if one.arenas is not None]
        steps = [
            slot.state.step
            for _, arenas in memories
            for slots in arenas.slots.values()
            for slot in slots
            if slot.state is not None and slot.state.life == life
        ]
        steps += [arenas.last_step for one, arenas in memories if one.last_started == life[1]]
        return max(steps, default=start.step) - start.step

    def check_void(self, one: SimulatedNode, formed: Round) -> None:
        """The ranks of a node start."""
        arenas = one.arenas
        assert arenas is not None
        life = formed.term, formed.cycle
        start = self._starts[life]
        for slot in arenas.all_slots():
            self._check(
                slot.held is None
                or (start is not None and slot.state is not None
                    and start.goes_back_to(slot.state)),
                f"{one.name} starts cycle {formed.cycle}, and holds {slot.held}, which is void",
            )  # fmt: skip

    def check_start(
        self, one: SimulatedNode, formed: Round, rank: int, *, goes_bad: bool = False
    ) -> bool:
        """A rank begins; False: it finds that its state is wrong.

        ``goes_bad``: its copy does, just before.
        """
        arenas = one.arenas
        assert arenas is not None
        start = self._starts[formed.term, formed.cycle]
        restore = formed.beginning.restore if formed.beginning is not None else None
        if restore is None:
            return True
        slot_of = arenas.restored(rank, restore.snapshot)
        self._check(
            slot_of is not None and slot_of.state is start,
            f"T-1: rank {rank} on {one.name} finds another state than the others",
        )
        assert slot_of is not None
        slot_of.is_bad = slot_of.is_bad or goes_bad
        if slot_of.is_bad:
            source = arenas.moved.get(rank, "")
            self._found_bad(slot_of, restore.snapshot, rank, one.name, source)
            arenas.refused.append(Refused(restore.snapshot, rank, "a sum is wrong", True, source))
            return False
        if start is not None and start.is_unfit:
            arenas.refused.append(Refused(restore.snapshot, rank, "it does not fit"))
            return False
        return True

    def _found_bad(self, found: Slot, name: SnapshotId, rank: int, by: str, source: str) -> None:
        """The copy on a rank's own node, and the one that it came from."""
        for node in {by, source} - {""}:
            arenas = self._by_node[node].arenas
            slot = None if arenas is None else arenas.restored(rank, name)
            if slot is not None and slot.state is found.state:
                slot.found_by = by
            self.kept.found_bad(found.state, rank, node)
