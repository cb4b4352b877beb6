"""Where ranks ask something of their launcher: one framed request per connection, one answer.

Strangers (another user), garbage and floods end their own connection and nothing else.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.fault_tolerance.console import LOGGER
from holdfast.fault_tolerance.data import WorkloadAction
from holdfast.host import endpoint
from holdfast.host.acceptor import Acceptor
from holdfast.host.channel import Channel, is_trusted
from holdfast.host.loop import Loop

if TYPE_CHECKING:
    from holdfast.wire.frames import Message

CONNECTIONS_MAX = 128
"""More than this at once, and the oldest is dropped."""
DESCRIPTION_CHARS_MAX = 1000

OnRequest = Callable[[int, WorkloadAction, str], None]
"""Called with global rank, action and description."""


class ControlEndpoint:
    """Listens on ``path`` and reports requests that make sense."""

    def __init__(self, path: str, loop: Loop, on_request: OnRequest) -> None:
        """Start to listen.

        Raises:
            OSError: ``path`` cannot be listened on.
        """
        self._loop = loop
        self._on_request = on_request
        self._peers: list[Channel] = []
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

    def _accept(self) -> None:
        connection = self._acceptor.accept()
        if self._acceptor.is_blocked:
            self._loop.forget(self._acceptor.fileno())
        if connection is None:
            return
        peer = Channel(connection, self._loop.epoll)
        _, uid = peer.peer()
        if not is_trusted(uid):
            self._loop.hang_up(peer)
            return
        if len(self._peers) >= CONNECTIONS_MAX:
            self._drop(self._peers[0])
        self._peers.append(peer)
        self._loop.call(peer.fileno(), lambda: self._serve(peer))

    def _serve(self, peer: Channel) -> None:
        peer.flush()
        for message in peer.receive():
            peer.send(self._answer(message))
        if peer.gone:
            self._drop(peer)

    def _answer(self, message: Message) -> Message:
        rank, name = message.get("rank"), message.get("action")
        if message.get("op") != "control" or not isinstance(rank, int):
            return {"op": "error", "text": "not a workload control request"}
        if not isinstance(name, str) or name not in WorkloadAction.__members__:
            known = ", ".join(WorkloadAction.__members__)
            return {"op": "error", "text": f"unknown action {name!r}; there are {known}"}
        description = str(message.get("description", ""))[:DESCRIPTION_CHARS_MAX]
        self._on_request(rank, WorkloadAction[name], description)
        return {"op": "ok"}

    def _drop(self, peer: Channel) -> None:
        self._peers.remove(peer)
        self._loop.hang_up(peer)
        self.retry()


def _warn(error: OSError) -> None:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    LOGGER.error(
        "requests of ranks are refused: %s. This launcher may have %d descriptors open; allow more "
        "(ulimit -n), or find out what takes them",
        error.strerror or error,
        most,
    )
