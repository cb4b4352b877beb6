"""Plug-ins that run before the function, in each iteration."""

from __future__ import annotations

import abc

from holdfast.base.pure.wording import count
from holdfast.inprocess.exception import RestartAbort
from holdfast.inprocess.state import FrozenState, State

__all__ = ["Initialize", "RetryController"]


class Initialize(abc.ABC):
    """Base of plug-ins that run before the function; one that raises is a fault of the function."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Prepare; the result is adopted where it is a mutable :class:`State`."""


class RetryController(Initialize):
    """Ends the job where too few ranks are left, or too many restarts were made, on all ranks.

    Args:
        max_iterations: How many times the function is called at most; ``None``: no limit.
        min_world_size: Fewer ranks than this are too few.
        min_active_world_size: Fewer active ranks than this are too few.

    Raises:
        RestartAbort: When called, and it does not go on.
    """

    def __init__(
        self,
        max_iterations: int | None = None,
        min_world_size: int = 1,
        min_active_world_size: int = 1,
    ) -> None:
        self.max_iterations = max_iterations
        self.min_world_size = min_world_size
        self.min_active_world_size = min_active_world_size

    def __call__(self, state: FrozenState | State) -> FrozenState | State:  # type: ignore[override]
        """Give back ``state``, or raise."""
        active = state.active_world_size
        problem = None
        if state.world_size < self.min_world_size:
            problem = f"world_size={state.world_size} is below {self.min_world_size=}"
        elif active is not None and active < self.min_active_world_size:
            problem = f"active_world_size={active} is below {self.min_active_world_size=}"
        elif self.max_iterations is not None and state.iteration >= self.max_iterations:
            problem = (
                f"the function was called {count(self.max_iterations, 'time')}, "
                f"{self.max_iterations=}"
            )
        if problem is not None:
            raise RestartAbort(
                f"rank {state.rank} leaves the call at iteration={state.iteration}: "
                + problem.replace("self.", "")
            )
        return state
