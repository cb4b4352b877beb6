"""Kept steps of this node: snapshots of its ranks go to its peer, those of another node come here.

    member ──KeepStep, StepKept──► decides (pure/node_keeping.py) ──► pins in the ranks' memory
                                                                   ──► copies, by another process
    a rank asks for the snapshot to begin from ──► it waits until the copy of it is here

Made where steps are kept (``--ft-snapshot-keep``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from holdfast.arena.arena import ArenaError, HeldSlot
from holdfast.arena.pure.messages import OpenArena, SnapshotAwaited
from holdfast.arena.pure.peer_messages import (
    CopyNotPushed,
    CopyPushed,
    CopyReceived,
    CopyRefused,
    CopyUnderWay,
)
from holdfast.arena.pure.snapshots import Holdings, SnapshotId
from holdfast.arena.snapshot_files import SlotOfRank
from holdfast.base import clock
from holdfast.base.pure.never import assert_never
from holdfast.events.pure import schema
from holdfast.job.pure.member_messages import KeepStep, StepCopied, StepKept, StepMissed
from holdfast.node.console import LOGGER
from holdfast.node.part import Part
from holdfast.node.peer_copies import CopiesEnded
from holdfast.node.pure.node_keeping import (
    CopyFailed,
    CopySent,
    Effect,
    NodeKeeping,
    PinSteps,
    RankSeen,
    SendCopy,
)

if TYPE_CHECKING:
    from holdfast.base.processes.child import Reaped
    from holdfast.job.pure.membership import CyclePlace, Round
    from holdfast.node.arenas import Answer, Arenas
    from holdfast.node.peer_copies import CopyOutcome, PeerCopies

AWAITED_S = 60.0
"""Without a sign of it, a copy that a rank waits for is given up."""
REFUSED_MAX = 3
"""Copies of it that were refused; then it is given up, too."""
_ANSWER_S = 10.0
"""A rank that waits gets an answer by then, and asks again."""


class _Waiting(NamedTuple):
    request: OpenArena
    reply: Callable[[Answer], None]
    until: float


class _Awaited:
    """A copy that a rank of this node begins from."""

    def __init__(self, snapshot: SnapshotId, now: float) -> None:
        self.snapshot = snapshot
        self.until = now + AWAITED_S
        self.refused = 0


class KeptSteps(Part):
    """Of one launcher. Main thread only.

    Args:
        arenas: The memory.
        copies: Makes the process that copies, which reports to the function it is given; raises
            OSError.
        feed: Takes events for the member.
        holdings_changed: Called when this node, which has no ranks any more, holds more.
        event: Writes an event.
    """

    def __init__(
        self,
        arenas: Arenas,
        copies: Callable[[Callable[[CopyOutcome], None]], PeerCopies],
        feed: Callable[[StepCopied | StepMissed], None],
        holdings_changed: Callable[[], None],
        event: Callable[[schema.Body], None],
    ) -> None:
        self._arenas = arenas
        self._copies = copies(self._on_outcome)
        self._feed = feed
        self._holdings_changed = holdings_changed
        self._event = event
        self._keeping = NodeKeeping()
        self._ranks = range(0)
        self._places: dict[str, tuple[str, int]] = {}
        """By node, where its process for copies is reached."""
        self._taken_in: set[int] = set()
        """Ranks of other nodes whose snapshots come here."""
        self._peer = ""
        """The node that takes those of this one; empty: none does."""
        self._copying_since = 0.0
        """Since when the step that is to be kept is on its way there; 0.0: it is not."""
        self._pushing: dict[int, SendCopy] = {}
        """By the number of the order."""
        self._awaited: dict[int, _Awaited] = {}
        self._written: set[int] = set()
        """Ranks of this node; the process may still write their memory."""
        self._waiting: list[_Waiting] = []
        self._is_over = False
        """The ranks of the cycle are gone."""

    @property
    def port(self) -> int:
        """Where copies are received."""
        return self._copies.port

    # ------------------------------------------------------------ cycles
    def begin(self, formed: Round, place: CyclePlace) -> None:
        """The ranks of a cycle are about to start, and their memory is assigned."""
        before = {*self._taken_in, *self._awaited}
        self._ranks = _ranks_of(place)
        self._awaited.clear()
        self._is_over = False
        beginning = formed.beginning
        restore = beginning.restore if beginning is not None else None
        kept = beginning.kept if beginning is not None else None
        keepers = dict(zip(formed.places, formed.keepers, strict=False))
        self._places = {it.node: (it.addr, part.port) for it, part in keepers.items()}
        peer = formed.places[keepers[place].peer] if keepers else None
        of = [it for it, part in keepers.items() if formed.places[part.peer] == place]
        self._taken_in = {rank for it in of for rank in _ranks_of(it)}
        sends: dict[tuple[int, str], SnapshotId] = {}
        for source in restore.sources if restore is not None else ():
            assert restore is not None
            if source.rank in self._ranks:
                self._awaited[source.rank] = _Awaited(restore.snapshot, clock.monotonic())
            elif source.node == place.node:
                to = next(it.node for it in formed.places if source.rank in _ranks_of(it))
                sends[source.rank, to] = restore.snapshot
        for rank in before - self._taken_in - self._awaited.keys():
            self._release(rank)
        for rank in self._taken_in:
            self._hold(rank, is_own=False)
        for rank in list(self._awaited):
            self._hold(rank, is_own=True)
        self._peer = "" if peer is None else peer.node
        age_s = round(beginning.kept_age_s, 3) if beginning is not None else 0.0
        self._event(schema.SnapshotPeer(self._peer, None if kept is None else kept.step, age_s))
        self._do(self._keeping.begin(formed.cycle, self._ranks, self._peer, kept, sends))

    def _hold(self, rank: int, *, is_own: bool) -> None:
        arenas = self._arenas
        try:
            memory = arenas.memory_of(rank) if is_own else arenas.replica(rank)
        except ArenaError as error:
            LOGGER.warning("snapshots of rank %d are not taken in: %s", rank, error)
            self._awaited.pop(rank, None)
            return
        self._copies.hold(rank, memory, arenas.copy_bytes_max())

    def _release(self, rank: int) -> None:
        """The process writes to the memory of a rank no longer, as that is in use here."""
        if rank in self._ranks:
            self._written.add(rank)
        self._copies.drop(rank, lambda: self._released(rank))

    def _released(self, rank: int) -> None:
        self._written.discard(rank)
        self._answer_all()

    def end_ranks(self) -> None:
        """The ranks are gone; copies of others may come still."""
        self._is_over = True
        self._keeping.end()
        self._waiting.clear()

    def holdings(self, held: Holdings) -> Holdings:
        """With the kept step that this node knows of."""
        return held.but(kept=self._keeping.kept, complete=self._keeping.complete)

    # ------------------------------------------------------------ decisions
    def keep(self, asked: KeepStep) -> None:
        """The leader names a step, or asks for one."""
        self._copying_since = 0.0
        if why := self._arenas.why_none_is_kept():
            self._do(self._keeping.cannot(why))
        self._do(self._keeping.keep(asked, clock.monotonic()))

    def step_kept(self, kept: StepKept) -> None:
        """All nodes have it: only the ranks of this node's neighbour are of use here."""
        self._do(self._keeping.step_kept(kept))
        named, seconds = kept.snapshot, round(kept.seconds, 3)
        self._event(schema.SnapshotKept(named.step, named.cycle, kept.n_bytes, seconds))
        self._arenas.drop_replicas(but=self._taken_in)
        self._changed()

    def _changed(self) -> None:
        if self._is_over:
            self._holdings_changed()

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case PinSteps(keep, kept):
                    self._arenas.keep_as_kept(kept)  # first: a rank reads the other one first
                    self._arenas.keep(keep)
                case SendCopy():
                    self._send(effect)
                case StepCopied(_, copied, n_bytes):
                    seconds = round(clock.monotonic() - self._copying_since, 3)
                    about = copied.step, copied.cycle, self._peer, n_bytes, seconds
                    self._event(schema.SnapshotCopied(*about))
                    self._feed(effect)
                case StepMissed(_, keep, _, why, for_good):
                    if why:  # without, the ranks are past it: the leader names another one
                        self._event(schema.SnapshotNotCopied(keep, why, for_good))
                    self._feed(effect)
                case _:
                    assert_never(effect)

    def _send(self, order: SendCopy) -> None:
        source = self._arenas.find(order.rank, order.snapshot)
        host, port = self._places.get(order.node, ("", 0))
        number = None
        if source is not None and port:
            held = source.slot.held
            number = self._copies.push(held, source.arena, order.kept, host, port)
        if number is None:
            why = "its memory holds it no longer" if source is None else "no process takes it"
            failed = CopyFailed(order.rank, order.snapshot, order.node, why)
            self._do(self._keeping.failed(failed, clock.monotonic()))
        else:
            self._pushing[number] = order
            if order.snapshot.step == self._keeping.step and not self._copying_since:
                self._copying_since = clock.monotonic()

    # ------------------------------------------------------------ copies
    def _on_outcome(self, outcome: CopyOutcome) -> None:
        now = clock.monotonic()
        match outcome:
            case CopyPushed(number):
                order = self._pushing.pop(number)
                self._do(self._keeping.sent(CopySent(order.rank, order.snapshot, order.node)))
            case CopyNotPushed(number, why):
                order = self._pushing.pop(number)
                LOGGER.debug("snapshot of rank %d to %s: %s", order.rank, order.node, why)
                failed = CopyFailed(order.rank, order.snapshot, order.node, why)
                self._do(self._keeping.failed(failed, now))
            case CopyUnderWay(rank):
                if rank in self._awaited:
                    self._awaited[rank].until = now + AWAITED_S
            case CopyReceived(held):
                awaited = self._awaited.get(held.rank)
                if awaited is not None and awaited.snapshot == held.id:
                    self._give_out(held.rank)
                self._changed()
            case CopyRefused(held, why):
                LOGGER.warning("a copy of a snapshot of rank %d is refused: %s", held.rank, why)
                if (awaited := self._awaited.get(held.rank)) is not None:
                    awaited.refused += 1
                    if awaited.refused >= REFUSED_MAX:
                        self._give_out(held.rank)
            case CopiesEnded(why):
                self._do(self._keeping.cannot(f"the process for copies has ended: {why}"))
                for rank in list(self._awaited):
                    self._give_out(rank)
            case _:
                assert_never(outcome)

    def _give_out(self, rank: int) -> None:
        """The rank may read its memory. Without the snapshot it reports that, and ends."""
        del self._awaited[rank]
        self._release(rank)

    # ------------------------------------------------------------ ranks that wait
    def answer(self, request: OpenArena, reply: Callable[[Answer], None]) -> None:
        """Answer when the snapshot of that rank is here."""
        self._waiting.append(_Waiting(request, reply, clock.monotonic() + _ANSWER_S))
        self._answer_all()

    def _answer_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        now = clock.monotonic()
        for it in waiting:
            rank = it.request.rank
            if rank not in self._awaited and rank not in self._written:
                it.reply(self._arenas.answer(it.request))
            elif now >= it.until:
                it.reply((SnapshotAwaited(), ()))
            else:
                self._waiting.append(it)

    # ------------------------------------------------------------ time
    def next_deadline(self) -> float | None:
        """Of a look at the ranks' memory, or of a rank that waits."""
        waits = [it.until for it in self._waiting]
        awaited = [it.until for it in self._awaited.values()]
        at = min([self._keeping.next_deadline(), *waits, *awaited])
        return None if at == float("inf") else at

    def on_time(self) -> None:
        """Look at the memory, send again, answer."""
        now = clock.monotonic()
        if now >= self._keeping.next_deadline():
            self._do(self._keeping.look(self._seen(), now))
            self._do(self._keeping.time_passed(now))
        for rank in [rank for rank, it in self._awaited.items() if now >= it.until]:
            LOGGER.warning("no copy of the snapshot of rank %d has come: it is given up", rank)
            self._give_out(rank)
        if any(now >= it.until for it in self._waiting):
            self._answer_all()

    def _seen(self) -> dict[int, RankSeen]:
        found: dict[int, RankSeen] = {}
        last_steps = self._arenas.last_steps()
        pinned = self._arenas.pinned(self._keeping.step)
        gave_up = self._arenas.gave_up()
        for rank, last_step in last_steps.items():
            state = pinned.get(rank)
            if isinstance(state, SlotOfRank):
                slot: HeldSlot = state.slot
                found[rank] = RankSeen(last_step, slot.held.id, slot.n_bytes)
            else:
                is_over = rank in gave_up
                found[rank] = RankSeen(last_step, is_missed=state is None, gave_up=is_over)
        return found

    # ------------------------------------------------------------ the process
    def pids(self) -> frozenset[int]:
        """The process that copies."""
        return self._copies.pids()

    def died(self, reaped: Reaped) -> bool:
        """Note that a process was reaped; whether it was that one."""
        return self._copies.died(reaped)

    def end(self) -> None:
        """The job is over."""
        self._copies.end()


def _ranks_of(place: CyclePlace) -> range:
    return range(place.rank_offset, place.rank_offset + place.nproc)
