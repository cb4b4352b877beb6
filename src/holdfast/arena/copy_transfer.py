"""One copy of a snapshot, from a slot here to a slot of another node: both ends. Each waits.

A copy counts when its slot is committed, after all bytes have come, with the right checksum, and
the sender has looked that its rank did not write there meanwhile. Until then the slot is void, so
either process may die at any instant.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable

from holdfast.arena.arena import ArenaMemory, HeldSlot
from holdfast.arena.pure import layout
from holdfast.arena.pure.peer_messages import (
    BEGINNINGS,
    DECISIONS,
    ENDS,
    FIRST_ANSWERS,
    NONCE_BYTES,
    SECOND_ANSWERS,
    SILENT_S,
    CopyBegins,
    CopyDropped,
    CopyEnds,
    CopyHeld,
    CopySecret,
    CopyTurnedDown,
    CopyWanted,
    GreetReceiver,
    PushCopy,
    SenderProof,
    is_nonce,
    slot_for,
)
from holdfast.arena.pure.snapshots import Held
from holdfast.arena.slot_stream import LinkError, SlotStream
from holdfast.base import clock
from holdfast.base.pure.never import assert_never
from holdfast.net.tcp import tune

_CONNECT_S = 10.0
STALLED_S = 5.0
"""A copy without a byte for so long makes way for another one of the same rank."""
_SLOTS = 2
"""That a receiver uses of memory in which no rank has taken snapshots."""


class NotCopiedError(Exception):
    """The copy is not there; the text says why."""


# ---------------------------------------------------------------- sent
def push(memory: ArenaMemory, order: PushCopy, secret: CopySecret) -> None:
    """Send a snapshot; returns when the other node has committed it.

    Raises:
        NotCopiedError: It is not there, or that is not known.
    """
    found = _found(memory, order.held)
    if found is None:
        raise NotCopiedError(f"{_shown(order.held)} is not in memory any more")
    peer = f"the process for copies at {order.host}, port {order.port},"
    try:
        connected = socket.create_connection((order.host, order.port), _CONNECT_S)
    except OSError as error:
        raise NotCopiedError(f"{peer} cannot be reached: {error.strerror or error}") from error
    tune(connected, SILENT_S)
    with SlotStream(connected) as stream:
        try:
            _greet(stream, secret)
            _send(stream, memory, found, order.kept)
        except LinkError as error:
            raise NotCopiedError(f"{peer} {error}") from error


def _found(memory: ArenaMemory, held: Held) -> HeldSlot | None:
    """The slot that holds it; terms are not in the memory."""
    of = held.rank, held.world_size, held.id
    each = memory.all_held()
    return next((it for it in each if (it.held.rank, it.held.world_size, it.held.id) == of), None)


def _greet(stream: SlotStream, secret: CopySecret) -> None:
    own = os.urandom(NONCE_BYTES).hex()
    stream.say(GreetReceiver(secret.job, own))
    answer = stream.next_message(FIRST_ANSWERS)
    if isinstance(answer, CopyTurnedDown):
        raise LinkError(f"turned this process down: {answer.why}")
    if not is_nonce(answer.nonce) or not secret.is_proof(
        answer.proof, "receiver", own, answer.nonce
    ):
        raise LinkError("does not have the secret of this job")
    stream.say(SenderProof(secret.proof("sender", own, answer.nonce)))
    admitted = stream.next_message(SECOND_ANSWERS)
    if isinstance(admitted, CopyTurnedDown):
        raise LinkError(f"turned this process down: {admitted.why}")


def _send(stream: SlotStream, memory: ArenaMemory, found: HeldSlot, kept: int) -> None:
    stream.say(CopyBegins(found.held, found.n_bytes, kept))
    if _decision(stream) is not None:
        return
    offset = layout.slot_offset(found.slot)
    with (
        memory.map_slot(found.slot) as mapped,
        memoryview(mapped) as whole,
        whole[: found.n_bytes] as view,
    ):
        crc = stream.send_slot(memory.fd, offset, view)
    total = memory.sum_of(found.slot)
    # The kernel may still read the memory for bytes that are on their way: the sum finds those.
    if memory.held(found.slot) != found:
        stream.say(CopyDropped())
        raise LinkError("did not get it: the rank has written there meanwhile")
    stream.say(CopyEnds(crc, total))
    if _decision(stream) is None:
        raise LinkError("asked for the bytes twice")


def _decision(stream: SlotStream) -> CopyHeld | None:
    match stream.next_message(DECISIONS):
        case CopyTurnedDown(why):
            raise LinkError(f"has not taken it: {why}")
        case CopyHeld() as held:
            return held
        case CopyWanted():
            return None


# ---------------------------------------------------------------- received
class CopyMemory:
    """Memory for copies of one rank's snapshots; one copy is received at a time.

    Attributes:
        is_dropped: No more may be written.
    """

    def __init__(self, fd: int, bytes_max: int) -> None:
        """``fd`` is closed by :meth:`close`.

        Raises:
            ArenaError: It is no memory for snapshots.
        """
        self.memory = ArenaMemory(fd)
        self.memory.unclaim()  # of a process that died
        self.bytes_max = bytes_max
        self.busy = threading.Lock()
        self.is_dropped = False
        self.stream: SlotStream | None = None
        self.last_byte_at = 0.0
        """When bytes of it came last."""

    def claim(self) -> bool:
        """Take the memory for one copy; a stalled one before it is given up. False: it is in use.

        Its sender may be a node that was lost, and another one has the same snapshot.
        """
        if self.busy.acquire(blocking=False):
            return True
        if (stream := self.stream) is None or clock.monotonic() < self.last_byte_at + STALLED_S:
            return False
        stream.hang_up()
        return self.busy.acquire(timeout=STALLED_S)

    def close(self) -> None:
        """Give up the copy that is being received, and wait until its thread writes no more."""
        self.is_dropped = True
        if (stream := self.stream) is not None:
            stream.hang_up()
        with self.busy:
            os.close(self.memory.fd)

    def room_for(self, begins: CopyBegins) -> int | None:
        """The slot for a copy, which holds no snapshot from now on; None: it is held already.

        Raises:
            LinkError: There is none.
            OSError: There is no memory for it.
        """
        memory, held = self.memory, begins.held
        if _found(memory, held) is not None:
            return None
        slots = memory.slots() or range(min(_SLOTS, memory.max_slots))
        usable = {index: of.held if (of := memory.held(index)) else None for index in slots}
        index = slot_for(usable, memory.pins() | {begins.kept}, is_listed=memory.is_listed)
        if index is None:
            raise LinkError(self._why_not())
        memory.reserve(index, begins.n_bytes)
        try:
            memory.claim(index, held.step)
            if not memory.may_write(index):
                raise LinkError(self._why_not())
            memory.begin(index)
        finally:
            memory.unclaim()
        return index

    def _why_not(self) -> str:
        if self.memory.is_listed:
            return "would overwrite a snapshot that the next cycle may begin from"
        return "would overwrite the step that is kept"


class Receiving:
    """One copy that is received.

    Args:
        copies: Memory by rank.
        under_way: Called often while bytes come, with the rank.
    """

    def __init__(
        self,
        stream: SlotStream,
        copies: Callable[[int], CopyMemory | None],
        under_way: Callable[[int], None],
    ) -> None:
        self._stream = stream
        self._copies = copies
        self._under_way = under_way
        self.held: Held | None = None

    def run(self) -> Held:
        """Receive it; returns its name when it is committed.

        Raises:
            LinkError: It is not here. The sender knows why, if it is still there.
        """
        begins = self._stream.next_message(BEGINNINGS)
        self.held = held = begins.held
        try:
            self._receive(begins)
        except LinkError as error:
            self._turn_down(str(error))
            raise
        except OSError as error:
            why = f"there is no memory for it: {error.strerror or error}"
            self._turn_down(why)
            raise LinkError(why) from error
        with contextlib.suppress(LinkError):  # it is here, whatever the sender believes
            self._stream.say(CopyHeld())
        return held

    def _turn_down(self, why: str) -> None:
        with contextlib.suppress(LinkError):
            self._stream.say(CopyTurnedDown(why))

    def _receive(self, begins: CopyBegins) -> None:
        held = begins.held
        copies = self._copies(held.rank)
        if copies is None:
            raise LinkError(f"this node holds no copies of rank {held.rank}")
        if held.step < 1 or not held.rank < held.world_size:
            raise LinkError(f"{_shown(held)} is not one that a rank takes")
        if not 0 < begins.n_bytes <= copies.bytes_max:
            raise LinkError(
                f"it has {begins.n_bytes} bytes, and there is room for {copies.bytes_max}"
            )
        if not copies.claim():
            raise LinkError(f"another copy of rank {held.rank} is being received")
        try:
            copies.stream, copies.last_byte_at = self._stream, clock.monotonic()
            if copies.is_dropped:
                raise LinkError(f"this node holds no copies of rank {held.rank}")
            if (index := copies.room_for(begins)) is not None:
                self._fill(copies, index, begins)
        finally:
            copies.stream = None
            copies.busy.release()

    def _fill(self, copies: CopyMemory, index: int, begins: CopyBegins) -> None:
        memory, stream, held = copies.memory, self._stream, begins.held

        def going_on(_at: int) -> None:
            copies.last_byte_at = clock.monotonic()
            if copies.is_dropped:
                raise LinkError(f"this node holds no copies of rank {held.rank} any more")
            self._under_way(held.rank)

        with (
            memory.map_slot(index) as mapped,
            memoryview(mapped) as whole,
            whole[: begins.n_bytes] as view,
        ):
            stream.say(CopyWanted())
            crc = stream.receive_slot(view, going_on)
        match stream.next_message(ENDS):
            case CopyDropped():
                raise LinkError("the rank has written there meanwhile")
            case CopyEnds(crc32, total):
                if crc32 != crc:
                    raise LinkError(f"its checksum is {crc}, the sender's {crc32}")
                if copies.is_dropped:
                    raise LinkError(f"this node holds no copies of rank {held.rank} any more")
                memory.commit(index, held, begins.n_bytes)
                if total is not None:
                    memory.store_sum(index, held.step + 1, total)
            case never:
                assert_never(never)


def _shown(held: Held) -> str:
    return f"the snapshot of step {held.step} of rank {held.rank}"
