"""Plug-ins that print, on stdout, where this inner restarter stands: an outer one reads it.

    [NestedRestarter] name=[InProcess] state=handling stage=starting

The states are those of the launcher's lines, ``events/pure/layered_restart.py``. Give each to the
Wrapper's argument whose class it derives from, alone or in a Compose. Programs parse these lines,
so they are no log lines: no level, handler or format changes them.
"""

from __future__ import annotations

import contextlib
import sys

from holdfast.events.pure.layered_restart import RankMonitorState
from holdfast.inprocess.abort import Abort
from holdfast.inprocess.completion import Completion
from holdfast.inprocess.initialize import Initialize
from holdfast.inprocess.state import FrozenState
from holdfast.inprocess.terminate import Terminate

__all__ = [
    "NestedRestarterAborted",
    "NestedRestarterFinalized",
    "NestedRestarterHandlingCompleted",
    "NestedRestarterHandlingStarting",
]


class _Told:
    """Says it on one rank.

    Args:
        special_rank: The rank that says it, by its present number.
    """

    def __init__(self, special_rank: int = 0) -> None:
        self.special_rank = special_rank

    def _tell(self, state: FrozenState, new: RankMonitorState) -> FrozenState:
        if state.rank == self.special_rank:
            # In one piece, since the watcher thread and the program write there, too.
            with contextlib.suppress(OSError, ValueError, AttributeError):  # there is no stdout
                sys.stdout.write(f"[NestedRestarter] name=[InProcess] {new.value}\n")
                sys.stdout.flush()
        return state


class NestedRestarterHandlingCompleted(_Told, Initialize):
    """Training begins, or comes back."""

    def __call__(self, state: FrozenState) -> FrozenState:
        """Give back ``state``."""
        first = state.iteration == 0
        return self._tell(
            state,
            RankMonitorState.INITIALIZE if first else RankMonitorState.HANDLING_COMPLETED,
        )


class NestedRestarterHandlingStarting(_Told, Abort):
    """A restart begins."""

    def __call__(self, state: FrozenState) -> FrozenState:
        """Give back ``state``."""
        return self._tell(state, RankMonitorState.HANDLING_START)


class NestedRestarterFinalized(_Told, Completion):
    """Training has succeeded."""

    def __call__(self, state: FrozenState) -> FrozenState:
        """Give back ``state``."""
        return self._tell(state, RankMonitorState.FINALIZED)


class NestedRestarterAborted(_Told, Terminate):
    """This rank leaves."""

    def __call__(self, state: FrozenState) -> FrozenState:
        """Give back ``state``."""
        return self._tell(state, RankMonitorState.ABORTED)
