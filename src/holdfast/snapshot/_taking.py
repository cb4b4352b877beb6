"""Snapshots of a rank that has a launcher: restored once, then taken step by step.

Three threads: the main one walks, and copies in the step; one copies beside it; one reserves
memory, adds up sums and asks the launcher. The main thread waits for none but its own copy.
"""

from __future__ import annotations

import os
import statistics
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from operator import index
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from holdfast.arena.arena import ArenaMemory
from holdfast.arena.pure import layout
from holdfast.arena.pure.cadence import SAMPLES, cadence, is_due
from holdfast.arena.pure.messages import Arena, OtherWorld
from holdfast.arena.pure.plain_data import NotPlainError
from holdfast.arena.pure.slots import n_slots
from holdfast.arena.pure.snapshots import Held, SnapshotId
from holdfast.arena.pure.tensors_head import HeadError
from holdfast.base.clock import monotonic
from holdfast.base.rank_log import rank_logger
from holdfast.errors import SnapshotError
from holdfast.inplace.cuda import context_problem
from holdfast.snapshot._copy import Copying, Device, HostDevice
from holdfast.snapshot._files import mapped_file
from holdfast.snapshot._launcher_link import ChoiceUnknownError, LauncherLink, NoArenaError
from holdfast.snapshot._live_state import LiveState, StateChangedError, UnsupportedTensorError
from holdfast.snapshot._loading import load
from holdfast.snapshot._ring import Ring, Slot
from holdfast.snapshot._saved import DamagedError, MismatchError, is_damaged
from holdfast.snapshot._worker import Worker

if TYPE_CHECKING:
    from holdfast.snapshot._reader import SnapshotReader

LOGGER = rank_logger("holdfast.snapshot")
_NS = 1e9


def begin(
    link: LauncherLink, state: Mapping[str, Any], *, beside: bool | None, every: int | None
) -> Taking | None:
    """Get memory from the launcher; None: it gives none, as a line of the log says.

    Raises:
        SnapshotError: The state holds a value that a snapshot cannot; or it is not known whether
            the launcher gives memory.
    """
    live = LiveState(state)
    try:
        device = device_of(live)
        n_bytes = with_room(live.capture(0).head.n_bytes)
    except NotPlainError as error:
        raise SnapshotError(
            f"no snapshot can be taken: {error}. A snapshot holds tensors, arrays, and plain data "
            "(None, numbers, text, bytes, and lists, tuples, dicts and sets of them): convert the "
            "value to these, or leave it out"
        ) from error
    except (UnsupportedTensorError, HeadError) as error:
        raise SnapshotError(f"no snapshot can be taken: {error}") from error
    if beside is None:
        beside = device.has_copy_engine
    try:
        answer, fd = link.open_arena(n_bytes, n_slots(beside=beside))
    except ChoiceUnknownError as error:
        raise link.unknown(error) from error
    except NoArenaError as error:
        if link.rank == 0:
            LOGGER.warning("no snapshots are taken: %s", error)
        return None
    if not _is_first(link, answer.cycle):
        os.close(fd)
        if link.rank == 0:
            LOGGER.warning(
                "no snapshots are taken of another training in this process: a restart could not "
                "tell them apart. Give all parts of the state to the first Snapshots"
            )
        return None
    try:
        arena = ArenaMemory(fd)
    except OSError as error:
        os.close(fd)
        raise link.unknown(error) from error
    taking = Taking(link, live, device, arena, answer, n_bytes, beside=beside, every=every)
    link.takes(taking)
    return taking


_lives: dict[tuple[int, str, int], tuple[str, int]] = {}
"""By process, memory and cycle: the call that restarts in place, and its iteration."""


def _is_first(link: LauncherLink, cycle: int) -> bool:
    """No other training of this process has had this memory in this cycle and iteration."""
    life = os.getpid(), link.path, cycle
    call, iteration = _lives.setdefault(life, (link.call, -1))
    is_first = call == link.call and iteration < link.iteration
    if is_first:
        _lives[life] = call, link.iteration
    return is_first


def device_of(live: LiveState) -> Device:
    """Where the tensors are."""
    if "cuda" in live.device_types():
        from holdfast.snapshot._cuda import CudaDevice  # noqa: PLC0415 - for those that have one

        return CudaDevice()
    return HostDevice()


def with_room(n_bytes: int) -> int:
    """Memory for a file of so many bytes that grows a little from step to step."""
    return n_bytes + n_bytes // 64 + (1 << 16)


class NoMemoryError(Exception):
    """The state has outgrown the memory for snapshots; the text has the numbers."""


class Taking:
    """One life of a rank.

    Attributes:
        on_end: Called when no further snapshot will be taken.
    """

    def __init__(
        self,
        link: LauncherLink,
        live: LiveState,
        device: Device,
        arena: ArenaMemory,
        answer: Arena,
        granted: int,
        *,
        beside: bool,
        every: int | None,
    ) -> None:
        self.on_end: Callable[[], None] = _nothing
        self._link, self._live, self._device = link, live, device
        self._arena, self._answer = arena, answer
        self._source = link.source or arena
        self._abandoned = threading.Event()
        self._words = arena.words
        self._ring = Ring(arena, device)
        self._beside = beside
        self._no_memory: NoMemoryError | None = None
        self._n_slots = self._usable(answer)
        self._granted = granted
        self._every = every
        self._world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self._seen = -1
        self._to_prove = link.steps_to_prove
        """None: there is nothing to void."""
        self._copying: Copying | None = None
        self._copier, self._helper = Worker("holdfast-copy"), Worker("holdfast-snapshot")
        self._to_add_up: Slot | None = None
        self._preparing = 0
        self._costs: deque[float] = deque(maxlen=SAMPLES)
        self._waits: deque[float] = deque(maxlen=SAMPLES)
        self._steps: deque[float] = deque(maxlen=SAMPLES)
        self._ended_at, self._has_sent_cost = 0.0, False
        self._taken = self._skipped = self._spent_ns = 0
        own = weakref.ref(self)
        self._hook = register_optimizer_step_pre_hook(lambda *_: _fence(own))
        os.register_at_fork(after_in_child=lambda: _leave_to_parent(own))

    # ------------------------------------------------------------ restored
    @property
    def step(self) -> int:
        """The last that was taken or asked for, or the one that was restored."""
        return max(self._seen, 0)

    @property
    def other_world(self) -> OtherWorld | None:
        """A snapshot of another number of ranks that the program may read."""
        return self._answer.other_world

    def read_other_world(self) -> SnapshotReader:
        """See :meth:`.Snapshots.reader`."""
        from holdfast.snapshot._reader import SnapshotReader  # noqa: PLC0415 - loads all of DCP

        assert self.other_world is not None
        return SnapshotReader(self.other_world, self._link)

    def begin_at(self, step: int) -> None:
        """The training begins after so many steps, from state of the program's."""
        self._seen = self._words[layout.LAST_STEP] = step

    def restore(self) -> int | None:
        """The step that was put back; None: there is none to be put back.

        Raises:
            SnapshotError: It does not fit, or is damaged.
        """
        chosen = self._answer.restore
        self._words[layout.LAST_STEP] = 0 if chosen is None else chosen.step
        try:
            if chosen is not None:
                self._put_back()
                self._seen = chosen.step
        except Exception as error:  # of load_state_dict() too: it would fail at each restart
            if chosen is None:
                raise
            self._close_quietly()
            file = self._answer.file
            is_bad = file is None and (  # of which there is no other copy
                isinstance(error, DamagedError)
                or is_damaged(self._source, self._answer.slot, chosen, self._link.rank)
            )
            why = str(error)
            if not isinstance(error, (MismatchError, OSError)):
                why = f"{type(error).__name__}: {why}"
            folder = "" if file is None else os.path.dirname(file.path)  # noqa: PTH120 - a text
            raise self._link.unusable(chosen, why, is_damaged=is_bad, folder=folder) from error
        self._prepare(self._granted)  # when nothing waits for memory's speed any more
        return None if chosen is None else chosen.step

    def _put_back(self) -> None:
        chosen, file = self._answer.restore, self._answer.file
        assert chosen is not None
        memory, expected = self._in_memory(chosen) if file is None else mapped_file(file)
        saved = self._live.put_back(memory)
        if saved.step != chosen.step:
            raise MismatchError(f"its head is of step {saved.step}")
        total = load(saved.memory, *saved.pairs(), self._device.put)
        self._device.finish_puts()
        if expected is not None and total != expected:
            raise DamagedError(f"its bytes have changed: their sum is {total}, it was {expected}")
        self._live.finish()

    def _in_memory(self, chosen: SnapshotId) -> tuple[memoryview, int | None]:
        """Its bytes, and their sum, if it is known."""
        index, rank = self._answer.slot, self._link.rank
        found = self._source.held(index) if index < self._source.max_slots else None
        if found is None or found.held.id != chosen:
            raise MismatchError(f"slot {index} holds {found and found.held}, not {chosen}")
        if (found.held.rank, found.held.world_size) != (rank, self._world_size):
            raise MismatchError(
                f"it is of rank {found.held.rank} of {found.held.world_size}, and this is rank "
                f"{rank} of {self._world_size}"
            )
        memory = memoryview(self._source.map_slot(index, is_populated=True))[: found.n_bytes]
        return memory, self._source.sum_of(index)

    # ------------------------------------------------------------ taken
    def take(self, step: int, *, healthy: bool = True) -> bool:
        """See :attr:`Snapshots.take`."""
        began_at = monotonic()
        if self._ended_at and step == self._seen + 1:
            self._steps.append(began_at - self._ended_at)
        try:
            is_taken = self._take(index(step), healthy=healthy)
        except Exception as error:  # noqa: BLE001 - the training must not end for want of one
            self._end_for(error, step)
            return False
        self._ended_at = monotonic()
        if is_taken:
            self._note_cost(step, self._ended_at - began_at)
        return is_taken

    def _end_for(self, error: Exception, step: int) -> None:
        if (problem := context_problem()) is not None:  # the rank ends, with no checkpoint
            LOGGER.warning(
                "no snapshot of step %s, as the GPU of this rank has failed: %s", step, problem
            )
            self.close()
            return
        self._arena.give_up(self._answer.cycle, self._link.iteration)
        LOGGER.warning(
            "no snapshot of step %s, and none from here on; a restart begins from your "
            "checkpoint: %s",
            step,
            error,
            exc_info=None if isinstance(error, StateChangedError | NoMemoryError) else error,
        )
        self.close()
        self._arena.void_others(None)  # checkpoints will be newer than these

    def _take(self, step: int, *, healthy: bool) -> bool:
        if step <= self._seen:
            return False
        self._seen = self._words[layout.LAST_STEP] = step
        if not self._has_progress() or not healthy or not self._is_due(step):
            return False
        self._end_copy()
        captured = self._live.capture(step)
        n_bytes = captured.head.n_bytes
        slot = None
        if self._n_slots and self._ring.is_prepared(n_bytes, self._n_slots):
            if self._to_prove is not None:
                self._to_prove = None
                self._arena.void_others(None)
            slot = self._ring.take(step, n_bytes, self._n_slots)
        elif self._no_memory is not None:
            raise self._no_memory
        else:
            self._prepare(with_room(n_bytes))
        if slot is None:
            self._skipped += 1
            self._words[layout.SKIPPED] = self._skipped
            return False
        cycle = self._answer.cycle
        held = Held(self._link.rank, self._world_size, cycle, self._link.iteration, step)
        copying = Copying(self._device, self._ring, slot, captured, held, self._abandoned)
        if self._beside:
            copying.stage()
            self._copying = copying
            self._copier.do(lambda: self._run(copying, slot))
        else:
            copying.run()
            if copying.is_committed:
                self._on_committed(slot)
        return True

    def _has_progress(self) -> bool:
        """Whether enough steps are made to void the snapshots that this epoch does not go back to.

        Until then it takes none, and they stay: the launchers may go back to them. The first step
        that is taken then voids them.
        """
        if self._to_prove:
            self._to_prove -= 1
        return not self._to_prove

    def _is_due(self, step: int) -> bool:
        if self._every is not None:
            return step % self._every == 0
        return is_due(step, self._words[layout.EVERY], self._words[layout.EVERY_FROM])

    def _run(self, copying: Copying, slot: Slot) -> None:
        """In the thread that copies."""
        try:
            copying.run()
        except Exception:
            LOGGER.exception("a snapshot could not be copied")
            return
        if copying.is_committed:
            self._on_committed(slot)

    def _on_committed(self, slot: Slot) -> None:
        self._taken += 1
        self._words[layout.TAKEN] = self._taken
        self._words[layout.TAKEN_AT] = int(monotonic() * _NS)
        is_idle, self._to_add_up = self._to_add_up is None, slot
        if is_idle:
            self._helper.do(self._add_up)

    def _end_copy(self) -> None:
        """The copy before is committed, so that its slot is the newest; see ``pure/slots.py``."""
        copying, self._copying = self._copying, None
        if copying is None:
            return
        copying.wait()
        if copying.is_spoiled and self._beside:
            self._beside, self._n_slots = False, self._n_slots - 1
            LOGGER.warning(
                "weights changed while a snapshot was copied beside the step: not by the step of a "
                "torch.optim.Optimizer. From here on they are copied in the step"
            )

    def fence(self) -> None:
        """Before an optimizer's step."""
        copying = self._copying
        if copying is not None:
            began_at = monotonic()
            copying.fence()
            waited = monotonic() - began_at
            if self._costs:
                self._costs[-1] += waited
            self._spend(waited)
            self._ended_at += waited

    def _spend(self, cost_s: float) -> None:
        self._spent_ns += int(cost_s * _NS)
        self._words[layout.SPENT_NS] = self._spent_ns

    def _note_cost(self, step: int, cost_s: float) -> None:
        self._spend(cost_s)
        self._costs.append(cost_s)
        if not self._steps:
            return
        self._waits.extend(self._device.waits())
        waited = statistics.median(self._waits) if self._waits else 0.0
        cost = statistics.median(self._costs) + waited
        step_s = statistics.median(self._steps)  # of the host, which its device holds up
        step_s -= waited if waited < step_s else 0.0
        self._words[layout.TAKE_NS] = int(cost * _NS)
        self._words[layout.STEP_NS] = int(step_s * _NS)
        is_known = len(self._costs) == SAMPLES and self._every is None
        if is_known and not self._has_sent_cost and not self._words[layout.EVERY]:
            self._has_sent_cost = True
            every = cadence(cost, step_s)
            self._helper.do(lambda: self._send_cost(step, every))

    # ------------------------------------------------------------ in the helper's thread
    def _prepare(self, n_bytes: int) -> None:
        if n_bytes > self._preparing:
            self._preparing = n_bytes
            self._helper.do(lambda: self._reserve(n_bytes))

    def _reserve(self, n_bytes: int) -> None:
        try:
            if n_bytes > self._granted:
                answer, fd = self._link.open_arena(n_bytes, n_slots(beside=self._beside))
                os.close(fd)  # of the memory that is mapped
                self._granted = n_bytes
                self._n_slots = self._usable(answer)
            self._ring.prepare(n_bytes, self._n_slots)
        except (NoArenaError, OSError) as error:
            self._no_memory = NoMemoryError(
                f"rank {self._link.rank} has no memory for {self._n_slots} snapshots of "
                f"{n_bytes / 1e6:.1f} MB: {error}"
            )

    def _usable(self, answer: Arena) -> int:
        """Slots that are used: three beside the step, or two in it, and kept ones; or none."""
        given, kept = answer.n_slots, answer.kept
        self._beside = self._beside and given >= n_slots(beside=True, kept=kept)
        needed = n_slots(beside=self._beside, kept=kept)
        if given >= needed:
            return needed
        self._no_memory = NoMemoryError(
            f"the launcher gives rank {self._link.rank} memory for {given}, and {needed} are needed"
        )
        return 0

    def _add_up(self) -> None:
        slot, self._to_add_up = self._to_add_up, None
        if slot is not None:
            self._ring.add_up(slot)

    def _send_cost(self, step: int, every: int) -> None:
        try:
            self._link.send_cost(step, every)
        except NoArenaError as error:
            LOGGER.debug("the launcher does not know what snapshots cost: %s", error)

    # ------------------------------------------------------------ ended
    def close(self) -> None:
        """Take no more; wait for the copy that is under way."""
        self.on_end()
        self._end_copy()
        self._close_quietly()

    def abandon(self) -> None:
        """The computation is about to be cut short: commit no state that it has not come to."""
        self._abandoned.set()

    def leave(self) -> bool:
        """The function that restarts in place was left. False: a thread of this one still runs."""
        self.on_end()
        self._abandoned.set()
        self._hook.remove()
        is_over = self._copier.close(_CLOSE_S) and self._helper.close(_CLOSE_S)
        if is_over:
            self._ring.close()
            for fd in {self._arena.fd, self._source.fd}:
                os.close(fd)
        return is_over

    def _close_quietly(self) -> None:
        self._hook.remove()
        self._copier.close(_CLOSE_S)
        self._helper.close(_CLOSE_S)
        self._ring.close()


_CLOSE_S = 30.0


def _nothing() -> None:
    pass


def _fence(taking: weakref.ref[Taking]) -> None:
    if (own := taking()) is not None:
        own.fence()


def _leave_to_parent(taking: weakref.ref[Taking]) -> None:
    """In a forked child: the arena is its parent's."""
    if (own := taking()) is not None:
        own.on_end()
        own._copying = None  # noqa: SLF001 - of this module
