"""A mailbox on a Unix socket for values and the classes of ``data``.

A tuple of a rank and a ``WorkloadControlRequest`` travels as holdfast's client and launcher write
it: either end may be one of these.
"""

from __future__ import annotations

from typing import Any

from holdfast.fault_tolerance.data import WorkloadAction, WorkloadControlRequest
from holdfast.fault_tolerance.ipc_connector import IpcConnector as _IpcConnector
from holdfast.wire.frames import FrameError
from nvidia_resiliency_ext.fault_tolerance._plain import from_plain, to_plain

__all__ = ["IpcConnector"]


class IpcConnector(_IpcConnector):
    """Both ends of a mailbox: one process receives, many send.

    Args:
        socket_path: Of the Unix socket; only processes of this user may connect.
    """

    def send(self, message: Any, timeout: float = 30.0) -> None:
        """Put a message into the mailbox; returns when the receiver has it.

        Args:
            message: Plain values, or classes of ``fault_tolerance.data``; 1 MiB at most as JSON.
            timeout: Seconds to wait at most.

        Raises:
            EndpointError: No process receives there, or not in time; also an ``OSError``.
            TypeError: The message holds an object that is not sent.
            FrameError: The message is too long.
        """
        super().send(_to_wire(message), timeout)

    def fetch_received(self) -> list[Any]:
        """Take the received messages, in order, without those that this class would not send."""
        return _from_wire(super().fetch_received())

    def peek_received(self) -> list[Any]:
        """What :meth:`fetch_received` would take."""
        with self._lock:
            received = list(self._received)
        return _from_wire(received)


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
