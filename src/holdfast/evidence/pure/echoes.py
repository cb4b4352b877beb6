"""Errors that a rank reports because another one has failed. Pure, and light: guards import it."""

from __future__ import annotations

NAMES_A_PEER = (
    "Connection closed by peer",  # gloo, and a socket of Python's
    "Connection reset by peer",
    "Broken pipe",
    "Connection was likely closed",  # torch's TCPStore: the rank that hosts it is gone
    "Application timeout caused pair closure",  # gloo: another operation has timed out
    "Timed out waiting",  # gloo: for a peer
    "remote process exited",  # NCCL
    "remote process exiting",
    "ncclRemoteError",
    "Watchdog caught collective operation timeout",
)
"""Texts of errors that a rank reports when another one has failed, hangs or was lost."""


def is_echo(error: str) -> bool:
    """An error says that another rank has failed, hangs or was lost."""
    return any(text in error for text in NAMES_A_PEER)
