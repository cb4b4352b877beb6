"""Plug-ins that run on a rank that leaves for good, before its exception reaches the caller."""

from __future__ import annotations

import abc

from holdfast.inprocess.state import FrozenState

__all__ = ["Terminate"]


class Terminate(abc.ABC):
    """Base of plug-ins that run on a rank that leaves."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Clean up before the rank leaves."""
