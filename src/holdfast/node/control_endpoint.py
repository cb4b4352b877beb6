"""Where ranks ask something of their launcher: one framed request per connection, one answer.

A rank that an exception ends reports it, and stays connected until its exit handlers have run. The
guard of a restart in place reports here, too, without an answer. The answer to a rank that asks for
memory for its snapshots has a descriptor with it.

Other users, garbage and floods lose their connection, and have no other effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast.arena.pure import messages as of_snapshots
from holdfast.arena.pure.messages import OpenArena, SnapshotCost, SnapshotUnusable
from holdfast.base import clock
from holdfast.base.pure.codec import MessageError, decode, encode, family, for_people
from holdfast.base.pure.never import assert_never
from holdfast.fault_tolerance.data import WorkloadAction
from holdfast.inplace.pure import job_calls
from holdfast.inplace.pure.job_calls import CallBegan, CallEnded, EndsHungRank, RestartedInPlace
from holdfast.net import endpoint
from holdfast.net.channel import Channel
from holdfast.net.loop import Loop
from holdfast.net.server import Server
from holdfast.node.console import LOGGER
from holdfast.node.part import Part
from holdfast.watch.pure import rank_messages
from holdfast.watch.pure.rank_messages import Control, Error, ExitsNow, Ok, Uncaught

if TYPE_CHECKING:
    from holdfast.net.pure.frames import Message

OfSnapshots = OpenArena | SnapshotCost | SnapshotUnusable
Request = rank_messages.ToLauncher | job_calls.OfGuard | OfSnapshots
_REQUESTS: Mapping[str, type[Request]] = family(Request)

CONNECTIONS_MAX = 128
"""More than this at once, and the oldest is dropped."""
DESCRIPTION_CHARS_MAX = 1000
_REQUEST_BYTES_MAX = 1 << 16

OnRequest = Callable[[int, WorkloadAction, str], None]
"""Called with global rank, action and description."""


OnException = Callable[[int, Uncaught | ExitsNow | None], bool]
"""Called with the pid, as the kernel knows it, and the message of a process that an exception ends;
None: it closed the connection before ``ExitsNow``. Returns whether it is a rank of this launcher.
"""


Answer = tuple[of_snapshots.Arena | of_snapshots.SnapshotAwaited | Ok | Error, tuple[int, ...]]
OnSnapshots = Callable[[OfSnapshots, Callable[[Answer], None]], None]
"""Called with a request, and with a function that takes the answer, and the descriptors that go
with it, now or later."""


def _keeps_none(request: OfSnapshots, reply: Callable[[Answer], None]) -> None:
    del request
    reply((Error("snapshots are off: this launcher keeps none"), ()))


def _reply_to(caller: Channel) -> Callable[[Answer], None]:
    def reply(answer: Answer) -> None:
        message, descriptors = answer
        if descriptors:
            caller.send_with(encode(message), descriptors)
        else:
            caller.send(encode(message))

    return reply


class ControlEndpoint(Part):
    """Listens on ``path`` and reports requests that make sense."""

    def __init__(
        self,
        path: str,
        loop: Loop,
        on_request: OnRequest,
        on_guard_message: Callable[[job_calls.OfGuard], None],
        on_exception: OnException,
        on_snapshots: OnSnapshots = _keeps_none,
    ) -> None:
        """Start to listen on ``path``; raises OSError where that fails."""
        self._on_request = on_request
        self._on_guard_message = on_guard_message
        self._on_exception = on_exception
        self._on_snapshots = on_snapshots
        self._callers: dict[Channel, bool] = {}
        """Those that have sent a request; whether it is a rank whose exit handlers run."""
        self._listener = endpoint.listen(path)
        self._server = Server(
            self._listener,
            loop,
            self._on_first_message,
            lambda line: LOGGER.warning("control socket: %s", line),
            greeting="request",
            unauthenticated_max=CONNECTIONS_MAX,
            frame_bytes_max=_REQUEST_BYTES_MAX,
        )
        self._server.open()

    def next_deadline(self) -> float | None:
        """When a caller has been silent for too long."""
        return self._server.next_deadline()

    def on_time(self) -> None:
        """Cut it off."""
        self._server.tick(clock.monotonic())

    def close(self) -> None:
        """Stop listening and drop all connections."""
        self._server.close()
        self._listener.close()
        for caller in self._callers:
            caller.close()
        self._callers.clear()

    def drain(self) -> None:
        """Handle all requests that have arrived."""
        self._server.drain()
        for caller in list(self._callers):
            caller.receive()

    def _on_first_message(self, caller: Channel, message: Message) -> None:
        request = _request(caller, message)
        if request is None:
            return
        if len(self._callers) >= CONNECTIONS_MAX:
            oldest = next(iter(self._callers))
            del self._callers[oldest]
            oldest.close()
        self._callers[caller] = False
        self._server.admit(caller, self._on_message, self._on_closed, _REQUEST_BYTES_MAX)
        self._answer(caller, request)

    def _on_message(self, caller: Channel, message: Message) -> None:
        if (request := _request(caller, message)) is not None:
            self._answer(caller, request)

    def _on_closed(self, caller: Channel) -> None:
        if self._callers.pop(caller):
            self._on_exception(caller.pid, None)

    def _answer(self, caller: Channel, request: Request) -> None:
        match request:
            case RestartedInPlace() | EndsHungRank() | CallBegan() | CallEnded():
                self._on_guard_message(request)
            case ExitsNow():
                if self._callers[caller]:
                    self._callers[caller] = False
                    self._on_exception(caller.pid, request)
            case Uncaught():
                if self._on_exception(caller.pid, Uncaught(for_people(request.traceback))):
                    self._callers[caller] = True
                    caller.send(encode(Ok()))
                else:
                    caller.send(encode(Error("not a rank whose end this launcher sees to")))
            case Control():
                caller.send(encode(self._control(request)))
            case OpenArena() | SnapshotCost() | SnapshotUnusable():
                self._on_snapshots(request, _reply_to(caller))
            case _:
                assert_never(request)

    def _control(self, request: Control) -> Ok | Error:
        if request.action not in WorkloadAction.__members__:
            known = ", ".join(WorkloadAction.__members__)
            return Error(f"unknown action {request.action!r:.100}; there are {known}")
        description = for_people(request.description[:DESCRIPTION_CHARS_MAX])
        self._on_request(request.rank, WorkloadAction[request.action], description)
        return Ok()


def _request(caller: Channel, message: Message) -> Request | None:
    """The request; None: it is malformed, and was answered with an error."""
    try:
        return decode(_REQUESTS, message)
    except MessageError as error:
        caller.send(encode(Error(f"not a workload control request: {error}")))
        return None
