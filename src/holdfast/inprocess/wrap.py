"""``Wrapper``: when any rank fails, all ranks call the function again, in the same processes.

::

    @holdfast.inprocess.Wrapper()
    def train(call: holdfast.inprocess.CallWrapper):
        torch.distributed.init_process_group("gloo")
        ...
"""

from __future__ import annotations

import contextlib
import datetime as dt  # noqa: F401 - a type of __init__, which typing.get_type_hints finds here
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast, overload

from holdfast.base.clock import monotonic
from holdfast.inplace.atomic import Atomic
from holdfast.inprocess._arguments import (
    NAMES,
    PLUGINS,
    WrapperArguments,
    unknown_argument,
)
from holdfast.inprocess._call import RestartableCall
from holdfast.inprocess._inject import injection
from holdfast.inprocess.abort import Abort, AbortTorchDistributed
from holdfast.inprocess.completion import Completion  # noqa: F401 - a type of __init__
from holdfast.inprocess.compose import Compose, positional_capacity
from holdfast.inprocess.exception import InternalError
from holdfast.inprocess.finalize import Finalize  # noqa: F401 - a type of __init__
from holdfast.inprocess.health_check import HealthCheck, restart_health_check  # noqa: F401 - a type of __init__
from holdfast.inprocess.initialize import Initialize  # noqa: F401 - a type of __init__
from holdfast.inprocess.rank_assignment import (
    ActivateAllRanks,
    RankAssignment,
    RankFilter,  # noqa: F401 - a type of __init__
    ShiftRanks,
)
from holdfast.inprocess.state import State
from holdfast.inprocess.store import StoreMixin, TCPStore
from holdfast.inprocess.terminate import Terminate  # noqa: F401 - a type of __init__
from holdfast.page.pure import page as layout

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CallWrapper", "Wrapper"]

_P = ParamSpec("_P")
_Result = TypeVar("_Result")


class _NotACallWrapper:
    """Only a parameter of type ``Any`` or ``object`` takes one."""


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


@dataclass(kw_only=True, eq=False, repr=False)
class Wrapper(WrapperArguments):
    """A decorator that makes a function restartable in place: ``@Wrapper(...)``, or ``@Wrapper``.

    Keyword arguments only; durations are ``datetime.timedelta``. Arguments are attributes of the
    same names. A value that is assigned to one counts from the next call of a function on, and is
    checked there.

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
        rank_assignment: New numbers for ranks after losses. Default
            ``Compose(ActivateAllRanks(), ShiftRanks())``. ``None``: no rank moves up; after a loss,
            every rank leaves with ``RestartError``.
        rank_filter: Called after ``rank_assignment``: which ranks are active.
        monitor_thread_interval: Accepted; the abort is pushed, nothing polls. Default 1 s.
        monitor_process_interval: Accepted; the guard sleeps until a limit can run out. Default 1 s.
        heartbeat_interval: How often a node's guard and the coordinator exchange heartbeats.
            Default 1 s, or a third of ``heartbeat_timeout`` where that is not longer.
        progress_watchdog_interval: How often progress is marked. Default 1 s.
        soft_timeout: No progress for so long restarts all ranks. Default 60 s.
        hard_timeout: No progress for so long kills the rank. Default 90 s.
        heartbeat_timeout: A node without heartbeats for so long is lost. Default 30 s.
        barrier_timeout: How long ranks are waited for at the start, and after a fault. Default
            120 s; at the start, where it was not given, 30 min, as in torch's groups: one rank may
            prepare data, or save between two calls, while the others wait.
        completion_timeout: From the first rank that completed to the last; later, all ranks
            restart. Default 120 s, a limit only where it was asked for: a rank may evaluate or
            save alone at the end.
        last_call_wait: Least time between a fault and the next call. Default 1 s, which is not
            waited where it was not asked for: the restart itself gathers concurrent faults.
        max_start_faults: Restarts in a row after iterations that failed before the function was
            entered, or in its ``init_process_group``. Each waits longer (0, 0.1, 0.2 ... 30 s); the
            next such fault ends the call on all ranks. Default 12; ``None``: no end, and no waits.
            Iterations in a row that last less than 0.1 s wait as long, but without an end.
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

    store_factory: type[StoreMixin] = TCPStore
    abort: Abort | Compose | None = _ABORT
    rank_assignment: RankAssignment | Compose | None = _RANK_ASSIGNMENT
    restart_health_check: Callable[..., Any] | None = field(init=False)

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

    def __post_init__(self) -> None:
        if self.store_kwargs is None:
            self.store_kwargs = {}
        if self.abort is _ABORT:
            self.abort = AbortTorchDistributed()
        if self.rank_assignment is _RANK_ASSIGNMENT:
            self.rank_assignment = Compose(ActivateAllRanks(), ShiftRanks())
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
            TypeError: ``fn`` cannot be called, or is a generator or ``async`` function.
        """
        if not callable(fn):
            raise TypeError(f"{type(self).__name__} decorates a function, and not {fn!r}")
        if self.enabled and (kind := _runs_after_its_call(fn)) is not None:
            raise TypeError(
                f"{type(self).__name__} decorates a function that has trained when it returns, and "
                f"{fn!r} is {kind}: its body runs later, where nothing restarts it. Decorate the "
                "function that runs it"
            )
        if not self.enabled:
            return fn

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not self.enabled:  # any more
                return fn(*args, **kwargs)
            return CallWrapper(self)(fn, args, kwargs)

        signature = injection(fn, CallWrapper).remaining
        if signature is not None:
            wrapped.__signature__ = signature  # type: ignore[attr-defined]
        return wrapped


def _runs_after_its_call(fn: Callable[..., Any]) -> str | None:
    """What ``fn`` is, if its body does not run while it is called."""
    if inspect.iscoroutinefunction(fn):
        return "an async function"
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        return "a generator function"
    return None


def _can_be_decorated(value: object) -> bool:
    """A function, and not an argument that lacks its keyword."""
    return callable(value) and not isinstance(value, (type, Compose, *PLUGINS.values()))


class CallWrapper(RestartableCall):
    """One call of a wrapped function, with all its restarts; injected into its parameters.

    ``Wrapper(...)(fn)(*args)`` is ``CallWrapper(Wrapper(...))(fn, args)``.
    """

    def __init__(self, wrapper: Wrapper) -> None:
        """Copy the arguments of ``wrapper``, and read the environment.

        Raises:
            ValueError: ``torch.distributed`` is initialised already.
        """
        import torch.distributed as dist  # noqa: PLC0415

        if dist.is_initialized():
            raise ValueError(
                "not torch.distributed.is_initialized() does not hold: the wrapped function makes "
                "its process groups itself, in each iteration"
            )
        super().__init__(wrapper.checked_arguments(), wrapper.restart_health_check)
        self._wrapper = wrapper
        self._is_used = False

    def __call__(
        self, fn: Callable[..., _Result], args: Sequence[Any] = (), kwargs: Any = None
    ) -> _Result:
        """Call ``fn``, again and again, until it has returned on all ranks; once per object.

        In a ``with`` block of this object; outside of one, it makes its own.

        Args:
            fn: The function; gets this object where it is annotated so.
            args: Its positional arguments.
            kwargs: Its keyword arguments, a mapping.

        Returns:
            Its result in the iteration that all ranks completed; ``None`` on a rank that was
            inactive in that one.

        Raises:
            InternalError: This is not the main thread, or the object was used before.
            BarrierTimeout: Not all ranks came within ``barrier_timeout``.
            BaseException: Whatever this rank leaves the call with.
        """
        if self._is_used:
            raise InternalError("a CallWrapper is one call, and this one was made: make another")
        if not self._is_entered:
            with self:
                return self(fn, args, kwargs)
        self._is_used = True
        given, named = injection(fn, CallWrapper).bind(tuple(args), kwargs or {}, self)
        return cast("_Result", self._run(functools.partial(fn, *given, **named)))

    # ------------------------------------------------------------ what users call

    @property
    def wrapper(self) -> Wrapper:
        """The Wrapper of this call."""
        return self._wrapper

    @property
    def state(self) -> State:
        """Of this rank: one object for the whole call, with the numbers of this iteration."""
        return self._state

    @property
    def store(self) -> Any:
        """The store of this iteration, empty at its beginning; ``None`` between iterations."""
        return self._store

    @property
    def base_store(self) -> Any:
        """A store for the whole call; ``None`` outside of it.

        It is kept beside the coordinator, so that no rank's loss takes it along. The store that
        ``store_factory`` made is dropped when all ranks have met.
        """
        return self._base_store

    @property
    def atomic_lock(self) -> Atomic:
        """The lock that :meth:`atomic` enters; has ``acquire`` and ``release`` of an ``RLock``."""
        return self._interrupt.atomic

    @property
    def iteration(self) -> int:
        """How many times the function was called before, on all ranks: 0, 1, 2 ..."""
        return self._iteration

    def ping(self) -> None:
        """Mark progress. After the first one in an iteration, later ones must come in time, too."""
        self._page.words[layout.MANUAL] = monotonic()

    def atomic(self) -> Atomic:
        """A section that a restart does not begin in; a context manager, and a decorator.

        Reentrant, and it excludes sections of other threads. While one is open, no collective of
        this rank is aborted and nothing is raised in it: the restart waits, and so do the other
        ranks, up to ``barrier_timeout``. Once a restart has begun, a section is not entered any
        more: the main thread gets the restart where it would enter.

        A section that does not end, such as one that waits for a lost rank, has its process ended:
        after ``hard_timeout`` without progress of the main thread, and ``barrier_timeout`` after
        the fault in any case; at once where the guard of the node is gone.
        """
        return self._interrupt.atomic

    @contextlib.contextmanager
    def disable_hang_protection(self) -> Iterator[None]:
        """A section in which no progress is expected; faults and deaths still restart."""
        before = self._page.words[layout.UNLIMITED]
        self._page.words[layout.UNLIMITED] = 1.0
        try:
            yield
        finally:
            self._session.mark_progress()
            self._page.words[layout.UNLIMITED] = before
