"""The plug-ins that print where this restarter stands, and what they are made of."""

from __future__ import annotations

import contextlib
import sys

from holdfast.core.launch.layered_restart import RankMonitorState
from holdfast.inprocess.nested_restarter import (
    NestedRestarterAborted,
    NestedRestarterFinalized,
    NestedRestarterHandlingCompleted,
    NestedRestarterHandlingStarting,
    _Told,
)

__all__ = [
    "NestedRestarterAborted",
    "NestedRestarterCallback",
    "NestedRestarterFinalized",
    "NestedRestarterHandlingCompleted",
    "NestedRestarterHandlingStarting",
    "NestedRestarterLogger",
]

NestedRestarterCallback = _Told
"""Base of the four plug-ins; has ``special_rank``, the rank that prints."""


class NestedRestarterLogger:
    """Prints lines of a restarter on stdout, in the form that an outer restarter reads.

    Args:
        name: Of the restarter.
    """

    def __init__(self, name: str = "InProcess") -> None:
        self.name = name

    def log_restarter_event(self, msg: str) -> None:
        """Print one line; ``msg`` without the prefix gets ``[NestedRestarter] name=[...]``."""
        if not msg.startswith("[NestedRestarter]"):
            msg = f"[NestedRestarter] name=[{self.name}] {msg}"
        with contextlib.suppress(OSError, ValueError, AttributeError):  # there is no stdout
            sys.stdout.write(f"{msg}\n")
            sys.stdout.flush()

    def log_state(self, state: RankMonitorState) -> None:
        """Print where the restarter stands."""
        self.log_restarter_event(state.value)

    info = log_restarter_event
