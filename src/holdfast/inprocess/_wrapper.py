"""The decorator: its arguments, and its plug-ins as they are called.

Programs import it from ``wrap.py``, where a call of a decorated function is.
"""

from __future__ import annotations

import datetime as dt
import functools
import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from holdfast.inplace.pure.start_faults import MOST
from holdfast.inprocess._arguments import (
    LAST_CALL_WAIT,
    NAMES,
    PLUGINS,
    WrapperArguments,
    unknown_argument,
)
from holdfast.inprocess._inject import injection
from holdfast.inprocess._plugin_call import AssignmentPlugin, StatePlugin
from holdfast.inprocess.abort import Abort, AbortTorchDistributed
from holdfast.inprocess.completion import Completion
from holdfast.inprocess.compose import Compose, positional_capacity
from holdfast.inprocess.finalize import Finalize
from holdfast.inprocess.health_check import HealthCheck, restart_health_check
from holdfast.inprocess.initialize import Initialize
from holdfast.inprocess.rank_assignment import (
    ActivateAllRanks,
    RankAssignment,
    RankFilter,
    ShiftRanks,
)
from holdfast.inprocess.state import State
from holdfast.inprocess.store import StoreMixin, TCPStore
from holdfast.inprocess.terminate import Terminate

if TYPE_CHECKING:
    from typing_extensions import Self

    from holdfast.inprocess.wrap import CallWrapper

_P = ParamSpec("_P")
_Result = TypeVar("_Result")


class _NotACallWrapper:
    """Only what takes everything takes one: a parameter of type ``Any`` or ``object``."""


_TakesAnything = TypeVar(
    "_TakesAnything", bound="Callable[Concatenate[_NotACallWrapper, ...], Any]"
)
"""A function whose first parameter takes a CallWrapper, but not because it asks for one."""


class _InWords:
    """A default, as ``help()`` shows it, for an object that each Wrapper makes for itself."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


_ABORT: Any = _InWords("AbortTorchDistributed()")
_RANK_ASSIGNMENT: Any = _InWords("Compose(ActivateAllRanks(), ShiftRanks())")


class _SignatureOfInit:
    """What ``inspect`` and ``help()`` show of a class: not the parameters of ``__new__``."""

    def __get__(self, instance: object, owner: type[Any]) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__ is the class's")
        _self, *parameters = inspect.signature(owner.__init__).parameters.values()
        return inspect.Signature(parameters)


class Wrapper(WrapperArguments):
    """A decorator that makes a function restartable in place: ``@Wrapper(...)``, or ``@Wrapper``.

    Keyword arguments only; durations are ``datetime.timedelta``. Arguments are attributes of the
    same names. What is assigned to one counts from the next call of a function on, and is checked
    there.

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
            Default 1 s, or a third of ``heartbeat_timeout`` where that is not longer.
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

    restart_health_check: Callable[..., Any] | None

    __signature__ = _SignatureOfInit()

    @overload
    def __new__(cls, fn: _TakesAnything, /) -> _TakesAnything: ...  # type: ignore[misc]
    @overload
    def __new__(  # type: ignore[misc]
        cls, fn: Callable[Concatenate[CallWrapper, _P], _Result], /
    ) -> Callable[_P, _Result]: ...
    @overload
    def __new__(cls, fn: Callable[_P, _Result], /) -> Callable[_P, _Result]: ...  # type: ignore[misc]
    @overload
    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A Wrapper; where a function is given, that function, decorated.

        A subclass whose own constructor takes positional arguments gets all of them.
        """
        if cls.__init__ is Wrapper.__init__:
            for name in kwargs:
                if name not in NAMES:
                    raise unknown_argument(cls.__name__, name)
        if not args or positional_capacity(cls.__init__)[1] > 1:
            return object.__new__(cls)
        if len(args) > 1 or not _can_be_decorated(args[0]):
            raise TypeError(
                f"{cls.__name__} takes its arguments by keyword; the only one without a keyword "
                f"is the function to decorate, and not {', '.join(map(repr, args))}"
            )
        return cls(**kwargs)(args[0])

    def __init__(
        self,
        *,
        store_factory: type[StoreMixin] = TCPStore,
        store_kwargs: dict[str, Any] | None = None,
        initialize: Initialize | Compose | None = None,
        abort: Abort | Compose | None = _ABORT,
        finalize: Finalize | Compose | None = None,
        health_check: HealthCheck | Compose | None = None,
        rank_assignment: RankAssignment | Compose | None = _RANK_ASSIGNMENT,
        rank_filter: RankFilter | Compose | None = None,
        monitor_thread_interval: dt.timedelta = dt.timedelta(seconds=1),
        monitor_process_interval: dt.timedelta = dt.timedelta(seconds=1),
        heartbeat_interval: dt.timedelta = dt.timedelta(seconds=1),
        progress_watchdog_interval: dt.timedelta = dt.timedelta(seconds=1),
        soft_timeout: dt.timedelta = dt.timedelta(seconds=60),
        hard_timeout: dt.timedelta = dt.timedelta(seconds=90),
        heartbeat_timeout: dt.timedelta = dt.timedelta(seconds=30),
        barrier_timeout: dt.timedelta = dt.timedelta(seconds=120),
        completion_timeout: dt.timedelta = dt.timedelta(seconds=120),
        last_call_wait: dt.timedelta = LAST_CALL_WAIT,
        termination_grace_time: dt.timedelta = dt.timedelta(seconds=5),
        max_start_faults: int | None = MOST,
        monitor_process_logfile: str | None = None,
        monitor_process_pidfile: str | None = None,
        enabled: bool = True,
        completion: Completion | Compose | None = None,
        terminate: Terminate | Compose | None = None,
    ) -> None:
        super().__init__(
            store_factory=store_factory,
            store_kwargs={} if store_kwargs is None else store_kwargs,
            initialize=initialize,
            abort=AbortTorchDistributed() if abort is _ABORT else abort,
            finalize=finalize,
            health_check=health_check,
            rank_assignment=(
                Compose(ActivateAllRanks(), ShiftRanks())
                if rank_assignment is _RANK_ASSIGNMENT
                else rank_assignment
            ),
            rank_filter=rank_filter,
            monitor_thread_interval=monitor_thread_interval,
            monitor_process_interval=monitor_process_interval,
            heartbeat_interval=heartbeat_interval,
            progress_watchdog_interval=progress_watchdog_interval,
            soft_timeout=soft_timeout,
            hard_timeout=hard_timeout,
            heartbeat_timeout=heartbeat_timeout,
            barrier_timeout=barrier_timeout,
            completion_timeout=completion_timeout,
            last_call_wait=last_call_wait,
            termination_grace_time=termination_grace_time,
            max_start_faults=max_start_faults,
            monitor_process_logfile=monitor_process_logfile,
            monitor_process_pidfile=monitor_process_pidfile,
            enabled=enabled,
            completion=completion,
            terminate=terminate,
        )
        self.checked_arguments()

    if not TYPE_CHECKING:  # so that a type checker finds a name that is not there

        def __setattr__(self, name: str, value: object) -> None:
            object.__setattr__(self, name, value)
            if name == "health_check" and (value is None or callable(value)):
                device = os.environ.get("LOCAL_RANK")
                self.restart_health_check = restart_health_check(value, device)

    def checked_arguments(self) -> WrapperArguments:
        """A copy of the arguments as they are now, for one call.

        Raises:
            TypeError, ValueError: As for the class.
        """
        import torch.distributed as dist  # noqa: PLC0415 - the package is imported without torch

        now = WrapperArguments(**{name: getattr(self, name) for name in NAMES})
        now.validate(store_mixin=StoreMixin, distributed_is_available=dist.is_available)
        return now

    @overload
    def __call__(self, fn: _TakesAnything) -> _TakesAnything: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[CallWrapper, _P], _Result]
    ) -> Callable[_P, _Result]: ...
    @overload
    def __call__(self, fn: Callable[_P, _Result]) -> Callable[_P, _Result]: ...
    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The restartable function; ``fn`` itself where ``enabled`` is False.

        It has the parameters of ``fn``, less those that get the CallWrapper.

        Raises:
            TypeError: ``fn`` cannot be called.
        """
        if not callable(fn):
            raise TypeError(f"{type(self).__name__} decorates a function, and not {fn!r}")
        if not self.enabled:
            return fn

        from holdfast.inprocess.wrap import CallWrapper  # noqa: PLC0415 - which imports this module

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not self.enabled:  # any more
                return fn(*args, **kwargs)
            return CallWrapper(self)(fn, args, kwargs)

        signature = injection(fn, CallWrapper).remaining
        if signature is not None:
            wrapped.__signature__ = signature  # type: ignore[attr-defined]
        return wrapped


def _can_be_decorated(value: object) -> bool:
    """A function, and not an argument that lacks its keyword."""
    return callable(value) and not isinstance(value, (type, Compose, *PLUGINS.values()))


class Plugins:
    """The user's plug-ins, each to be called with a state, whatever its generation."""

    def __init__(
        self, a: WrapperArguments, restart_health_check: Callable[..., Any] | None
    ) -> None:
        self.initialize = _state_plugin("initialize", a.initialize)
        self.health_check = _state_plugin("health_check", a.health_check)
        self.restart_health_check = _state_plugin("health_check", restart_health_check)
        self.abort = _state_plugin("abort", a.abort)
        self.finalize = _state_plugin("finalize", a.finalize)
        self.completion = _state_plugin("completion", a.completion)
        self.terminate = _state_plugin("terminate", a.terminate)
        self.assign = AssignmentPlugin(a.rank_assignment, a.rank_filter)


def _state_plugin(family: str, plugin: Callable[..., Any] | None) -> Callable[[State], None]:
    return StatePlugin(family, plugin) if plugin is not None else lambda _state: None
