"""Where ranks ask something of their launcher: one framed request per connection, one answer.

A rank that ends with an exception says so, and stays connected until its exit handlers have run.
The guard of a restart in place reports here, too, and wants no answer.

Strangers (another user), garbage and floods end their own connection and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from holdfast.base import clock
from holdfast.base.pure.codec import MessageError, decode, encode, for_people
from holdfast.base.pure.never import assert_never
from holdfast.fault_tolerance.data import WorkloadAction
from holdfast.inplace.pure.in_place import CallBegan, CallEnded, EndsHungRank, RestartedInPlace
from holdfast.net import endpoint
from holdfast.net.channel import Channel
from holdfast.net.loop import Loop
from holdfast.net.server import Server
from holdfast.node.console import LOGGER
from holdfast.node.part import Part
from holdfast.watch.pure.rank_messages import TO_LAUNCHER, Control, Error, ExitsNow, Ok, Uncaught

if TYPE_CHECKING:
    from holdfast.net.pure.frames import Message
    from holdfast.watch.pure.rank_messages import ToLauncher

CONNECTIONS_MAX = 128
"""More than this at once, and the oldest is dropped."""
DESCRIPTION_CHARS_MAX = 1000
_REQUEST_BYTES_MAX = 1 << 16

OnRequest = Callable[[int, WorkloadAction, str], None]
"""Called with global rank, action and description."""


class Exits(Protocol):
    """Takes what ranks say that end with an exception; ``pid`` is the kernel's word."""

    def uncaught(self, pid: int, traceback: str) -> bool:
        """Whether this launcher will see to the end of ``pid``: it is a rank of its own."""

    def exits_now(self, pid: int) -> None:
        """Its exit handlers have run."""

    def goes_on(self, pid: int) -> None:
        """Its connection was closed before they had."""


class ControlEndpoint(Part):
    """Listens on ``path`` and reports requests that make sense."""

    def __init__(
        self,
        path: str,
        loop: Loop,
        on_request: OnRequest,
        on_restart: Callable[[RestartedInPlace], None],
        on_hung: Callable[[EndsHungRank], None],
        on_call: Callable[[CallBegan | CallEnded], None],
        exits: Exits,
    ) -> None:
        """Start to listen.

        Raises:
            OSError: ``path`` cannot be listened on.
        """
        self._on_request = on_request
        self._on_restart = on_restart
        self._on_hung = on_hung
        self._on_call = on_call
        self._exits = exits
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

    def hear_out(self) -> None:
        """Take all that has been said by now."""
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
            self._exits.goes_on(caller.pid)

    def _answer(self, caller: Channel, request: ToLauncher) -> None:
        match request:
            case RestartedInPlace():
                self._on_restart(request)
            case EndsHungRank():
                self._on_hung(request)
            case CallBegan() | CallEnded():
                self._on_call(request)
            case ExitsNow():
                if self._callers[caller]:
                    self._callers[caller] = False
                    self._exits.exits_now(caller.pid)
            case Uncaught():
                if self._exits.uncaught(caller.pid, for_people(request.traceback)):
                    self._callers[caller] = True
                    caller.send(encode(Ok()))
                else:
                    caller.send(encode(Error("not a rank whose end this launcher sees to")))
            case Control():
                caller.send(encode(self._control(request)))
            case _:
                assert_never(request)

    def _control(self, request: Control) -> Ok | Error:
        if request.action not in WorkloadAction.__members__:
            known = ", ".join(WorkloadAction.__members__)
            return Error(f"unknown action {request.action!r:.100}; there are {known}")
        description = for_people(request.description[:DESCRIPTION_CHARS_MAX])
        self._on_request(request.rank, WorkloadAction[request.action], description)
        return Ok()


def _request(caller: Channel, message: Message) -> ToLauncher | None:
    """None: it is none, and the caller was told."""
    try:
        return decode(TO_LAUNCHER, message)
    except MessageError as error:
        caller.send(encode(Error(f"not a workload control request: {error}")))
        return None
