"""The coordinator's TCP server, in the guard of the first node.

Guards and stores of ranks connect, send the job's token in their first frame, and are served by two
pure machines: ``inplace.pure.coordinator`` and ``inplace.pure.keyvalue``. Garbage, a flood or an
error while a connection is served ends that connection and nothing else (``net/server.py``).
"""

from __future__ import annotations

import socket

from holdfast.base import clock
from holdfast.base.pure import codec
from holdfast.base.pure.common_events import TimePassed
from holdfast.inplace.pure import coordinator as machine
from holdfast.inplace.pure.handshake import is_token
from holdfast.inplace.pure.keyvalue import STORE_FRAME_BYTES_MAX, KeyValues, Reply, RequestError
from holdfast.inplace.pure.messages import UP, Commit, CoordinatorTimeouts, Down, RankLeaves
from holdfast.net.channel import Channel, RefusedError
from holdfast.net.descriptors import Descriptors
from holdfast.net.pure.address import unmapped
from holdfast.net.pure.frames import MAX_FRAME_BYTES
from holdfast.net.server import Server
from holdfast.net.tcp import bound_socket, tune

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.net.pure.frames import Message

_BACKLOG = 4096
_NODE_CHARS_MAX = 512
_KEPT_ROOMS = 1
"""Rooms of epochs before the current one: a slow rank may still read a value there."""


class _Caller:
    """One connection that knows the token: a guard or a store."""

    __slots__ = ("channel", "node", "role")

    def __init__(self, channel: Channel, role: str, node: str) -> None:
        self.channel = channel
        self.role = role
        self.node = node


class CoordinatorServer:
    """Serves until it is closed.

    Attributes:
        port: Where it listens, on every address of this host.
    """

    def __init__(
        self,
        timeouts: CoordinatorTimeouts,
        token: str,
        descriptors: Descriptors,
        log: Callable[[str], None],
    ) -> None:
        """Listen.

        Args:
            timeouts: Of the machine.
            token: The secret of the job.
            descriptors: Of the loop.
            log: Called with each line about a caller that was cut off.

        Raises:
            OSError: No port can be had.
        """
        self._machine = machine.Coordinator(timeouts)
        self._values = KeyValues()
        self._token = token
        self._callers: set[_Caller] = set()
        self._guards: dict[str, _Caller] = {}
        self._silence_s = timeouts.silence_s
        self._listener = bound_socket(0)
        self._listener.listen(_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._server = Server(
            self._listener, descriptors, self._admit, log, identify=self._identify
        )
        self._server.open()

    @property
    def is_needed(self) -> bool:
        """Whether a guard is connected: the call is not over on all nodes."""
        return bool(self._guards)

    def next_deadline(self) -> float | None:
        """When to call :meth:`tick`, at the latest."""
        mine, theirs = self._machine.next_deadline(), self._server.next_deadline()
        if mine is None or theirs is None:
            return theirs if mine is None else mine
        return min(mine, theirs)

    def tick(self, now: float) -> None:
        """Act on deadlines that have come."""
        self._server.tick(now)
        deadline = self._machine.next_deadline()
        if deadline is not None and now >= deadline:
            self._feed(TimePassed())

    def close(self) -> None:
        """Close all connections and the port."""
        self._server.close()
        self._listener.close()
        for caller in self._callers:
            caller.channel.close()
        self._callers.clear()
        self._guards.clear()

    # ------------------------------------------------------------ connections

    def _identify(self, connected: socket.socket, address: Any) -> str:
        tune(connected, self._silence_s)
        return f"a caller from {unmapped(address[0])}"

    def _admit(self, channel: Channel, frame: Message) -> None:
        token, role, node = frame.get("token"), frame.get("role"), frame.get("node")
        if not is_token(token, self._token):
            raise RefusedError("does not know the token of this job")
        if (
            role not in ("guard", "store")
            or not isinstance(node, str)
            or len(node) > _NODE_CHARS_MAX
        ):
            raise RefusedError(f"knows the token, but is neither guard nor store: {role!r:.200}")
        if role == "guard" and node in self._guards:
            raise RefusedError(f"says it is the guard of {node!r}, which is connected already")
        caller = _Caller(channel, role, node)
        self._callers.add(caller)
        if role == "guard":
            self._guards[node] = caller
        channel.report = lambda channel, why: self._server.report(
            channel.peer, f"({role} of {node!r}) was cut off: {why}"
        )
        self._server.admit(
            channel,
            lambda _, frame: self._take(caller, frame),
            lambda _: self._lose(caller),
            STORE_FRAME_BYTES_MAX if role == "store" else MAX_FRAME_BYTES,
        )

    def _take(self, caller: _Caller, frame: Message) -> None:
        if caller.role == "guard":
            message = codec.decode(UP, frame)
            leaves = (
                isinstance(message, RankLeaves)
                and not message.fault
                and self._machine.is_member(message.rank)
            )
            self._feed(machine.NodeMessage(caller.node, message))
            if leaves:
                assert isinstance(message, RankLeaves)
                self._answer(self._values.leave(message.epoch, message.rank))
            return
        try:
            replies = self._values.request(caller, frame)
        except RequestError as error:
            replies = [(caller, {"id": frame.get("id"), "error": str(error)})]
        self._answer(replies)

    def _answer(self, replies: list[Reply]) -> None:
        for client, reply in replies:
            assert isinstance(client, _Caller)
            client.channel.send(reply, STORE_FRAME_BYTES_MAX)

    def _lose(self, caller: _Caller) -> None:
        self._callers.discard(caller)
        if caller.role == "store":
            self._values.forget(caller)
        elif self._guards.get(caller.node) is caller:
            del self._guards[caller.node]
            self._feed(machine.NodeGone(caller.node, caller.channel.gone or ""))

    # ------------------------------------------------------------ the machine

    def _feed(self, event: machine.Event) -> None:
        for effect in self._machine.handle(event, clock.monotonic()):
            match effect:
                case machine.Tell():
                    addressee = self._guards.get(effect.node)
                    if addressee is not None:
                        addressee.channel.send(codec.encode(effect.message))
                case machine.HangUp():
                    lost = self._guards.pop(effect.node, None)
                    if lost is not None:
                        self._callers.discard(lost)
                        lost.channel.close()
                case _:
                    self._send_to_all(effect)

    def _send_to_all(self, message: Down) -> None:
        if isinstance(message, Commit):
            self._values.drop_before(message.epoch - _KEPT_ROOMS)
        frame = codec.encode(message)
        for guard in self._guards.values():
            guard.channel.send(frame)
