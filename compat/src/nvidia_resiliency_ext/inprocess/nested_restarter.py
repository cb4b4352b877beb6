"""Plug-ins that print, on stdout, where this inner restarter stands: an outer one reads it.

    [NestedRestarter] name=[InProcess] state=handling stage=starting

The states are those of the launcher's lines. Give each plug-in to the Wrapper's argument whose
class it derives from, alone or in a Compose. Programs parse these lines, so they are no log lines:
no level, handler or format changes them.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from holdfast.inprocess.abort import Abort
from holdfast.inprocess.completion import Completion
from holdfast.inprocess.initialize import Initialize
from holdfast.inprocess.terminate import Terminate
from holdfast.watch.pure.layered_restart import RankMonitorState

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
        # In one piece, since the watcher thread and the program write there, too.
        with contextlib.suppress(OSError, ValueError, AttributeError):  # there is no stdout
            sys.stdout.write(f"{msg}\n")
            sys.stdout.flush()

    def log_state(self, state: RankMonitorState) -> None:
        """Print where the restarter stands."""
        self.log_restarter_event(state.value)

    info = log_restarter_event


restarter_logger = NestedRestarterLogger()
"""The default printer of a :class:`NestedRestarterCallback`."""


class NestedRestarterCallback:
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
        self.special_rank = special_rank
        self.restarter_state = restarter_state
        self.restarter_stage = restarter_stage
        self.restarter_logger = restarter_logger

    def __call__(self, state: Any) -> Any:
        """Give back ``state``."""
        if self.restarter_state is not None:
            stage = "" if self.restarter_stage is None else f" stage={self.restarter_stage}"
            self._print(state, f"state={self.restarter_state}{stage}")
        return state

    def _print(self, state: Any, line: str) -> None:
        if state.rank == self.special_rank:
            self.restarter_logger.log_restarter_event(line)


class NestedRestarterHandlingCompleted(NestedRestarterCallback, Initialize):
    """Prints that training begins, or comes back."""

    def __call__(self, state: Any) -> Any:
        """Give back ``state``."""
        first = state.iteration == 0
        now = RankMonitorState.INITIALIZE if first else RankMonitorState.HANDLING_COMPLETED
        self._print(state, now.value)
        return state


class NestedRestarterHandlingStarting(NestedRestarterCallback, Abort):
    """Prints that a restart begins."""

    def __call__(self, state: Any) -> Any:
        """Give back ``state``."""
        self._print(state, RankMonitorState.HANDLING_START.value)
        return state


class NestedRestarterFinalized(NestedRestarterCallback, Completion):
    """Prints that training has succeeded."""

    def __call__(self, state: Any) -> Any:
        """Give back ``state``."""
        self._print(state, RankMonitorState.FINALIZED.value)
        return state


class NestedRestarterAborted(NestedRestarterCallback, Terminate):
    """Prints that this rank leaves."""

    def __call__(self, state: Any) -> Any:
        """Give back ``state``."""
        self._print(state, RankMonitorState.ABORTED.value)
        return state
