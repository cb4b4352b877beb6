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
from holdfast.base.pure.codec import MessageError, decode, encode
from holdfast.evidence.pure.evidence import Operations
from holdfast.net.acceptor import Acceptor
from holdfast.net.channel import Channel, is_trusted
from holdfast.net.pure.admission import SILENT_S, Admission
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

        def refuses(self, error: OSError) -> None:
            """There is no descriptor for who calls, and he is refused; told when that begins."""

        def complains(self, pid: int, what: str) -> None:
            """Process ``pid`` was cut off; ``what`` it did completes "process ...", for people."""

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


class Visitor:
    """A connection to the listener: asks for the seat by its hello, has it, or is turned away."""

    __slots__ = ("channel", "fd", "give_up_at", "hello", "pid")

    def __init__(self, channel: Channel, pid: int) -> None:
        self.channel = channel
        self.fd = channel.fileno()
        self.pid = pid
        self.hello: Hello | None = None
        self.give_up_at: float | None = None  # with a hello: how long it may wait for the seat

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
        self._acceptor = Acceptor(listener, host.refuses)
        self._descriptors = descriptors
        self._host = host
        self._waiting: list[Visitor] = []
        self._admission = Admission()  # of those without a hello
        self._look_at: float | None = None
        self._look_again_s = _FIRST_LOOK_S

    def open(self) -> None:
        """Let people in from now on."""
        self._descriptors.watch(self._acceptor.fileno(), self._on_listener)

    # ------------------------------------------------------------ waiting

    def next_deadline(self) -> float | None:
        """When the first of those who wait has waited long enough, or the seat is looked at."""
        deadlines = [visitor.give_up_at for visitor in self._waiting]
        deadlines += [self._admission.next_deadline(), self._look_at]
        return min((each for each in deadlines if each is not None), default=None)

    def dismiss_late(self, now: float) -> None:
        """Turn away who has waited long enough."""
        silent = self._admission.overdue(now)
        for visitor in list(self._waiting):
            if visitor.give_up_at is None:
                if visitor.fd in silent:
                    self._cut_off(visitor, f"no hello within {SILENT_S:g} s")
            elif now >= visitor.give_up_at:
                self.turn_away(visitor, f"no place to be served within {WAIT_FOR_SEAT_S:g} s")

    def dismiss_all(self, why: str) -> None:
        """Turn away who waits."""
        for visitor in list(self._waiting):
            self.turn_away(visitor, why)

    def turn_away(self, visitor: Visitor, why: str) -> None:
        """Say why, and close the connection."""
        visitor.send(Error(why))
        self._end_visit(visitor)

    # ------------------------------------------------------------ coming

    def _on_listener(self) -> None:
        self._host.catch_up()
        connected = self._acceptor.accept()
        if self._acceptor.is_blocked:
            self._descriptors.forget(self._acceptor.fileno())
        if connected is None:  # gone again, or refused
            return
        if self._host.is_closing():
            connected.close()
            return
        self._make_room()
        channel = Channel(connected, self._descriptors.epoll)
        pid, uid = channel.peer()
        visitor = Visitor(channel, pid)
        self._waiting.append(visitor)
        self._admission.came(visitor.fd, pid, clock.monotonic())
        self._descriptors.call(visitor.fd, lambda: self._on_visitor(visitor))
        if not is_trusted(uid):
            self._cut_off(visitor, f"user {uid} may not talk to this monitor")

    def _make_room(self) -> None:
        while len(self._waiting) >= _VISITORS_MAX:
            first = self._admission.first_to_go()
            if first is None:
                self.turn_away(self._waiting[0], "too many connections wait here")
                continue
            visitor = next(each for each in self._waiting if each.fd == first[0])
            self._on_visitor(visitor)  # it may have said hello by now
            if visitor.fd in self._admission:
                self.turn_away(visitor, "too many connections wait here")

    def _on_visitor(self, visitor: Visitor) -> None:
        channel = visitor.channel
        is_known = visitor.hello is not None
        if not is_known:
            first = channel.receive_first()
            self._take(visitor, [] if first is None else [first])
            if visitor.hello is not None and channel.gone is None:
                self._take(visitor, channel.trust())
            elif channel.gone not in (None, "closed"):
                self._host.complains(visitor.pid, f"sent no hello: {channel.gone}")
        else:
            self._take(visitor, channel.receive())
        if channel.gone is None:
            channel.flush()
        if channel.gone is not None:
            self._end_visit(visitor)

    def _take(self, visitor: Visitor, frames: list[Frame]) -> None:
        for frame in frames:
            if visitor.channel.gone is not None:
                break
            try:
                self._on_message(visitor, frame)
            except MessageError as error:
                self._cut_off(visitor, f"sent a malformed message: {error}")
            except Exception as error:  # noqa: BLE001 - of whatever kind, it ends this caller alone
                self._cut_off(visitor, f"sent a message that cannot be handled: {error!r:.200}")

    def _cut_off(self, visitor: Visitor, why: str) -> None:
        """As :meth:`turn_away`, and for people to hear of."""
        self._host.complains(visitor.pid, f"was cut off: {why}")
        self.turn_away(visitor, why)

    def _on_message(self, visitor: Visitor, frame: Frame) -> None:
        seat = self.seat
        is_seated = seat is not None and seat.visitor is visitor
        message = decode(FROM_RANK, frame)
        if isinstance(message, Hello) and (is_seated or visitor.hello is None):
            now = clock.monotonic()
            apart_s = 0.0 if message.clock_s is None else abs(now - message.clock_s)
            if apart_s > _CLOCKS_APART_S_MAX:
                self.turn_away(
                    visitor,
                    f"its clock (CLOCK_MONOTONIC) and its monitor's are {apart_s:.0f} s apart, as "
                    "in different time namespaces; run launcher and ranks in the same one",
                )
                return
            if (why := self._host.rejects(visitor.pid, message)) is not None:
                self.turn_away(visitor, why)
                return
            visitor.hello = message
            visitor.give_up_at = now + WAIT_FOR_SEAT_S
            self._admission.left(visitor.fd)
            self._admit(visitor)
        elif isinstance(message, Helper) and visitor.hello is None:
            self._admit_helper(visitor, message)
        elif (
            isinstance(message, (Alive, Operations, Dumped, Counted))
            and seat
            and seat.helper is visitor
        ):
            self._host.helper_said(message)
        elif seat is None or not is_seated or not isinstance(message, (Armed, Limits, Bye)):
            self._cut_off(visitor, "say hello first, then wait for the welcome")
        else:
            visitor.send(self._host.answer(seat, message))

    def _admit(self, visitor: Visitor) -> None:
        """Give the seat to a visitor if it is free, or held for the very same process.

        Or held for one that has left, and makes room.
        """
        hello = visitor.hello
        if hello is None:
            return
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

    def _admit_helper(self, visitor: Visitor, message: Helper) -> None:
        """Serve the helper thread of the seated process, and of no other."""
        seat, pid = self.seat, visitor.pid or message.pid
        if seat is None or seat.process.pid != pid:
            self.turn_away(visitor, f"process {pid} is not the rank that is served")
            return
        visitor.hello = Hello(message.rank, pid)
        self._waiting.remove(visitor)
        self._admission.left(visitor.fd)
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
        self._descriptors.hang_up(visitor.channel)
        self._retry()
        if visitor in self._waiting:
            self._waiting.remove(visitor)
            self._admission.left(visitor.fd)
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

    def _retry(self) -> None:
        """A descriptor is free: let people in again, if nobody could be."""
        if self._acceptor.is_blocked and self._acceptor.retry():
            self.open()

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
        self._retry()
        for visitor in (seat.visitor, seat.helper):
            if visitor is not None:
                self._end_visit(visitor)

    def _call_next(self) -> None:
        for visitor in list(self._waiting):
            self._admit(visitor)
