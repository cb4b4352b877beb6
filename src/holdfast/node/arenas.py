"""The memory in which the ranks of this node keep their snapshots: made, handed out, read, freed.

    rank asks (OpenArena) ──► memory is budgeted ──► one memory file, for this rank, for the job
    ranks of a cycle are gone ──► a list of their snapshots goes to the leader, with the Join
    next cycle ──► snapshots not of its lineage are void; a rank gets the arena with its state

Made for the first rank that asks: a job without snapshots has nothing of this. Words that a rank
has written are checked as those of a stranger.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from holdfast.arena.arena import ArenaError, ArenaMemory, HeldSlot, Pending, create
from holdfast.arena.pure import layout, trust
from holdfast.arena.pure.budget import SHARE, SlotsGranted, TooLittleMemory, grant, shown
from holdfast.arena.pure.file_names import NodeSnapshotNames, life_name
from holdfast.arena.pure.kept_steps import replicas_in_use
from holdfast.arena.pure.lineage import belongs
from holdfast.arena.pure.messages import (
    Arena,
    FileToRestore,
    OpenArena,
    OtherWorld,
    SnapshotAwaited,
    SnapshotCost,
    SnapshotUnusable,
)
from holdfast.arena.pure.slots import KEPT_SLOTS, PEER_SLOTS
from holdfast.arena.pure.snapshots import Ancestor, Beginning, Held, Holdings, Refused, SnapshotId
from holdfast.arena.rescue import release_rescued
from holdfast.arena.snapshot_files import SlotOfRank
from holdfast.arena.taken import of_node, of_rank, show, show_node
from holdfast.base import clock, memory
from holdfast.base.pure.codec import for_people
from holdfast.base.pure.wording import count
from holdfast.events.pure import schema
from holdfast.job.pure.member_messages import SetCadence, SnapshotsMeasured
from holdfast.job.pure.membership import CyclePlace, Round
from holdfast.node.console import LOGGER
from holdfast.node.part import Happening, Part, RankKilled
from holdfast.watch.pure.rank_messages import Error, Ok

Request = OpenArena | SnapshotCost | SnapshotUnusable
Answer = tuple[Arena | SnapshotAwaited | Ok | Error, tuple[int, ...]]
"""A message, and the descriptors that go with it."""

_OPTION = "--ft-snapshot-memory"
_FACTS_OF_A_LIFE = (
    layout.TAKEN_AT,
    layout.TAKE_NS,
    layout.STEP_NS,
    layout.TAKEN,
    layout.SKIPPED,
    layout.SPENT_NS,
)
_EVENT_S = 10.0
_EVENT_SHARE = 0.01
"""Events of snapshots come as looks at the pages do (``records/progress_log.py``)."""
_LAST_OOM = 2
"""The second time that memory runs out, nothing is kept."""


@dataclass
class _Arena:
    memory: ArenaMemory

    @property
    def bytes(self) -> int:
        """That the kernel has given it."""
        return os.fstat(self.memory.fd).st_blocks * 512


class Arenas(Part):
    """Of one launcher. Main thread only.

    Args:
        nproc: Ranks of the node.
        limit: Bytes that they may have together; None: a part of the memory that is left; 0: none.
        measured: Called when all ranks have said what snapshots cost.
        event: Writes an event.
        folder: Where live views find the memory.
        progress: See :class:`.Arena`.
        file_of: A rank's part of a snapshot on disk, by name; None: it is not there.
        path_of: The folder of a snapshot on disk, by name.
        keeps: Steps are kept at a peer node: there are slots for them, if memory allows.
    """

    def __init__(
        self,
        nproc: int,
        limit: int | None,
        measured: Callable[[SnapshotsMeasured], None],
        event: Callable[[schema.Body], None],
        folder: str,
        progress: int = trust.PROGRESS,
        file_of: Callable[[str, int], FileToRestore | None] = lambda *_: None,
        path_of: Callable[[str], str] = lambda name: name,
        *,
        keeps: bool = False,
    ) -> None:
        self._keeps = keeps
        self._kept_slots = 0
        self._pins = {layout.KEEP: 0, layout.KEPT: 0}
        """Steps by word; a rank that has no memory yet gets them with it."""
        self._progress = progress
        self._file_of = file_of
        self._path_of = path_of
        self._nproc = nproc
        self._limit = limit
        self._measured = measured
        self._event = event
        self._folder = folder
        self._arenas: list[_Arena] = []
        self._of_rank: dict[int, _Arena] = {}
        """By global rank, in this cycle."""
        self._replicas: dict[int, _Arena] = {}
        """By global rank of another node, to hold its kept steps."""
        self._ranks = range(0)
        self._world_size = 0
        self._cycle = 0
        self._lives: dict[str, str] = {}
        """Names of those cycles on disk."""
        self._terms: dict[int, int] = {}
        """Of the cycles that this node had ranks in: see :class:`.Ancestor`."""
        self._beginning = Beginning()
        self._every = 0
        self._granted: SlotsGranted | None = None
        """In this cycle, for slots of so many bytes:"""
        self._slot_bytes = 0
        self._said: tuple[int, int] | None = None
        self._is_off = False
        """A line says so; in this cycle."""
        self._costs: dict[int, SnapshotCost] = {}
        self._refused: list[Refused] = []
        self._moved: dict[int, str] = {}
        """By rank of this node, the node that sends the snapshot that it begins from;"""
        self._awaiting: set[int] = set()
        """those ranks, until they have it."""
        self._oom_cycles: set[int] = set()
        self._began_at = 0.0
        self._event_at: float | None = None

    # ------------------------------------------------------------ cycles
    def begin(self, formed: Round, place: CyclePlace) -> None:
        """The ranks of a cycle are about to start, and none is alive."""
        has_run_out = self._cycle in self._oom_cycles
        self._cycle = formed.cycle
        self._terms[formed.cycle] = formed.term
        life = life_name(formed.leader, formed.term, formed.cycle)
        self._lives[str(formed.cycle)] = life
        self._ranks = range(place.rank_offset, place.rank_offset + place.nproc)
        self._world_size = formed.world_size
        self._beginning = beginning = formed.beginning or Beginning()
        self._every = beginning.every
        self._granted, self._slot_bytes, self._is_off = None, 0, False
        self._costs.clear()
        self._pins = {layout.KEEP: 0, layout.KEPT: 0}
        self._void_damaged(beginning, place.node)
        self._refused.clear()
        sources = beginning.restore.sources if beginning.restore is not None else ()
        self._moved = {it.rank: it.node for it in sources if it.rank in self._ranks}
        self._awaiting = {*self._moved}
        self._began_at = clock.monotonic()
        self._event_at = self._began_at + _EVENT_S
        self._adopt(beginning.lineage)
        if has_run_out:
            self.drop_replicas(())
        for arena in self._arenas:
            self._void(arena, beginning.lineage)
            if has_run_out:
                self._free(arena, but=self._restored(arena))
            words = arena.memory.words
            words[layout.LAST_STEP] = -1
            for word in _FACTS_OF_A_LIFE:
                words[word] = 0
            words[layout.EVERY_FROM], words[layout.EVERY] = 0, self._every
            words[layout.KEEP] = words[layout.RESCUE] = words[layout.WRITES] = 0
            void = arena.memory.void_until()
            if void is not None and void.cycle >= formed.cycle:  # of a leader that has died
                words[layout.VOID_UNTIL] = 0
            kept = words[layout.KEPT]
            if all(slot.held.step != kept for slot in arena.memory.all_held()):
                words[layout.KEPT] = 0
        for ancestor in beginning.lineage:
            self._terms[ancestor.cycle] = ancestor.term  # copies come from such cycles
        self._assign()
        if self._arenas:
            self._show_node()
        in_use = [*map(id, self._of_rank.values())]
        for arena in self._arenas:
            if id(arena) not in in_use and not any(arena.memory.all_held()):
                self._free(arena)
        for arena in (*self._arenas, *self._replicas.values()):
            arena.memory.unlist()

    def _adopt(self, lineage: tuple[Ancestor, ...]) -> None:
        """A rank that comes here from another node has its state in a replica."""
        for arena in self._replicas.values():
            self._void(arena, lineage)
        for rank in self._ranks:
            has_it = any(self._restored(it, rank) for it in self._arenas)
            if not has_it and rank in self._replicas and self._restored(self._replicas[rank], rank):
                self._arenas.append(self._replicas.pop(rank))

    def _void(self, arena: _Arena, lineage: tuple[Ancestor, ...]) -> None:
        for slot in list(arena.memory.all_held()):
            held = self._with_term(slot.held)
            if held is None or not belongs(held, lineage):
                arena.memory.void(slot.slot)

    def _void_damaged(self, beginning: Beginning, node: str) -> None:
        """Those that ranks of this node could not use, and those that it has sent to such ranks."""
        damaged = {(it.snapshot, it.rank) for it in self._refused if it.is_damaged}
        damaged |= {(it.snapshot, it.rank) for it in beginning.damaged if it.node == node}
        for arena in (*self._arenas, *self._replicas.values()) if damaged else ():
            for slot in list(arena.memory.all_held()):
                if (slot.held.id, slot.held.rank) in damaged:
                    arena.memory.void(slot.slot)

    def _restored(self, arena: _Arena, rank: int | None = None) -> HeldSlot | None:
        """The slot that holds the snapshot that this cycle begins from."""
        restore = self._beginning.restore
        for slot in arena.memory.all_held():
            is_it = restore is not None and slot.held.id == restore.snapshot
            if is_it and (rank is None or slot.held.rank == rank):
                return slot
        return None

    def _assign(self) -> None:
        """Each rank gets the arena that has its state, the others one that is left."""
        before, self._of_rank = self._of_rank, {}
        for rank in self._ranks:
            found = (it for it in self._arenas if self._restored(it, rank) is not None)
            if (arena := next(found, None)) is not None:
                self._of_rank[rank] = arena
        for rank in self._ranks:
            taken = [*map(id, self._of_rank.values())]
            own = before.get(rank)
            left = [
                it
                for it in (own, *self._arenas)
                if it is not None and id(it) not in taken and not self._is_of_another(it)
            ]
            if rank not in self._of_rank and left:
                self._of_rank[rank] = left[0]
        for rank in self._of_rank:
            self._show(rank)

    def _is_of_another(self, arena: _Arena) -> bool:
        """It holds snapshots of a rank that is on another node now, which may need them."""
        held = arena.memory.all_held() if self._keeps else ()
        return any(slot.held.rank not in self._ranks for slot in held)

    def _with_term(self, held: Held) -> Held | None:
        """The whole name; None: of a life that was never here, whatever the rank has written."""
        term = self._terms.get(held.cycle)
        if term is None or not held.rank < held.world_size:
            return None
        return Held(held.rank, held.world_size, held.cycle, held.iteration, held.step, term)

    def holdings(self) -> Holdings | None:
        """The snapshots, when all ranks are gone; None: no rank has used snapshots."""
        if not self._arenas:
            return None
        self._write_taken()
        self._event_at = None
        if self._cycle in self._oom_cycles and len(self._oom_cycles) >= _LAST_OOM:
            for arena in self._arenas:
                self._free(arena)
        return Holdings(
            tuple(sorted({*self._held(), *self._replicas_in_use()})),
            self._last_step(),
            tuple(self._refused),
            self._every,
            void_until=self._void_until(),
        )

    def _void_until(self) -> SnapshotId | None:
        """The last life in which a rank has given up its snapshots; None: in none."""
        each = (it.memory.void_until() for it in self._arenas)
        known = (it for it in each if it is not None and it.cycle <= self._cycle)
        return max(known, default=None)

    def _last_step(self) -> int:
        """Of this cycle; an iteration that began anew may have ended fewer than one before it."""
        ended = (it.memory.words[layout.LAST_STEP] for it in self._arenas)
        taken = (it.step for it in self._held() if it.cycle == self._cycle)
        return max(-1, *ended, *taken)

    def sources(self) -> list[SlotOfRank]:
        """The snapshots with the memory that they are in, when all ranks are gone."""
        return [
            SlotOfRank(arena.memory, slot)
            for arena in self._arenas
            for slot in arena.memory.all_held()
            if self._with_term(slot.held) is not None
        ]

    def refused(self) -> list[SnapshotId]:
        """Snapshots that a rank could not use in this cycle."""
        return [it.snapshot for it in self._refused]

    def _held(self) -> Iterator[Held]:
        for arena in self._arenas:
            yield from self._held_in(arena)

    def _held_in(self, arena: _Arena) -> Iterator[Held]:
        """For the leader's list: no copy of another node overwrites any of it."""
        awaiting = (self._of_rank[rank] for rank in self._awaiting & self._of_rank.keys())
        is_shared = any(arena is it for it in (*awaiting, *self._replicas.values()))
        for slot in arena.memory.list_all(is_shared=is_shared):
            if (held := self._with_term(slot.held)) is not None:
                yield held

    def _replicas_in_use(self) -> Iterator[Held]:
        """Those that the ranks of this node hold as well: others were given up (in place).

        A rank holds the snapshot that is on its way here.
        """
        own = [
            {it.id for it in self._held_in(arena) if it.rank == rank} | self._awaited_by(rank)
            for rank, arena in self._of_rank.items()
        ]
        replicas = (it for arena in self._replicas.values() for it in self._held_in(arena))
        yield from replicas_in_use(own, replicas)

    def _awaited_by(self, rank: int) -> set[SnapshotId]:
        restore = self._beginning.restore
        return set() if restore is None or rank not in self._awaiting else {restore.snapshot}

    # ------------------------------------------------------------ seen
    def next_deadline(self) -> float | None:
        """When to write the next event of snapshots taken."""
        return self._event_at

    def on_time(self) -> None:
        """Write it, if it is time to."""
        now = clock.monotonic()
        if self._event_at is not None and now >= self._event_at:
            self._write_taken()
            for arena in self._arenas:
                release_rescued(arena.memory)
            self._event_at = now + max(_EVENT_S, _EVENT_SHARE * (now - self._began_at))

    def _show_node(self) -> None:
        ranks = self._ranks
        show_node(
            self._folder,
            NodeSnapshotNames(ranks.start, len(ranks), self._world_size, {**self._lives}),
        )

    def _show(self, rank: int) -> None:
        show(self._folder, rank - self._ranks.start, self._of_rank[rank].memory.fd)

    def _write_taken(self) -> None:
        found = [of_rank(self._of_rank[k].memory) for k in self._ranks if k in self._of_rank]
        if found and len(found) == len(self._ranks) and (taken := of_node(found)) is not None:
            self._event(schema.SnapshotsTaken(**vars(taken)))

    def set_cadence(self, cadence: SetCadence) -> None:
        """All nodes take snapshots so often from now on."""
        self._every = cadence.every
        for arena in self._arenas:
            words = arena.memory.words
            words[layout.EVERY_FROM] = cadence.from_step
            words[layout.EVERY] = cadence.every
        LOGGER.debug(
            "snapshots of every %d. step, from step %d on", cadence.every, cadence.from_step
        )

    # ------------------------------------------------------------ kept steps
    def keep(self, step: int) -> None:
        """Ranks hold on to ``step``, when they have taken it, and to the one that is kept."""
        self._pins[layout.KEEP] = step
        for arena in self._arenas:
            arena.memory.pin(layout.KEEP, step)

    def keep_as_kept(self, step: int) -> None:
        """``step`` is kept at the peers: the one before is not needed any more."""
        self._pins[layout.KEPT] = step
        if self._pins[layout.KEEP] == step:
            self._pins[layout.KEEP] = 0
        for arena in self._arenas:
            arena.memory.pin(layout.KEPT, step)
            if arena.memory.words[layout.KEEP] == step:
                arena.memory.pin(layout.KEEP, 0)

    def pinned(self, step: int) -> dict[int, SlotOfRank | Pending | None]:
        """What became of ``step`` in each rank of this node; see :meth:`.ArenaMemory.pinned`.

        None for a rank that has no slots for it: it will not be there.
        """
        found: dict[int, SlotOfRank | Pending | None] = {}
        for rank in self._ranks:
            found[rank] = None
            if self._kept_slots and (arena := self._of_rank.get(rank)) is not None:
                state = arena.memory.pinned(step)
                if isinstance(state, HeldSlot):
                    found[rank] = SlotOfRank(arena.memory, state)
                else:
                    found[rank] = state
        return found

    def why_none_is_kept(self) -> str:
        """Why ranks of this node keep no step, for people; empty: they do, or may still."""
        if self._limit == 0 or self._is_off:
            return "snapshots are off"
        if self._granted is not None and not self._kept_slots:
            return f"there is too little memory ({_OPTION})"
        return ""

    def last_steps(self) -> dict[int, int]:
        """The last step that each rank has ended, of those that have memory; -1: none."""
        return {
            rank: max(-1, self._of_rank[rank].memory.words[layout.LAST_STEP])
            for rank in self._ranks
            if rank in self._of_rank
        }

    def gave_up(self) -> set[int]:
        """The ranks that take none any more."""
        cycle = self._cycle
        return {rank for rank, it in self._of_rank.items() if it.memory.has_given_up_in(cycle)}

    def find(self, rank: int, snapshot: SnapshotId) -> SlotOfRank | None:
        """A snapshot of any rank, in the memory of this node, under its whole name."""
        for arena in (*self._arenas, *self._replicas.values()):
            for slot in arena.memory.all_held():
                named = self._with_term(slot.held)
                if named is not None and named.rank == rank and named.id == snapshot:
                    return SlotOfRank(arena.memory, slot)
        return None

    def memory_of(self, rank: int) -> ArenaMemory:
        """Of a rank of this node, made if it has none: its state comes from another node.

        Raises:
            ArenaError: There is no memory.
        """
        if rank not in self._of_rank:
            if text := self._make():
                raise ArenaError(text)
            self._of_rank[rank] = self._arenas[-1]
            self._show(rank)
        return self._of_rank[rank].memory

    def replica(self, rank: int) -> ArenaMemory:
        """Memory for copies of the snapshots of a rank of another node.

        Raises:
            ArenaError: There is no memory.
        """
        if rank not in self._replicas:
            fd = create("holdfast-copies")
            self._replicas[rank] = _Arena(ArenaMemory(fd))
        return self._replicas[rank].memory

    def drop_replicas(self, but: Collection[int]) -> None:
        """Give back the memory of replicas but those of these ranks. No process writes them."""
        for rank in [it for it in self._replicas if it not in but]:
            os.close(self._replicas.pop(rank).memory.fd)

    def copy_bytes_max(self) -> int:
        """The largest copy of another node's snapshot that is received here."""
        if self._slot_bytes:
            return 2 * self._slot_bytes  # shards differ a little
        left_kib = memory.available_kib() or 0
        most = (left_kib << 10) // SHARE if self._limit is None else self._limit
        return most // self._nproc

    # ------------------------------------------------------------ memory
    def on_event(self, happening: Happening) -> None:
        """Note that memory has run out: slots not needed are given back before the restart."""
        if isinstance(happening, RankKilled) and memory.ran_out(happening.rank.oom_before):
            self._oom_cycles.add(self._cycle)

    def _free(self, arena: _Arena, but: HeldSlot | None = None) -> None:
        """Give memory back to the kernel: it stays charged, and would be missing to a new rank."""
        for index in range(arena.memory.max_slots):
            has_memory = arena.memory.words[layout.slot(index) + layout.CAPACITY] != 0
            if has_memory and (but is None or index != but.slot):
                try:
                    arena.memory.release(index)
                except OSError as error:
                    LOGGER.warning("memory of a snapshot cannot be given back: %s", error)

    def _budget(self, slot_bytes: int, wanted: int) -> SlotsGranted | TooLittleMemory:
        left_kib = memory.available_kib()
        held = sum(arena.bytes for arena in (*self._arenas, *self._replicas.values()))
        left = None if left_kib is None else (left_kib << 10) + held
        limit = self._limit
        if len(self._oom_cycles) >= _LAST_OOM:
            limit = 0
        elif self._oom_cycles:
            wanted = min(wanted, 2)
        return grant(slot_bytes, wanted, self._nproc, left, limit)

    # ------------------------------------------------------------ requests
    def answer(self, request: Request) -> Answer:
        """Of a rank, or of a process that says that it is one."""
        if request.rank not in self._ranks:
            return Error(f"rank {request.rank} does not run under this launcher now"), ()
        match request:
            case OpenArena():
                return self._open(request)
            case SnapshotCost():
                return self._cost(request), ()
            case SnapshotUnusable():
                return self._unusable(request), ()

    def _open(self, request: OpenArena) -> Answer:
        self._awaiting.discard(request.rank)
        text = self._make_room(request)
        if not text and request.rank not in self._of_rank:
            text = self._make()
            if not text:
                self._of_rank[request.rank] = self._arenas[-1]
                self._show(request.rank)
        restore = self._beginning.restore
        arena = self._of_rank.get(request.rank)
        if text:
            self._say_off(text)
            # All ranks begin from the snapshot, or none: so it may be read, and no other be taken.
            if restore is not None and restore.file and arena is None:
                self._make()
                arena = self._of_rank[request.rank] = self._arenas[-1]
            if restore is None or arena is None:
                return Error(f"snapshots are off: {text}"), ()
        assert arena is not None
        n_slots = 0 if text or self._granted is None else self._granted.n_slots
        arena.memory.words[layout.N_SLOTS] = n_slots
        kept = self._kept_slots if n_slots else 0
        answer = Arena(n_slots, self._cycle, progress=self._progress, kept=kept)
        if restore is None:
            return answer, (arena.memory.fd,)
        if restore.world_size != self._world_size:
            other = OtherWorld(restore.snapshot, self._path_of(restore.file))
            return answer.but(other_world=other), (arena.memory.fd,)
        lost, times = restore.lost_steps, restore.times
        answer = answer.but(restore=restore.snapshot, lost_steps=lost, times=times)
        if restore.file:
            # A file that is not there is for the rank to find, and to report.
            file = self._file_of(restore.file, request.rank) or FileToRestore(restore.file, 0)
            return answer.but(file=file), (arena.memory.fd,)
        slot = self._restored(arena, request.rank)
        # Without it the rank finds another snapshot in the slot, or none, and reports that.
        return answer.but(slot=0 if slot is None else slot.slot), (arena.memory.fd,)

    def _make_room(self, request: OpenArena) -> str:
        """Budget memory for it, and for all ranks; why there is too little, or an empty text."""
        if self._limit == 0:
            return f"{_OPTION} is 0"
        if request.slot_bytes == 0:  # it asks for the snapshot that waits
            return ""
        if self._granted is not None and request.slot_bytes <= self._slot_bytes:
            return ""
        found = self._grant(request)
        if isinstance(found, TooLittleMemory):
            of = "a quarter of the memory that is left" if self._limit is None else _OPTION
            ran_out = "; memory has run out before" if self._oom_cycles else ""
            return (
                f"{count(self._nproc, 'rank')} need {shown(found.needs)} for two snapshots each of "
                f"{shown(request.slot_bytes)}, and may have {shown(found.limit)} "
                f"({of}){ran_out}. Give more with {_OPTION}"
            )
        self._granted, self._slot_bytes = found, request.slot_bytes
        said = found.n_slots, request.slot_bytes
        if said != self._said:
            self._said = said
            LOGGER.info(
                "snapshots in memory: %d of %s for each of %s, %s at most of %s (%s)",
                found.n_slots,
                shown(request.slot_bytes),
                count(self._nproc, "rank"),
                shown(found.bytes_max),
                shown(found.limit),
                "a quarter of the memory that is left" if self._limit is None else _OPTION,
            )
            self._event(schema.SnapshotsOn(found.n_slots, request.slot_bytes, found.bytes_max))
        return ""

    def _grant(self, request: OpenArena) -> SlotsGranted | TooLittleMemory:
        """Slots with those for kept steps, if all of them have room, and without them if not."""
        own, more = min(request.n_slots, layout.MAX_SLOTS), KEPT_SLOTS + PEER_SLOTS
        self._kept_slots = 0
        if self._keeps and not self._oom_cycles:
            own = min(own, layout.MAX_SLOTS - KEPT_SLOTS)
            found = self._budget(request.slot_bytes, own + more)
            if isinstance(found, SlotsGranted) and found.n_slots >= own + more:
                self._kept_slots = KEPT_SLOTS
                return found.but(n_slots=own + KEPT_SLOTS)
            LOGGER.warning(
                "no step is kept at another node: that needs %s more for each of %s (%s)",
                shown(more * request.slot_bytes),
                count(self._nproc, "rank"),
                _OPTION,
            )
        return self._budget(request.slot_bytes, own)

    def _make(self) -> str:
        """Make an arena; why there is none, or an empty text."""
        try:
            fd = create("holdfast-snapshots")
        except ArenaError as error:
            return str(error)
        arena = _Arena(ArenaMemory(fd))
        words = arena.memory.words
        words[layout.EVERY] = self._every
        if not self._arenas:
            self._show_node()
        for word, step in self._pins.items():
            words[word] = step
        self._arenas.append(arena)
        return ""

    def _say_off(self, text: str) -> None:
        if not self._is_off:
            self._is_off = True
            LOGGER.warning("snapshots are off: %s", text)
            self._event(schema.SnapshotsOff(text))

    def _cost(self, cost: SnapshotCost) -> Ok | Error:
        if cost.every < 1:
            return Error("one of so many steps: at least 1")
        is_last = self._costs.keys() | {cost.rank} == {*self._ranks}
        is_news = cost.rank not in self._costs
        self._costs[cost.rank] = cost
        if is_last and is_news and not self._every:
            costs = self._costs.values()
            step, every = max(it.step for it in costs), max(it.every for it in costs)
            self._measured(SnapshotsMeasured(self._cycle, step, every))
        return Ok()

    def _unusable(self, found: SnapshotUnusable) -> Ok | Error:
        restore = self._beginning.restore
        if restore is None or found.snapshot != restore.snapshot:
            return Error("no rank of this cycle begins from that snapshot")
        if all(it.rank != found.rank for it in self._refused):
            why = for_people(found.why, 500)
            is_damaged = found.is_damaged and not restore.file
            source = self._moved.get(found.rank, "")
            self._refused.append(Refused(found.snapshot, found.rank, why, is_damaged, source))
            step, cycle = found.snapshot.step, max(0, found.snapshot.cycle)
            about = found.rank, step, cycle, why, restore.file, is_damaged, source
            self._event(schema.SnapshotRefused(*about))
        return Ok()

    def close(self) -> None:
        """The job is over, and its ranks are gone: nothing needs the memory any more."""
        self.drop_replicas(())
        for arena in self._arenas:
            os.close(arena.memory.fd)
        self._arenas.clear()
        self._of_rank.clear()
