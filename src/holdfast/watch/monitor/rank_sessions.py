"""The rank that a monitor serves: any process may connect, one has the session.

    connection ──hello──► waits ──no session──► session ──bye, death, end of its cycle──► gone
         └─ unauthenticated, malformed, too many, too long ──► refused, with the reason

A session belongs to a process, not to a connection: a rank that connects again keeps it, and so
does one that was adopted from a page and has not connected yet. The helper thread of that process
has a connection of its own.
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
from holdfast.page.pure.clocks import Timeouts
from holdfast.watch.pure.rank_messages import (
    FROM_RANK,
    Alive,
    Armed,
    Counted,
    Dumped,
    Error,
    Hello,
    Helper,
    LeaveMonitor,
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
        """Serves the rank that has the session."""

        def may_accept(self) -> bool:
            """Whether processes are accepted; the launcher's messages are taken in before.

            A rank starts after its monitor was sent "cycle", and must not be judged by an older
            one.
            """

        def warns(self, line: str) -> None:
            """Log a line about a process that was cut off, or about missing descriptors."""

        def rejects(self, pid: int, hello: Hello) -> str | None:
            """Why process ``pid`` may not have a session; None: it may."""

        def accept(self, caller: Caller, session: RankSession, *, is_new: bool) -> None:
            """Welcome ``caller``, which has the session now; ``is_new``: another process had it."""

        def answer(self, session: RankSession, message: Armed | Timeouts | LeaveMonitor) -> Ok:
            """Carry out a request of the rank."""

        def helper_said(self, message: Alive | Operations | Dumped | Counted) -> None:
            """The helper thread of the rank has answered."""

        def holds(self, session: RankSession) -> bool:
            """The rank has closed its connection; whether its session is kept."""

        def can_be_replaced(self, session: RankSession) -> bool:
            """Whether another process may have a session that is kept."""

        def left(self, session: RankSession, why: str) -> None:
            """The session ends; ``why`` completes "the rank ..."."""


WAIT_FOR_SEAT_S = 180.0
"""How long a second rank waits until the first one has left."""
_CLOCKS_APART_S_MAX = 300.0
"""More than a hello can have waited to be read: two clocks that do not count the same time."""
_FIRST_LOOK_S, _LOOK_S = 0.01, 1.0
"""Between looks at a seated process that holds no connection, where no pidfd tells of its end."""
_VISITORS_MAX = 64
"""Connections without a hello, and as many that wait for the session."""
_HELLO_FIRST = "say hello first, then wait for the welcome"


class Caller:
    """A connection that has said hello."""

    __slots__ = ("channel", "give_up_at", "hello", "pid")

    def __init__(self, channel: Channel, hello: Hello) -> None:
        self.channel = channel
        self.pid = channel.pid
        self.hello = hello
        self.give_up_at = float("inf")  # how long it may wait for the session

    def send(self, message: ToRank) -> None:
        """Send a message."""
        self.channel.send(encode(message))


class RankSession:
    """The one rank that is served."""

    __slots__ = ("caller", "helper", "process", "rank")

    def __init__(self, rank: int, process: proc.Process, caller: Caller | None) -> None:
        self.rank = rank
        self.process = process
        self.caller = caller  # None: it was adopted, or is awaited, and has not connected
        self.helper: Caller | None = None  # the connection of its helper thread

    @classmethod
    def of_pid(cls, rank: int, pid: int, caller: Caller | None = None) -> RankSession | None:
        """None: there is no such process."""
        try:
            return cls(rank, proc.Process(pid), caller)
        except (ProcessLookupError, OverflowError):
            return None


class RankSessions:
    """Accepts connections, gives one process the session, and refuses."""

    def __init__(self, listener: socket.socket, descriptors: Descriptors, host: Host) -> None:
        self.session: RankSession | None = None  # of the rank that is served
        self._server = Server(
            listener,
            descriptors,
            self._on_first_message,
            host.warns,
            greeting="hello",
            unauthenticated_max=_VISITORS_MAX,
            refusal=lambda why: encode(Error(why)),
            may_accept=host.may_accept,
        )
        self._descriptors = descriptors
        self._host = host
        self._waiting: list[Caller] = []
        self._look_at: float | None = None
        self._look_again_s = _FIRST_LOOK_S

    def open(self) -> None:
        """Accept connections from now on."""
        self._server.open()

    # ------------------------------------------------------------ waiting

    def next_deadline(self) -> float | None:
        """When a caller has waited long enough, or the process of the session is looked at."""
        waiting = (caller.give_up_at for caller in self._waiting)
        return earliest(self._server.next_deadline(), self._look_at, *waiting)

    def on_time(self, now: float) -> None:
        """Refuse callers that have waited long enough, and look for the end of the rank."""
        self._server.tick(now)
        for caller in list(self._waiting):
            if now >= caller.give_up_at:
                self.refuse(caller, f"no place to be served within {WAIT_FOR_SEAT_S:g} s")
        self._look_for_end(now)

    def dismiss_all(self, why: str) -> None:
        """Refuse all callers that wait."""
        self._server.dismiss(why)
        for caller in list(self._waiting):
            self.refuse(caller, why)

    def refuse(self, caller: Caller, why: str) -> None:
        """Send the reason, and close the connection."""
        caller.send(Error(why))
        self._end_connection(caller)

    # ------------------------------------------------------------ coming

    def _on_first_message(self, channel: Channel, frame: Frame) -> None:
        message = decode(FROM_RANK, frame)
        if isinstance(message, Hello):
            caller = self._admit_connection(channel, message)
            if self._may_have_session(caller, message):
                if len(self._waiting) >= _VISITORS_MAX:
                    self.refuse(self._waiting[0], "too many connections wait here")
                self._waiting.append(caller)
                self._admit(caller)
        elif isinstance(message, Helper):
            pid = channel.pid or message.pid
            self._admit_helper(self._admit_connection(channel, Hello(message.rank, pid)), pid)
        else:
            raise RefusedError(_HELLO_FIRST)

    def _admit_connection(self, channel: Channel, hello: Hello) -> Caller:
        caller = Caller(channel, hello)
        self._server.admit(
            channel,
            lambda _, frame: self._on_message(caller, frame),
            lambda _: self._end_connection(caller),
            MAX_FRAME_BYTES,
        )
        return caller

    def _may_have_session(self, caller: Caller, hello: Hello) -> bool:
        """Whether it may have the session, now or later; if not, it is refused."""
        now = clock.monotonic()
        apart_s = 0.0 if hello.clock_s is None else abs(now - hello.clock_s)
        if apart_s > _CLOCKS_APART_S_MAX:
            why: str | None = (
                f"its clock (CLOCK_MONOTONIC) and its monitor's are {apart_s:.0f} s apart, as in "
                "different time namespaces; run launcher and ranks in the same one"
            )
        else:
            why = self._host.rejects(caller.pid, hello)
        if why is not None:
            self.refuse(caller, why)
            return False
        caller.hello, caller.give_up_at = hello, now + WAIT_FOR_SEAT_S
        return True

    def _on_message(self, caller: Caller, frame: Frame) -> None:
        session = self.session
        match decode(FROM_RANK, frame):
            case Hello() as message if session and session.caller is caller:
                if self._may_have_session(caller, message):
                    self._admit(caller)
            case Armed() | Timeouts() | LeaveMonitor() as request if (
                session and session.caller is caller
            ):
                caller.send(self._host.answer(session, request))
            case Alive() | Operations() | Dumped() | Counted() as answer if (
                session and session.helper is caller
            ):
                self._host.helper_said(answer)
            case _:
                raise RefusedError(_HELLO_FIRST)

    def _admit(self, caller: Caller) -> None:
        """Give a caller the session, if it is free, its own, or of a process that has left."""
        hello = caller.hello
        pid = caller.pid or hello.pid  # 0: in a pid namespace that is not visible
        session = self.session
        is_new = session is None or (
            session.process.pid != pid and self._host.can_be_replaced(session)
        )
        if session is None or is_new:
            session = RankSession.of_pid(hello.rank, pid, caller)
            if session is None:
                self.refuse(caller, f"there is no process {pid}")
                return
            self._free("has left, and another process has its place")
            self.take(session)
        elif session.caller is None and session.process.pid == pid:
            session.caller = caller
        elif hello.by_steps and session.process.pid != pid:  # inside a step it must not wait
            self.refuse(caller, f"process {session.process.pid} is watched")
            return
        elif session.caller is not caller:
            self._begin_to_look(session)  # a fork of the rank may hold its connection open
            return
        if caller in self._waiting:
            self._waiting.remove(caller)
        self._host.accept(caller, session, is_new=is_new)

    def _admit_helper(self, caller: Caller, pid: int) -> None:
        """Serve the helper thread of the session's process, and of no other."""
        session = self.session
        if session is None or session.process.pid != pid:
            self.refuse(caller, f"process {pid} is not the rank that is served")
            return
        before, session.helper = session.helper, caller
        if before is not None:
            self._end_connection(before)

    def take(self, session: RankSession) -> None:
        """Begin a session; there must be none."""
        self.session = session
        fd = session.process.fileno()
        if fd >= 0:
            self._descriptors.watch(fd, lambda: self._on_rank_ended(session))
        elif session.caller is None:
            self._begin_to_look(session)

    # ------------------------------------------------------------ leaving

    def _end_connection(self, caller: Caller) -> None:
        """Close a connection; if it was the rank's, the rank is forgotten."""
        caller.channel.close()
        if caller in self._waiting:
            self._waiting.remove(caller)
        session = self.session
        if session is not None and session.helper is caller:
            session.helper = None
        if session is None or session.caller is not caller:
            return
        if self._host.holds(session):
            session.caller = None
            self._begin_to_look(session)
            self._call_next()
        else:
            self.release("closed its connection")

    def _begin_to_look(self, session: RankSession) -> None:
        """Where this kernel has no pidfds, nor does the rank's connection say that it ended."""
        if session.process.fileno() < 0:
            self._look_again_s = _FIRST_LOOK_S
            self._look_at = clock.monotonic() + self._look_again_s

    def _look_for_end(self, now: float) -> None:
        """Where no descriptor tells of it."""
        if self.session is None or self._look_at is None or now < self._look_at:
            return
        if self.session.caller is not None and not self._waiting:
            self._look_at = None  # its connection will tell
            return
        self._look_again_s = min(2 * self._look_again_s, _LOOK_S)
        self._look_at = now + self._look_again_s
        self._on_rank_ended(self.session)

    def _on_rank_ended(self, session: RankSession) -> None:
        if self.session is session and not session.process.is_alive():
            self.release("died")

    def release(self, why: str) -> None:
        """Forget the rank, if there is one, and call the next."""
        self._free(why)
        self._call_next()

    def _free(self, why: str) -> None:
        session = self.session
        if session is None:
            return
        self._host.left(session, why)
        self.session = None
        self._look_at = None
        if session.process.fileno() >= 0:
            self._descriptors.forget(session.process.fileno())
        session.process.close()
        for caller in (session.caller, session.helper):
            if caller is not None:
                self._end_connection(caller)

    def _call_next(self) -> None:
        for caller in list(self._waiting):
            self._admit(caller)
