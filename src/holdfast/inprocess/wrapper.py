"""The decorator: its arguments, and its plug-ins as they are called.

Programs import it from ``wrap.py``, where a call of a decorated function is.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from holdfast.inprocess import abort as abort_plugins
from holdfast.inprocess.arguments import WrapperArguments
from holdfast.inprocess.compose import Compose
from holdfast.inprocess.finalize import Finalize
from holdfast.inprocess.health_check import HealthCheck, restart_health_check
from holdfast.inprocess.initialize import Initialize
from holdfast.inprocess.plugin_call import AssignmentPlugin, StatePlugin
from holdfast.inprocess.rank_assignment import (
    ActivateAllRanks,
    RankAssignment,
    RankFilter,
    ShiftRanks,
)
from holdfast.inprocess.state import State
from holdfast.inprocess.store import StoreMixin, TCPStore

_Result = TypeVar("_Result")
_DEFAULT_LAST_CALL_WAIT = dt.timedelta(seconds=1)
_DEFAULT: Any = object()
"""An argument that was not given, where ``None`` means none."""


class Wrapper:
    """A decorator that makes a function restartable in place.

    Keyword arguments only; durations are ``datetime.timedelta``.

    Args:
        store_factory: Class of the store in which ranks find each other at the beginning; derived
            from ``StoreMixin``. Default ``inprocess.store.TCPStore``.
        store_kwargs: Its arguments.
        initialize: Called before each call of the function.
        abort: Frees ranks that wait in collectives. Default ``AbortTorchDistributed()``. ``None``:
            nothing of torch is touched; a rank that waits for others stays until its own timeout or
            ``hard_timeout``, and process groups stay until the function destroys them.
        finalize: Called after a fault, when the function has been left.
        health_check: Called before the function, and after a fault.
        rank_assignment: Who is called what after losses. Default
            ``Compose(ActivateAllRanks(), ShiftRanks())``. ``None``: no rank moves up; after a loss,
            every rank leaves with ``RestartError``.
        rank_filter: Called after ``rank_assignment``: who works.
        monitor_thread_interval: Accepted; the abort is pushed, nothing polls. Default 1 s.
        monitor_process_interval: Accepted; the guard sleeps until a limit can run out. Default 1 s.
        heartbeat_interval: How often a node's guard and the coordinator hear of each other.
            Default 1 s.
        progress_watchdog_interval: How often progress is marked. Default 1 s.
        soft_timeout: No progress for so long restarts all ranks. Default 60 s.
        hard_timeout: No progress for so long kills the rank. Default 90 s.
        heartbeat_timeout: A node that is not heard of for so long is lost. Default 30 s.
        barrier_timeout: How long ranks are waited for at the start, and after a fault. Default
            120 s.
        completion_timeout: From the first rank that completed to the last. Default 120 s.
        last_call_wait: Least time between a fault and the next call. Default 1 s, which is not
            waited where it was not asked for: the restart itself gathers concurrent faults.
        max_start_faults: Restarts in a row after iterations that failed before the function was
            entered, or in its ``init_process_group``. Each waits longer (0, 0.1, 0.2 ... 30 s); the
            next such fault ends the call on all ranks. Default 12; ``None``: no end, and no waits.
        termination_grace_time: Between SIGTERM and SIGKILL. Default 5 s.
        monitor_process_logfile: Absolute path of the guard's log; may hold ``{rank}``.
        monitor_process_pidfile: Absolute path of a file with the guard's pid; may hold ``{rank}``.
        enabled: False: the function stays as it is.
        completion: Called when all ranks have completed.
        terminate: Called on a rank that leaves.

    Raises:
        TypeError: An argument has the wrong type; named in the text.
        ValueError: A value cannot be, or two cannot be together; the text has the condition.
    """

    def __init__(
        self,
        *,
        store_factory: type[StoreMixin] = TCPStore,
        store_kwargs: dict[str, Any] | None = None,
        initialize: Initialize | Compose | None = None,
        abort: abort_plugins.Abort | Compose | None = _DEFAULT,
        finalize: Finalize | Compose | None = None,
        health_check: HealthCheck | Compose | None = None,
        rank_assignment: RankAssignment | Compose | None = _DEFAULT,
        rank_filter: RankFilter | Compose | None = None,
        last_call_wait: dt.timedelta = _DEFAULT,
        **others: Any,
    ) -> None:
        self.waits_for_last_call = last_call_wait is not _DEFAULT
        if abort is _DEFAULT:
            abort = abort_plugins.AbortTorchDistributed()
        if rank_assignment is _DEFAULT:
            rank_assignment = Compose(ActivateAllRanks(), ShiftRanks())
        if last_call_wait is _DEFAULT:
            last_call_wait = _DEFAULT_LAST_CALL_WAIT
        arguments = WrapperArguments(
            store_factory=store_factory,
            store_kwargs={} if store_kwargs is None else store_kwargs,
            # A Compose is of the kind of what it composes, which types cannot say.
            initialize=cast("Initialize | None", initialize),
            abort=cast("abort_plugins.Abort | None", abort),
            finalize=cast("Finalize | None", finalize),
            health_check=cast("HealthCheck | None", health_check),
            rank_assignment=cast("RankAssignment | None", rank_assignment),
            rank_filter=cast("RankFilter | None", rank_filter),
            last_call_wait=last_call_wait,
            **others,
        )
        import torch.distributed as dist  # noqa: PLC0415 - the package is imported without torch

        arguments.validate(store_mixin=StoreMixin, distributed_is_available=dist.is_available)
        self.arguments = arguments
        self.restart_health_check = restart_health_check(
            arguments.health_check, os.environ.get("LOCAL_RANK")
        )

    def __getattr__(self, name: str) -> Any:
        """Arguments are attributes of the same names."""
        if name != "arguments" and name in WrapperArguments.__dataclass_fields__:
            return getattr(self.arguments, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __call__(self, function: Callable[..., _Result]) -> Callable[..., _Result]:
        """The restartable function; ``function`` itself where ``enabled`` is False."""
        if not self.arguments.enabled:
            return function

        from holdfast.inprocess.wrap import CallWrapper  # noqa: PLC0415 - which imports this module

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> _Result:
            return CallWrapper(self)(function, args, kwargs)

        return wrapped


class Plugins:
    """The user's plug-ins, each to be called with a state, whatever its generation."""

    def __init__(self, wrapper: Wrapper) -> None:
        a = wrapper.arguments
        self.initialize = _state_plugin("initialize", a.initialize)
        self.health_check = _state_plugin("health_check", a.health_check)
        self.restart_health_check = _state_plugin("health_check", wrapper.restart_health_check)
        self.abort = _state_plugin("abort", a.abort)
        self.finalize = _state_plugin("finalize", a.finalize)
        self.completion = _state_plugin("completion", a.completion)
        self.terminate = _state_plugin("terminate", a.terminate)
        self.assign = AssignmentPlugin(a.rank_assignment, a.rank_filter)


def _state_plugin(family: str, plugin: Callable[..., Any] | None) -> Callable[[State], None]:
    return StatePlugin(family, plugin) if plugin is not None else lambda _state: None
