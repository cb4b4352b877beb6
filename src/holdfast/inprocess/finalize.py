"""Plug-ins that run after the function was left, before it is called again: free its resources."""

from __future__ import annotations

import abc
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.inplace.cuda import on_current_device
from holdfast.inprocess._timing import in_seconds, run_within
from holdfast.inprocess.state import FrozenState

__all__ = ["Finalize", "ThreadedFinalize"]


class Finalize(abc.ABC):
    """Base of plug-ins that run after a fault, on every rank; where one raises, the rank leaves."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Clean up; the exception of the function on this rank is ``state.fn_exception``."""


class ThreadedFinalize(Finalize):
    """Call ``fn`` in a thread, so that it cannot hold up the restart for ever.

    What ``fn`` raises is raised here, and the rank leaves. Where CUDA is in use, the thread has the
    current device of the main thread; nothing here needs CUDA.

    Args:
        timeout: How long ``fn`` may take.
        fn: Called with ``args`` and ``kwargs``.
        args: Positional arguments.
        kwargs: Keyword arguments.

    Raises:
        exception.TimeoutError: When called, and ``fn`` does not end in time.
    """

    def __init__(
        self,
        timeout: dt.timedelta,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(timeout, dt.timedelta):
            raise TypeError(f"timeout should be a datetime.timedelta, is {timeout!r}")
        if not callable(fn):
            raise TypeError(f"fn should be a function, is {fn!r}")
        self.timeout = timeout
        self.fn = fn
        self.args = tuple(args)
        self.kwargs = dict(kwargs or {})

    def __call__(self, state: Any, *exception: Any) -> Any:
        """Give back what came, when ``fn`` has ended."""
        call = on_current_device(lambda: self.fn(*self.args, **self.kwargs))
        run_within(in_seconds(self.timeout), f"finalize {_name(self.fn)}", call)
        return (state, *exception) if exception else state


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))
