"""What runs when the call has succeeded on all ranks."""

from __future__ import annotations

import abc

from holdfast.inprocess.state import FrozenState

__all__ = ["Completion"]


class Completion(abc.ABC):
    """Base of what runs at the end; what it raises is logged, the result stays."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Wind up."""
