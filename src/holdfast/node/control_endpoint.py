"""Where ranks ask something of their launcher: one framed request per connection, one answer.

A rank that ends with an exception says so, and stays connected until its exit handlers have run.
The guard of a restart in place reports here, too, and wants no answer.

Strangers (another user), garbage and floods end their own connection and nothing else.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from holdfast.base import clock
from holdfast.base.pure.codec import MessageError, decode, encode, for_people
from holdfast.fault_tolerance.data import WorkloadAction
from holdfast.inplace.pure.in_place import CallBegan, CallEnded, EndsHungRank, RestartedInPlace
from holdfast.net import endpoint
from holdfast.net.acceptor import Acceptor
from holdfast.net.channel import Channel, is_trusted, peer_of
from holdfast.net.loop import Loop
from holdfast.net.pure.complaints import Complaints
from holdfast.node.console import LOGGER
from holdfast.watch.pure.rank_messages import TO_LAUNCHER, Error, ExitsNow, Ok, Uncaught

if TYPE_CHECKING:
    from holdfast.net.pure.frames import Message

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


class ControlEndpoint:
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
        self._loop = loop
        self._on_request = on_request
        self._on_restart = on_restart
        self._on_hung = on_hung
        self._on_call = on_call
        self._exits = exits
        self._exiting: set[Channel] = set()
        """Connections of ranks whose exit handlers run."""
        self._peers: dict[Channel, Callable[[], None]] = {}
        """Those who have called, and how each is served."""
        self._complaints = Complaints()
        self._acceptor = Acceptor(endpoint.listen(path), _warn)
        loop.watch(self._acceptor.fileno(), self._accept)

    def retry(self) -> None:
        """Listen again if that had to be given up: descriptors may be free now."""
        if self._acceptor.is_blocked and self._acceptor.retry():
            self._loop.watch(self._acceptor.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening and drop all connections."""
        self._loop.forget(self._acceptor.fileno())
        for peer in list(self._peers):
            self._loop.hang_up(peer)
        self._peers.clear()
        self._acceptor.close()

    def hear_out(self) -> None:
        """Take all that has been said by now."""
        for _ in range(CONNECTIONS_MAX):
            if self._acceptor.is_blocked or not self._accept_one():
                break
        for serve in list(self._peers.values()):
            serve()

    def _accept(self) -> None:
        self._accept_one()

    def _accept_one(self) -> bool:
        """Whether somebody has called."""
        connection = self._acceptor.accept()
        if self._acceptor.is_blocked:
            self._loop.forget(self._acceptor.fileno())
        if connection is None:
            return False
        pid, uid = peer_of(connection)
        if not is_trusted(uid):
            connection.close()
            self._complain(pid, f"of user {uid} may not ask anything of this launcher")
            return True
        peer = Channel(connection, self._loop.epoll)
        peer.trust(_REQUEST_BYTES_MAX)
        if len(self._peers) >= CONNECTIONS_MAX:
            self._drop(next(iter(self._peers)))
        self._peers[peer] = serve = partial(self._serve, peer, pid)
        self._loop.call(peer.fileno(), serve)
        return True

    def _serve(self, peer: Channel, pid: int) -> None:
        peer.flush()
        try:
            for message in peer.receive():
                answer = self._answer(message, peer, pid)
                if answer is not None:
                    peer.send(encode(answer))
        except Exception as error:  # noqa: BLE001 - of whatever kind, it ends this caller alone
            peer.gone = f"its request cannot be handled: {error!r:.200}"
        if peer.gone:
            if peer.gone != "closed":
                self._complain(pid, f"was cut off: {peer.gone}")
            was_exiting = peer in self._exiting
            self._drop(peer)
            if was_exiting:
                self._exits.goes_on(pid)

    def _complain(self, pid: int, what: str) -> None:
        line = self._complaints.line(f"process {pid}", what, clock.monotonic())
        if line is not None:
            LOGGER.warning("control socket: %s", line)

    def _answer(self, message: Message, peer: Channel, pid: int) -> Ok | Error | None:
        try:
            request = decode(TO_LAUNCHER, message)
        except MessageError as error:
            return Error(f"not a workload control request: {error}")
        if isinstance(request, RestartedInPlace):
            self._on_restart(request)
            return None
        if isinstance(request, EndsHungRank):
            self._on_hung(request)
            return None
        if isinstance(request, (CallBegan, CallEnded)):
            self._on_call(request)
            return None
        if isinstance(request, Uncaught):
            if not self._exits.uncaught(pid, for_people(request.traceback)):
                return Error("not a rank whose end this launcher sees to")
            self._exiting.add(peer)
            return Ok()
        if isinstance(request, ExitsNow):
            if peer in self._exiting:
                self._exiting.discard(peer)
                self._exits.exits_now(pid)
            return None
        if request.action not in WorkloadAction.__members__:
            known = ", ".join(WorkloadAction.__members__)
            return Error(f"unknown action {request.action!r:.100}; there are {known}")
        description = for_people(request.description[:DESCRIPTION_CHARS_MAX])
        self._on_request(request.rank, WorkloadAction[request.action], description)
        return Ok()

    def _drop(self, peer: Channel) -> None:
        del self._peers[peer]
        self._exiting.discard(peer)
        self._loop.hang_up(peer)
        self.retry()


def _warn(error: OSError) -> None:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    LOGGER.error(
        "requests of ranks are refused: %s. This launcher may have %d descriptors open; allow more "
        "(ulimit -n), or close some",
        error.strerror or error,
        most,
    )
