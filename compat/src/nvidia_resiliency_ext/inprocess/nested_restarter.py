"""The plug-ins that print where this restarter stands, and what they are made of."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from holdfast.events.pure.layered_restart import RankMonitorState
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
    "restarter_logger",
]


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


restarter_logger = NestedRestarterLogger()
"""What a :class:`NestedRestarterCallback` prints with where it is given no other."""


class _Callback(type):
    """The four plug-ins of holdfast count as callbacks, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or isinstance(instance, _Told)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return super().__subclasscheck__(subclass) or issubclass(subclass, _Told)


class NestedRestarterCallback(_Told, metaclass=_Callback):
    """Prints one line on one rank. With one of the Wrapper's classes beside it, it is a plug-in.

    Args:
        special_rank: The rank that prints, by its present number.
        restarter_state: Text after ``state=``; ``None``: nothing is printed.
        restarter_stage: Text after ``stage=``; ``None``: there is none.
        restarter_logger: Prints; has ``log_restarter_event``.
    """

    def __init__(
        self,
        special_rank: int = 0,
        restarter_state: str | None = None,
        restarter_stage: str | None = None,
        restarter_logger: NestedRestarterLogger = restarter_logger,
    ) -> None:
        super().__init__(special_rank)
        self.restarter_state = restarter_state
        self.restarter_stage = restarter_stage
        self.restarter_logger = restarter_logger

    def __call__(self, state: Any) -> Any:
        """Give back ``state``."""
        if self.restarter_state is not None and state.rank == self.special_rank:
            stage = "" if self.restarter_stage is None else f" stage={self.restarter_stage}"
            self.restarter_logger.log_restarter_event(f"state={self.restarter_state}{stage}")
        return state
