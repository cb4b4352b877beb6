"""Kept steps of a simulated job: snapshots that travel to the peers of nodes.

A transfer takes a while, fails now and then, and dies with either node. :class:`KeptPromises`:

- A step that the leader calls kept is in the memory of all ranks and of their nodes' peers.
- No launcher and no rank writes into a slot that holds it, before another step is kept.
- When nodes are lost, but of no node its peer as well, the next cycle begins from no older one. A
  copy that was found to be damaged is as lost as its node.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.arena.pure import peer_messages
from holdfast.arena.pure.snapshots import Held, Holdings, SnapshotId
from holdfast.job.pure.member import MemberPhase
from holdfast.job.pure.member_messages import (
    HoldingsRead,
    KeepStep,
    StepCopied,
    StepKept,
    StepMissed,
)
from holdfast.job.pure.membership import CyclePlace, Kept, Round
from holdfast.node.pure.node_keeping import (
    CopyFailed,
    CopySent,
    NodeKeeping,
    PinSteps,
    RankSeen,
    SendCopy,
)
from tests.simulation.kernel import Alarm

if TYPE_CHECKING:
    from holdfast.testing.clock import VirtualClock
    from tests.simulation.simulated_node import SimulatedNode
    from tests.simulation.simulated_snapshots import SimulatedArenas, Slot, State

_FAILS, GOES_BAD = 0.05, 0.03
"""Of all transfers; and copies that do not have the bytes that were sent."""
Arrived = Callable[["SimulatedNode", int], None]
"""Called with a node and the rank whose snapshot has arrived there."""


def parts(formed: Round) -> dict[str, CyclePlace]:
    """By node, the place of its peer."""
    if not formed.keepers:
        return {}
    pairs = zip(formed.places, formed.keepers, strict=True)
    return {place.node: formed.places[keeper.peer] for place, keeper in pairs}


def ranks_of(place: CyclePlace) -> range:
    return range(place.rank_offset, place.rank_offset + place.nproc)


class SimulatedKeeping:
    """The launcher's part, with the machine of production."""

    def __init__(self, one: SimulatedNode, arenas: SimulatedArenas, copies: Copies) -> None:
        self.machine = NodeKeeping()
        self._one = one
        self.arenas = arenas
        self._copies = copies
        self.cycle, self.has_ended = -1, False
        self.accepts: frozenset[int] = frozenset()
        """Ranks whose snapshots are taken."""
        self._alarm = Alarm(one.clock, self._alarm_at, self._on_time)

    def _alarm_at(self) -> float | None:
        at = self.machine.next_deadline()
        return None if math.isinf(at) or not self._one.alive or self._one.has_quit else at

    def begin(self, formed: Round, place: CyclePlace) -> None:
        """Ranks are about to start."""
        peers = parts(formed)
        peer = peers.get(place.node)
        of = [it for it in formed.places if peers.get(it.node) == place]
        self.accepts = frozenset(rank for it in of for rank in ranks_of(it))
        beginning = formed.beginning
        restore = beginning.restore if beginning is not None else None
        sends: dict[tuple[int, str], SnapshotId] = {}
        for source in restore.sources if restore is not None else ():
            to = next(it.node for it in formed.places if source.rank in ranks_of(it))
            if to == place.node:
                self.accepts |= {source.rank}
            if source.node == place.node and restore is not None:
                sends[source.rank, to] = restore.snapshot
        self.cycle, self.has_ended = formed.cycle, False
        kept = beginning.kept if beginning is not None else None
        to_peer = "" if peer is None else peer.node
        self._do(self.machine.begin(formed.cycle, ranks_of(place), to_peer, kept, sends))

    def on(self, effect: KeepStep | StepKept) -> None:
        """Of the member."""
        now = self._one.world.clock.now
        if isinstance(effect, KeepStep):
            self._do(self.machine.keep(effect, now))
            return
        self._do(self.machine.step_kept(effect))
        for rank in self.arenas.replicas.keys() - self.accepts:
            del self.arenas.replicas[rank]
        self.read_again()

    def end(self) -> None:
        """The ranks are gone."""
        self.machine.end()
        self.has_ended = True

    def read_again(self) -> None:
        """The ranks of this node have succeeded, and others run: what it holds changes still."""
        if self.has_ended:
            self._one.tell(HoldingsRead(self.cycle, self.holdings()))

    def holdings(self) -> Holdings:
        """When the ranks are gone."""
        known = self.machine
        return self.arenas.holdings().but(kept=known.kept, complete=known.complete)

    def answer(self, event: CopySent | CopyFailed) -> None:
        """Of a transfer."""
        if not self._one.alive or self._one.has_quit:
            return
        now = self._one.world.clock.now
        if isinstance(event, CopySent):
            self._do(self.machine.sent(event))
        else:
            self._do(self.machine.failed(event, now))

    def _on_time(self) -> None:
        now = self._one.world.clock.now
        self._do(self.machine.look(self._seen(), now) + self.machine.time_passed(now))

    def _seen(self) -> dict[int, RankSeen]:
        found: dict[int, RankSeen] = {}
        step, last = self.machine.step, self.arenas.last_step
        for rank, slots in self.arenas.slots.items():
            held = next((it.held for it in slots if it.held and it.held.step == step), None)
            snapshot = None if held is None or not step else held.id
            is_missed = snapshot is None and last >= step + 2
            gave_up = rank in self.arenas.gave_up
            found[rank] = RankSeen(last, snapshot, 1, is_missed, gave_up)
        return found

    def _do(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case PinSteps(keep, kept):
                    self.arenas.keep, self.arenas.kept = keep, kept
                case SendCopy():
                    self._copies.send(self._one, self, effect)
                case StepCopied() | StepMissed():
                    self._one.tell(effect)
        self._alarm.set()


class Copies:
    """The network between the launchers' memories."""

    def __init__(
        self,
        clock: VirtualClock,
        by_node: Mapping[str, SimulatedNode],
        promises: KeptPromises,
        seed: int,
        arrived: Arrived,
    ) -> None:
        self._clock = clock
        self._by_node = by_node
        self._promises = promises
        self._rng = random.Random(seed ^ 0xC0B1)
        self._arrived = arrived

    def send(self, one: SimulatedNode, keeping: SimulatedKeeping, order: SendCopy) -> None:
        """Begin a transfer."""
        source = keeping.arenas.restored(order.rank, order.snapshot)
        fail = partial(self._fail, keeping, order)
        if source is None or source.held is None:
            self._clock.call_in(0.0, partial(fail, "it is gone"))
            return
        takes_s = self._rng.choice((0.02, 0.3, 2.0)) * self._rng.random()
        begin = partial(self._begin, one, keeping, order, source, source.held, takes_s)
        self._clock.call_in(self._rng.uniform(0.0, 0.05), begin)

    def _fail(self, keeping: SimulatedKeeping, order: SendCopy, why: str) -> None:
        keeping.answer(CopyFailed(order.rank, order.snapshot, order.node, why))

    def _begin(
        self,
        one: SimulatedNode,
        keeping: SimulatedKeeping,
        order: SendCopy,
        source: Slot,
        held: Held,
        takes_s: float,
    ) -> None:
        target = self._by_node.get(order.node)
        theirs = None if target is None else target.keeping
        is_there = target is not None and target.alive and not target.has_quit
        if not one.alive or one.has_quit:
            return
        if not is_there or theirs is None or theirs.cycle != keeping.cycle:
            self._fail(keeping, order, "it does not answer")
            return
        assert target is not None
        if order.rank not in theirs.accepts:
            self._fail(keeping, order, "it does not take it")
            return
        slot = slot_for(theirs.arenas, order, held.id)
        if slot is None:
            self._fail(keeping, order, "it has no slot")
            return
        if slot.held == held:
            keeping.answer(CopySent(order.rank, order.snapshot, order.node))
            return
        self._promises.check_write(slot)
        self._promises.check_copy(target.name, theirs.arenas, slot)
        writer = object()
        slot.held, slot.state, slot.writer = None, None, writer
        end = partial(self._end, one, target, order, source, held, slot, writer)
        if self._rng.random() < _FAILS:
            end = partial(self._break_off, keeping, order, slot, writer, "the connection is lost")
        self._clock.call_in(takes_s, end)

    def _break_off(
        self, keeping: SimulatedKeeping, order: SendCopy, slot: Slot, writer: object, why: str
    ) -> None:
        """The slot is void, and free for the next copy."""
        if slot.writer is writer:
            slot.writer = None
        self._fail(keeping, order, why)

    def _end(
        self,
        one: SimulatedNode,
        target: SimulatedNode,
        order: SendCopy,
        source: Slot,
        held: Held,
        slot: Slot,
        writer: object,
    ) -> None:
        keeping = one.keeping
        if keeping is None or not one.alive or one.has_quit:
            return
        is_there = target.alive and not target.has_quit and slot.writer is writer
        if not is_there or source.held != held:
            self._break_off(keeping, order, slot, writer, "it has changed")
            return
        slot.held, slot.state, slot.writer = held, source.state, None
        has_joined = target.core.member.phase is MemberPhase.WAITING
        slot.is_late = has_joined and not target.will_vote
        slot.is_bad, slot.found_by = source.is_bad or self._rng.random() < GOES_BAD, ""
        self._arrived(target, order.rank)
        if target.keeping is not None:
            target.keeping.read_again()
        sent = CopySent(order.rank, order.snapshot, order.node)
        self._clock.call_in(0.001, partial(keeping.answer, sent))


def slot_for(arenas: SimulatedArenas, order: SendCopy, snapshot: SnapshotId) -> Slot | None:
    """Where a node puts what it is sent; the slot that holds it, if one does."""
    slots = arenas.slots.get(order.rank) or arenas.replica(order.rank)
    has_it = [it for it in slots if it.held is not None and it.held.id == snapshot]
    if has_it:
        return has_it[0]
    usable = {index: it.held for index, it in enumerate(slots) if it.writer is None}
    index = peer_messages.slot_for(usable, untouchable(order), is_listed=arenas.is_listed)
    return None if index is None else slots[index]


def untouchable(order: SendCopy) -> frozenset[int]:
    """The transfer names the kept step."""
    return frozenset({order.kept})


class KeptPromises:
    """See the module's docstring."""

    def __init__(
        self, by_node: Mapping[str, SimulatedNode], check: Callable[[bool, str], None]
    ) -> None:
        self._by_node = by_node
        self._check = check
        self.state: State | None = None
        """The kept step."""
        self._name: SnapshotId | None = None
        self._peers: dict[str, str] = {}
        """Of the nodes that had ranks then."""
        self._ranks: dict[str, range] = {}
        """Of those nodes."""
        self._damaged: set[tuple[str, int]] = set()
        """Nodes and ranks."""
        self._world_size = 0
        self.formed: Round | None = None
        """The last."""
        self.kept = 0
        self.survived = 0
        """Rounds that had lost a node, and began from a kept step or a newer one."""

    def check_write(self, slot: Slot) -> None:
        """T-2."""
        safe = self.state is not None and slot.state is self.state and slot.held is not None
        self._check(not safe, f"T-2: {slot.held}, which is kept, is overwritten")

    def check_copy(self, node: str, arenas: SimulatedArenas, slot: Slot) -> None:
        """T-2, at another node than that of the rank."""
        safe = arenas.is_listed and slot.held is not None
        self._check(not safe, f"T-2: a copy overwrites {slot.held}, which {node} has listed")

    def check_kept(self, kept: Kept) -> None:
        """All ranks have it, and their peers."""
        formed = self.formed
        assert formed is not None
        peers = {node: place.node for node, place in parts(formed).items()}
        states: list[State | None] = []
        for place in formed.places:
            for holder in (place.node, peers[place.node]):
                one = self._by_node[holder]
                if not one.alive or one.has_quit or one.arenas is None:
                    continue
                for rank in ranks_of(place):
                    slot = one.arenas.restored(rank, kept.snapshot)
                    self._check(slot is not None, f"rank {rank} on {holder} lacks {kept.snapshot}")
                    states.append(None if slot is None else slot.state)
        if not states:
            return  # the leader slept, and all that had it are gone
        state = states[0]
        self._check(all(it is state for it in states), f"{kept.snapshot} names two states")
        self.state, self._name, self._peers = state, kept.snapshot, peers
        self._ranks = {place.node: ranks_of(place) for place in formed.places}
        self._damaged.clear()
        self._world_size = formed.world_size
        self.kept += 1

    def found_bad(self, state: State | None, rank: int, node: str) -> None:
        """A copy is."""
        if state is not None and state is self.state:
            self._damaged.add((node, rank))

    def check_round(
        self, formed: Round, begins_from: State | None, *, is_void: Callable[[State], bool]
    ) -> None:
        """``is_void``: it was given up, or is not of the history of the last life."""
        self.formed = formed
        state = self.state
        if state is None:
            return
        here = {place.node for place in formed.places}
        lost = {
            node
            for node in self._peers
            if node not in here or not self._by_node[node].alive or self._by_node[node].has_quit
        }
        gone = {(node, rank) for node in lost for rank in range(formed.world_size)}
        gone |= self._damaged
        both = any(
            {(node, rank), (peer, rank)} <= gone
            for node, peer in self._peers.items()
            for rank in self._ranks[node]
        )
        if both or is_void(state) or formed.world_size != self._world_size or not formed.keepers:
            self.state = None
            return
        is_as_new = begins_from is not None and begins_from.goes_back_to(state)
        self._check(
            is_as_new,
            f"cycle {formed.cycle} begins from "
            f"{begins_from and (begins_from.life, begins_from.step)}, {self._name} is kept, and of "
            f"its nodes only {sorted(lost)} are lost",
        )
        self.survived += bool(lost)
        kept = formed.beginning.kept if formed.beginning is not None else None
        if kept is not None and kept != self._name:
            self._take_over(formed, kept)

    def _take_over(self, formed: Round, kept: SnapshotId) -> None:
        """All that are left had said that their peers have a newer one, and the leader died."""
        rank = formed.places[0].rank_offset
        arenas = [one.arenas for one in self._by_node.values() if one.name in self._peers]
        slots = [it.restored(rank, kept) for it in arenas if it is not None]
        state = next((it.state for it in slots if it is not None), None)
        is_newer = state is not None and self.state is not None and state.goes_back_to(self.state)
        self._check(is_newer, f"{kept} is called kept, {self._name} was")
        self.state, self._name = state, kept
        self._damaged.clear()
