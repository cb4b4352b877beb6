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
from holdfast.base.pure.deadlines import earliest
from holdfast.inplace.pure import coordinator as machine
from holdfast.inplace.pure.keyvalue import STORE_FRAME_BYTES_MAX, KeyValues, Reply, RequestError
from holdfast.inplace.pure.messages import UP, Commit, CoordinatorTimeouts, RankLeaves
from holdfast.net.channel import Channel, RefusedError
from holdfast.net.descriptors import Descriptors
from holdfast.net.pure.address import unmapped
from holdfast.net.pure.frames import MAX_FRAME_BYTES
from holdfast.net.pure.handshake import is_token
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


class CoordinatorServer:
    """Serves as long as its process lives.

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
        self._guards: dict[str, Channel] = {}
        self._silence_s = timeouts.silence_s
        listener = bound_socket(0)
        listener.listen(_BACKLOG)
        self.port: int = listener.getsockname()[1]
        self._server = Server(listener, descriptors, self._admit, log, identify=self._identify)
        self._server.open()

    @property
    def is_needed(self) -> bool:
        """Whether a guard is connected: the call is not over on all nodes."""
        return bool(self._guards)

    def next_deadline(self) -> float | None:
        """When to call :meth:`tick`, at the latest."""
        return earliest(self._machine.next_deadline(), self._server.next_deadline())

    def tick(self, now: float) -> None:
        """Act on deadlines that have come."""
        self._server.tick(now)
        deadline = self._machine.next_deadline()
        if deadline is not None and now >= deadline:
            self._feed(TimePassed())

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
        channel.report = lambda channel, why: self._server.report(
            channel.peer, f"({role} of {node!r}) was cut off: {why}"
        )
        if role == "store":
            self._server.admit(
                channel, self._serve_store, self._values.forget, STORE_FRAME_BYTES_MAX
            )
            return
        self._guards[node] = channel
        self._server.admit(
            channel,
            lambda _, frame: self._serve_guard(node, frame),
            lambda channel: self._lose_guard(node, channel),
            MAX_FRAME_BYTES,
        )

    def _serve_guard(self, node: str, frame: Message) -> None:
        message = codec.decode(UP, frame)
        match message:
            case RankLeaves(fault=False) if message.rank in self._machine.members:
                self._answer(self._values.leave(message.epoch, message.rank))
        self._feed(machine.NodeMessage(node, message))

    def _serve_store(self, channel: Channel, frame: Message) -> None:
        try:
            replies = self._values.request(channel, frame)
        except RequestError as error:
            replies = [(channel, {"id": frame.get("id"), "error": str(error)})]
        self._answer(replies)

    def _answer(self, replies: list[Reply]) -> None:
        for client, reply in replies:
            assert isinstance(client, Channel)
            client.send(reply, STORE_FRAME_BYTES_MAX)

    def _lose_guard(self, node: str, channel: Channel) -> None:
        if self._guards.get(node) is channel:
            del self._guards[node]
            self._feed(machine.NodeGone(node, channel.gone or ""))

    # ------------------------------------------------------------ the machine

    def _feed(self, event: machine.Event) -> None:
        for effect in self._machine.handle(event, clock.monotonic()):
            match effect:
                case machine.Tell():
                    if (guard := self._guards.get(effect.node)) is not None:
                        guard.send(codec.encode(effect.message))
                case machine.HangUp():
                    if (lost := self._guards.pop(effect.node, None)) is not None:
                        lost.close()
                case _:
                    if isinstance(effect, Commit):
                        self._values.drop_before(effect.epoch - _KEPT_ROOMS)
                    frame = codec.encode(effect)
                    for guard in self._guards.values():
                        guard.send(frame)
