"""Plug-ins that run when the call has succeeded on all ranks."""

from __future__ import annotations

import abc

from holdfast.inprocess.state import FrozenState

__all__ = ["Completion"]


class Completion(abc.ABC):
    """Base of plug-ins for the end; their exceptions are logged, the result stays."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Wind up."""
