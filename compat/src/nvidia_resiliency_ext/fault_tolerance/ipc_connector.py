"""A mailbox on a Unix socket for values and the classes of ``data``: many senders, one receiver.

A tuple of a rank and a ``WorkloadControlRequest`` travels as holdfast's client and launcher write
it: either end may be one of these.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.clock import monotonic
from holdfast.fault_tolerance.data import WorkloadAction, WorkloadControlRequest
from holdfast.net import endpoint
from holdfast.net.descriptors import Descriptors
from holdfast.net.pure.frames import MAX_FRAME_BYTES, FrameError, encode
from holdfast.net.server import Server
from nvidia_resiliency_ext.fault_tolerance._plain import from_plain, to_plain

if TYPE_CHECKING:
    import socket

    from holdfast.net.channel import Channel
    from holdfast.net.pure.frames import Message

__all__ = ["IpcConnector"]

log = logging.getLogger(__name__)


class IpcConnector:
    """Both ends of a mailbox: one process receives, many send.

    Args:
        socket_path: Of the Unix socket; only processes of this user may connect.
    """

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path
        self._thread: threading.Thread | None = None
        self._stop = -1
        self._received: list[Message] = []
        self._lock = threading.Lock()

    def start_receiving(self) -> None:
        """Listen, and keep messages until they are taken.

        Raises:
            EndpointError: The path cannot be listened on.
            RuntimeError: It is listened on already; call :meth:`stop_receiving` before.
        """
        if self._thread is not None:
            raise RuntimeError(
                f"start_receiving() was called twice for {self.socket_path}; call stop_receiving() "
                "before starting again"
            )
        listener = endpoint.listen(self.socket_path)
        stopped, self._stop = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(
            target=self._serve, args=(listener, stopped), name="ipc-connector", daemon=True
        )
        self._thread.start()

    def stop_receiving(self) -> None:
        """Stop listening and remove the socket. Received messages can still be taken."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        os.close(self._stop)
        thread.join()
        Path(self.socket_path).unlink(missing_ok=True)

    def fetch_received(self) -> list[Any]:
        """Take the received messages, in order, without those that this class would not send."""
        with self._lock:
            received, self._received = self._received, []
        return _from_wire(received)

    def peek_received(self) -> list[Any]:
        """What :meth:`fetch_received` would take."""
        with self._lock:
            received = list(self._received)
        return _from_wire(received)

    def clear(self) -> None:
        """Forget the received messages."""
        with self._lock:
            self._received = []

    def send(self, message: Any, timeout: float = 30.0) -> None:
        """Put a message into the mailbox; returns when the receiver has it.

        Args:
            message: Plain values, or classes of ``fault_tolerance.data``; 1 MiB at most as JSON.
            timeout: Seconds to wait at most.

        Raises:
            EndpointError: No process receives there, or not in time; also an ``OSError``.
            TypeError: The message holds an object that is not sent.
            FrameError: The message is too long; it is a ``ValueError``.
        """
        wired = _to_wire(message)
        encode(wired)  # a message that is too long is refused before anything is connected
        connection = endpoint.connect(self.socket_path, timeout)
        try:
            connection.request(wired, timeout)
        finally:
            connection.close()

    def _serve(self, listener: socket.socket, stopped: int) -> None:
        loop = Descriptors()
        senders: set[Channel] = set()
        stops: list[bool] = []

        def take_first(sender: Channel, message: Message) -> None:
            server.admit(sender, self._take, senders.discard, MAX_FRAME_BYTES)
            senders.add(sender)
            self._take(sender, message)

        server = Server(
            listener,
            loop,
            take_first,
            lambda line: log.warning("mailbox %s: %s", self.socket_path, line),
            greeting="message",
            frame_bytes_max=MAX_FRAME_BYTES,
        )
        loop.watch(stopped, lambda: stops.append(True))
        server.open()
        while not stops:
            deadline = server.next_deadline()
            loop.wait(None if deadline is None else max(0.0, deadline - monotonic()))
            server.tick(monotonic())
        server.close()
        for sender in senders:
            sender.close()
        listener.close()
        os.close(stopped)
        loop.epoll.close()

    def _take(self, sender: Channel, message: Message) -> None:
        with self._lock:
            self._received.append(message)
        sender.send({"op": "ok"})


def _to_wire(message: Any) -> dict[str, Any]:
    match message:
        case (int(rank), WorkloadControlRequest() as request) if isinstance(message, tuple):
            return {
                "op": "control",
                "rank": rank,
                "action": request.action.name,
                "description": request.description,
            }
    return {"message": to_plain(message)}


def _from_wire(received: list[dict[str, Any]]) -> list[Any]:
    found = []
    for each in received:
        try:
            found.append(_value(each))
        except (KeyError, FrameError):
            continue
    return found


def _value(wired: dict[str, Any]) -> Any:
    if wired.get("op") == "control":
        request = WorkloadControlRequest(
            WorkloadAction[wired["action"]], str(wired.get("description", ""))
        )
        return wired["rank"], request
    return from_plain(wired["message"])
