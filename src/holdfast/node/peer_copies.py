"""The process that copies snapshots to other nodes and holds theirs, for its launcher.

One that dies is started again, at the same port and with the memory that it had: copies that were
under way are lost, and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.arena.pure.peer_messages import (
    FROM_COPIES,
    ConfigureCopies,
    CopiesDropped,
    CopyNotPushed,
    CopyPushed,
    CopyReceived,
    CopyRefused,
    CopyUnderWay,
    DropCopies,
    HoldCopies,
    PushCopy,
)
from holdfast.base import clock
from holdfast.base.pure.budget import Budget
from holdfast.base.pure.codec import decode, encode
from holdfast.base.pure.common_events import Note
from holdfast.base.pure.value import Value
from holdfast.evidence.pure.failure import describe_exit
from holdfast.net.tcp import bound_socket
from holdfast.node.console import LOGGER, log_note
from holdfast.node.processes.controlled_process import start_copies
from holdfast.node.processes.helper_process import HelperProcess

if TYPE_CHECKING:
    from holdfast.arena.arena import ArenaMemory
    from holdfast.arena.pure.snapshots import Held
    from holdfast.base.processes.child import Reaped
    from holdfast.net.channel import Channel
    from holdfast.net.loop import Loop
    from holdfast.net.pure.frames import Message

DEATHS, DEATHS_PERIOD_S = 5, 60.0
"""Of processes that are replaced, within so many seconds."""
_BACKLOG = 128


class CopiesEnded(Value):
    """No copy is sent or received any more: the process cannot be run. ``why``: for people."""

    why: str


CopyOutcome = CopyPushed | CopyNotPushed | CopyUnderWay | CopyReceived | CopyRefused | CopiesEnded


class PeerCopies(HelperProcess):
    """One such process, and its successors. Main thread only.

    Args:
        config: Its first message.
        on_outcome: Called with each of its messages.

    Attributes:
        port: Where the processes of other nodes reach it, for as long as this launcher lives.
    """

    name = "the process for copies of snapshots"

    def __init__(
        self,
        config: ConfigureCopies,
        loop: Loop,
        job: str,
        on_outcome: Callable[[CopyOutcome], None],
    ) -> None:
        """Start it. Raises OSError where it cannot listen or be started."""
        super().__init__(loop)
        self._config = config
        self._job = job
        self._on_outcome = on_outcome
        self._deaths = Budget(DEATHS, DEATHS_PERIOD_S)
        self._listener = bound_socket(0)
        self._listener.listen(_BACKLOG)
        self.port = int(self._listener.getsockname()[1])
        self._held: dict[int, tuple[ArenaMemory, int]] = {}
        self._dropping: dict[int, list[Callable[[], None]]] = {}
        self._pushing: set[int] = set()
        self._number = 0
        try:
            self._start()
        except OSError:
            self._listener.close()
            raise

    def _start(self) -> None:
        process = start_copies(self._listener.fileno(), encode(self._config), self._job)
        self._connect(process)
        for rank in self._held:
            self._send_memory(rank)

    # ------------------------------------------------------------ orders
    def hold(self, rank: int, memory: ArenaMemory, bytes_max: int) -> None:
        """Copies of snapshots of ``rank`` may be written there, until :meth:`drop`."""
        self._held[rank] = memory, bytes_max
        if self._peer is not None:
            self._send_memory(rank)

    def _send_memory(self, rank: int) -> None:
        assert self._peer is not None
        memory, bytes_max = self._held[rank]
        if not self._peer.send_with(encode(HoldCopies(rank, bytes_max)), [memory.fd]):
            LOGGER.warning(
                "snapshots of rank %d are not taken in: the process for copies (pid %d) does not "
                "read",
                *(rank, self._pid),
            )

    def drop(self, rank: int, then: Callable[[], None]) -> None:
        """No copies are written there any more when ``then`` is called."""
        if self._held.pop(rank, None) is None or self._peer is None:
            then()
            return
        self._dropping.setdefault(rank, []).append(then)
        self._peer.send(encode(DropCopies(rank)))

    def push(self, held: Held, memory: ArenaMemory, kept: int, host: str, port: int) -> int | None:
        """Send a snapshot to the process of another node.

        ``kept``: a step that is not overwritten there. Returns the number that the outcome will
        have; None: the process takes no orders.
        """
        number = self._number + 1
        order = encode(PushCopy(number, held, kept, host, port))
        if self._peer is None or not self._peer.send_with(order, [memory.fd]):
            return None
        self._number = number
        self._pushing.add(number)
        return number

    # ------------------------------------------------------------ outcomes
    def _on_message(self, _peer: Channel, frame: Message) -> None:
        message = decode(FROM_COPIES, frame)
        match message:
            case Note():
                log_note(message)
            case CopiesDropped(rank):
                self._dropped(rank)
            case CopyPushed(number) | CopyNotPushed(number):
                if number in self._pushing:
                    self._pushing.discard(number)
                    self._on_outcome(message)
            case _:
                self._on_outcome(message)

    def _dropped(self, rank: int) -> None:
        for then in self._dropping.pop(rank, ()):
            then()

    # ------------------------------------------------------------ started and ended
    def _on_end(self, reaped: Reaped) -> None:
        how = describe_exit(reaped.exit_code)
        for rank in list(self._dropping):
            self._dropped(rank)
        lost, self._pushing = sorted(self._pushing), set()
        if self._deaths.take(clock.monotonic()):
            LOGGER.warning(
                "the process for copies of snapshots (pid %d) has ended: %s; it is started again",
                *(reaped.pid, how),
            )
            self._start_again()
        else:
            self._give_up(f"it has ended for the {DEATHS + 1}th time within a minute: {how}")
        for number in lost:
            self._on_outcome(CopyNotPushed(number, f"its process has ended: {how}"))

    def _start_again(self) -> None:
        try:
            self._start()
        except OSError as error:
            self._give_up(f"it cannot be started: {error}")

    def _give_up(self, why: str) -> None:
        LOGGER.warning("no snapshots are copied to other nodes any more: %s", why)
        self._on_outcome(CopiesEnded(why))

    def end(self) -> None:
        """The job is over."""
        super().end()
        self._listener.close()
