"""A mailbox on a Unix socket for values and the classes of ``data``."""

from __future__ import annotations

from typing import Any

from holdfast.fault_tolerance.ipc_connector import IpcConnector as _IpcConnector
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
        super().send({"message": to_plain(message)}, timeout)

    def fetch_received(self) -> list[Any]:
        """Take what was received, in order; messages that hold what nobody sends are left out."""
        return [
            from_plain(each["message"]) for each in super().fetch_received() if "message" in each
        ]

    def peek_received(self) -> list[Any]:
        """What :meth:`fetch_received` would take."""
        with self._lock:
            received = list(self._received)
        return [from_plain(each["message"]) for each in received if "message" in each]
