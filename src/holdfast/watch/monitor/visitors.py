"""Who a rank monitor serves: everybody may call, one has the seat.

    connection ──hello──► waits ──seat free──► seated ──bye, death, end of its cycle──► gone
         └─ not ours, senseless, too many, too long ──► turned away, and told why

A seat is held for one process, not for a connection: a rank that calls again keeps it, and so does
one that was adopted from a page and has not called yet. The helper thread of the seated process has
a connection of its own.
"""

from __future__ import annotations

from holdfast.base import clock
from holdfast.base.processes import proc
from holdfast.base.pure.codec import decode, encode
from holdfast.base.pure.deadlines import earliest
from holdfast.evidence.pure.evidence import Operations
from holdfast.net.channel import RefusedError
from holdfast.net.pure.frames import MAX_FRAME_BYTES
from holdfast.net.server import Server
from holdfast.watch.pure.rank_messages import (
    FROM_RANK,
    Alive,
    Armed,
    Bye,
    Counted,
    Dumped,
    Error,
    Hello,
    Helper,
    Limits,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Protocol

    from holdfast.net.channel import Channel
    from holdfast.net.descriptors import Descriptors
    from holdfast.net.pure.frames import Message as Frame
    from holdfast.watch.pure.rank_messages import Ok, ToRank

    class Host(Protocol):
        """Serves whoever is seated."""

        def catch_up(self) -> None:
            """Learn what the launcher has said, before anybody is let in.

            A rank is started after "cycle" was sent to us, so it must not be judged by an older
            one.
            """

        def is_closing(self) -> bool:
            """Nobody is let in any more."""

        def warns(self, line: str) -> None:
            """Log a line about a process that was cut off, or about missing descriptors."""

        def rejects(self, pid: int, hello: Hello) -> str | None:
            """Why process ``pid`` does not get the seat, free or not; None: it may."""

        def greet(self, visitor: Visitor, seat: Seat, *, is_new: bool) -> None:
            """Welcome ``visitor``, who has the seat now; ``is_new``: for another process."""

        def answer(self, seat: Seat, message: Armed | Limits | Bye) -> Ok:
            """Do what the seated rank asks for."""

        def helper_said(self, message: Alive | Operations | Dumped | Counted) -> None:
            """The helper thread of the seated rank has answered."""

        def holds(self, seat: Seat) -> bool:
            """The rank has closed its connection; whether the seat is kept for it."""

        def yields(self, seat: Seat) -> bool:
            """Whether a seat that is kept may be given to another process."""

        def left(self, seat: Seat, why: str) -> None:
            """The seat will be free in a moment; ``why`` completes "the rank ..."."""


WAIT_FOR_SEAT_S = 180.0
"""How long a second rank waits until the first one has left."""
_CLOCKS_APART_S_MAX = 300.0
"""More than a hello can have waited to be read: two clocks that do not count the same time."""
_FIRST_LOOK_S, _LOOK_S = 0.01, 1.0
"""Between looks at a seated process that holds no connection, where no pidfd tells of its end."""
_VISITORS_MAX = 64
"""Without a hello, and as many that wait for the seat."""
_HELLO_FIRST = "say hello first, then wait for the welcome"


class Visitor:
    """A connection that has said hello: waits for the seat, has it, or is turned away."""

    __slots__ = ("channel", "give_up_at", "hello", "pid")

    def __init__(self, channel: Channel, hello: Hello) -> None:
        self.channel = channel
        self.pid = channel.pid
        self.hello = hello
        self.give_up_at: float | None = None  # how long it may wait for the seat

    def send(self, message: ToRank) -> None:
        """Tell it."""
        self.channel.send(encode(message))


class Seat:
    """The one rank that is served.

    Attributes:
        visitor: Its connection; ``None`` while an adopted rank has not called.
        helper: That of its helper thread, if it has one.
    """

    __slots__ = ("helper", "process", "rank", "visitor")

    def __init__(self, rank: int, process: proc.Process, visitor: Visitor | None) -> None:
        self.rank = rank
        self.process = process
        self.visitor = visitor
        self.helper: Visitor | None = None


class Visitors:
    """Lets in, seats, and turns away.

    Attributes:
        seat: The one that is taken; ``None``: free.
    """

    def __init__(self, listener: socket.socket, descriptors: Descriptors, host: Host) -> None:
        self.seat: Seat | None = None
        self._server = Server(
            listener,
            descriptors,
            self._on_first_message,
            host.warns,
            greeting="hello",
            unauthenticated_max=_VISITORS_MAX,
            refusal=lambda why: encode(Error(why)),
            may_accept=self._may_accept,
        )
        self._descriptors = descriptors
        self._host = host
        self._waiting: list[Visitor] = []
        self._look_at: float | None = None
        self._look_again_s = _FIRST_LOOK_S

    def open(self) -> None:
        """Let people in from now on."""
        self._server.open()

    # ------------------------------------------------------------ waiting

    def next_deadline(self) -> float | None:
        """When the first of those who wait has waited long enough, or the seat is looked at."""
        waiting = (visitor.give_up_at for visitor in self._waiting)
        return earliest(self._server.next_deadline(), self._look_at, *waiting)

    def dismiss_late(self, now: float) -> None:
        """Turn away who has waited long enough."""
        self._server.tick(now)
        for visitor in list(self._waiting):
            if visitor.give_up_at is not None and now >= visitor.give_up_at:
                self.turn_away(visitor, f"no place to be served within {WAIT_FOR_SEAT_S:g} s")

    def dismiss_all(self, why: str) -> None:
        """Turn away who waits."""
        self._server.dismiss(why)
        for visitor in list(self._waiting):
            self.turn_away(visitor, why)

    def turn_away(self, visitor: Visitor, why: str) -> None:
        """Say why, and close the connection."""
        visitor.send(Error(why))
        self._end_visit(visitor)

    # ------------------------------------------------------------ coming

    def _may_accept(self) -> bool:
        self._host.catch_up()
        return not self._host.is_closing()

    def _on_first_message(self, channel: Channel, frame: Frame) -> None:
        message = decode(FROM_RANK, frame)
        if isinstance(message, Hello):
            visitor = self._let_in(channel, message)
            if self._is_welcome(visitor, message):
                if len(self._waiting) >= _VISITORS_MAX:
                    self.turn_away(self._waiting[0], "too many connections wait here")
                self._waiting.append(visitor)
                self._admit(visitor)
        elif isinstance(message, Helper):
            pid = channel.pid or message.pid
            self._admit_helper(self._let_in(channel, Hello(message.rank, pid)), pid)
        else:
            raise RefusedError(_HELLO_FIRST)

    def _let_in(self, channel: Channel, hello: Hello) -> Visitor:
        visitor = Visitor(channel, hello)
        self._server.admit(
            channel,
            lambda _, frame: self._on_message(visitor, frame),
            lambda _: self._end_visit(visitor),
            MAX_FRAME_BYTES,
        )
        return visitor

    def _is_welcome(self, visitor: Visitor, hello: Hello) -> bool:
        """Whether it may have the seat, now or later; if not, it is turned away."""
        now = clock.monotonic()
        apart_s = 0.0 if hello.clock_s is None else abs(now - hello.clock_s)
        if apart_s > _CLOCKS_APART_S_MAX:
            why: str | None = (
                f"its clock (CLOCK_MONOTONIC) and its monitor's are {apart_s:.0f} s apart, as in "
                "different time namespaces; run launcher and ranks in the same one"
            )
        else:
            why = self._host.rejects(visitor.pid, hello)
        if why is not None:
            self.turn_away(visitor, why)
            return False
        visitor.hello, visitor.give_up_at = hello, now + WAIT_FOR_SEAT_S
        return True

    def _on_message(self, visitor: Visitor, frame: Frame) -> None:
        seat = self.seat
        is_seated = seat is not None and seat.visitor is visitor
        message = decode(FROM_RANK, frame)
        if isinstance(message, Hello) and is_seated:
            if self._is_welcome(visitor, message):
                self._admit(visitor)
        elif (
            isinstance(message, (Alive, Operations, Dumped, Counted))
            and seat
            and seat.helper is visitor
        ):
            self._host.helper_said(message)
        elif seat is None or not is_seated or not isinstance(message, (Armed, Limits, Bye)):
            raise RefusedError(_HELLO_FIRST)
        else:
            visitor.send(self._host.answer(seat, message))

    def _admit(self, visitor: Visitor) -> None:
        """Give the seat to a visitor if it is free, or held for the very same process.

        Or held for one that has left, and makes room.
        """
        hello = visitor.hello
        pid = visitor.pid or hello.pid  # 0: from a pid namespace that we don't see
        seat = self.seat
        is_new = seat is None or (seat.process.pid != pid and self._host.yields(seat))
        if seat is None or is_new:
            try:
                process = proc.Process(pid)
            except (ProcessLookupError, OverflowError):
                self.turn_away(visitor, f"there is no process {pid}")
                return
            self._free("has left, and another process has its place")
            seat = Seat(hello.rank, process, visitor)
            self.take(seat)
        elif seat.visitor is None and seat.process.pid == pid:
            seat.visitor = visitor
        elif hello.by_steps and seat.process.pid != pid:  # it is inside a step, and must not wait
            self.turn_away(visitor, f"process {seat.process.pid} is watched")
            return
        elif seat.visitor is not visitor:
            self._begin_to_look(seat)  # a fork of the rank may hold its connection open
            return
        if visitor in self._waiting:
            self._waiting.remove(visitor)
        self._host.greet(visitor, seat, is_new=is_new)

    def _admit_helper(self, visitor: Visitor, pid: int) -> None:
        """Serve the helper thread of the seated process, and of no other."""
        seat = self.seat
        if seat is None or seat.process.pid != pid:
            self.turn_away(visitor, f"process {pid} is not the rank that is served")
            return
        before, seat.helper = seat.helper, visitor
        if before is not None:
            self._end_visit(before)

    def take(self, seat: Seat) -> None:
        """Seat somebody; the seat must be free."""
        self.seat = seat
        fd = seat.process.fileno()
        if fd >= 0:
            self._descriptors.watch(fd, lambda: self._on_rank_ended(seat))
        elif seat.visitor is None:
            self._begin_to_look(seat)

    # ------------------------------------------------------------ leaving

    def _end_visit(self, visitor: Visitor) -> None:
        """Close a connection; if it was the rank's, the rank is forgotten."""
        visitor.channel.close()
        if visitor in self._waiting:
            self._waiting.remove(visitor)
        seat = self.seat
        if seat is not None and seat.helper is visitor:
            seat.helper = None
        if seat is None or seat.visitor is not visitor:
            return
        if self._host.holds(seat):
            seat.visitor = None
            self._begin_to_look(seat)
            self._call_next()
        else:
            self.vacate("closed its connection")

    def _begin_to_look(self, seat: Seat) -> None:
        """Where this kernel has no pidfds, nor does the rank's connection say that it ended."""
        if seat.process.fileno() < 0:
            self._look_again_s = _FIRST_LOOK_S
            self._look_at = clock.monotonic() + self._look_again_s

    def look_for_end(self, now: float) -> None:
        """Vacate the seat if its rank, whose end wakes nobody, is found to have ended."""
        if self.seat is None or self._look_at is None or now < self._look_at:
            return
        if self.seat.visitor is not None and not self._waiting:
            self._look_at = None  # its connection will tell
            return
        self._look_again_s = min(2 * self._look_again_s, _LOOK_S)
        self._look_at = now + self._look_again_s
        self._on_rank_ended(self.seat)

    def _on_rank_ended(self, seat: Seat) -> None:
        if self.seat is seat and not seat.process.is_alive():
            self.vacate("died")

    def vacate(self, why: str) -> None:
        """Forget the rank, if there is one, and call the next."""
        self._free(why)
        self._call_next()

    def _free(self, why: str) -> None:
        seat = self.seat
        if seat is None:
            return
        self._host.left(seat, why)
        self.seat = None
        self._look_at = None
        if seat.process.fileno() >= 0:
            self._descriptors.forget(seat.process.fileno())
        seat.process.close()
        for visitor in (seat.visitor, seat.helper):
            if visitor is not None:
                self._end_visit(visitor)

    def _call_next(self) -> None:
        for visitor in list(self._waiting):
            self._admit(visitor)
