"""The Wrapper's arguments, and the checks on them.

A wrong type is a ``TypeError`` that names the argument; a wrong value a ``ValueError`` that begins
with the condition that does not hold, and shows the values.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from holdfast.base.pure.wording import nearest
from holdfast.inplace.pure.timing import BEATS_IN_SILENCE, JOIN_S, MAX_START_FAULTS
from holdfast.inprocess.abort import Abort
from holdfast.inprocess.completion import Completion
from holdfast.inprocess.compose import Compose
from holdfast.inprocess.finalize import Finalize
from holdfast.inprocess.health_check import HealthCheck
from holdfast.inprocess.initialize import Initialize
from holdfast.inprocess.rank_assignment import RankAssignment, RankFilter
from holdfast.inprocess.terminate import Terminate

LAST_CALL_WAIT = dt.timedelta(seconds=1)
COMPLETION_TIMEOUT = dt.timedelta(seconds=120)
BARRIER_TIMEOUT = dt.timedelta(seconds=120)
"""Defaults: these objects, and not equal ones, which were asked for."""
PLUGINS: Mapping[str, type] = {
    "initialize": Initialize,
    "abort": Abort,
    "finalize": Finalize,
    "health_check": HealthCheck,
    "rank_assignment": RankAssignment,
    "rank_filter": RankFilter,
    "completion": Completion,
    "terminate": Terminate,
}
_ORDERS = (
    ("soft_timeout", "hard_timeout"),
    ("hard_timeout", "barrier_timeout"),
    ("monitor_process_interval", "barrier_timeout"),
    ("monitor_process_interval", "heartbeat_timeout"),
    ("heartbeat_timeout", "barrier_timeout"),
    ("heartbeat_interval", "heartbeat_timeout"),
    ("monitor_thread_interval", "soft_timeout"),
    ("progress_watchdog_interval", "soft_timeout"),
)
"""The first has to be less than the second."""
_WITHOUT_EFFECT = ("monitor_thread_interval", "monitor_process_interval")
_USUAL_HEARTBEAT_INTERVAL = dt.timedelta(seconds=1)


@dataclass(kw_only=True, eq=False, repr=False)
class WrapperArguments:
    """Base of the Wrapper, which documents them.

    Defaults that stand for objects (``TCPStore``, the default abort) are the Wrapper's.
    """

    store_factory: type
    store_kwargs: dict[str, Any] | None = None
    initialize: Initialize | Compose | None = None
    abort: Abort | Compose | None = None
    finalize: Finalize | Compose | None = None
    health_check: HealthCheck | Compose | None = None
    rank_assignment: RankAssignment | Compose | None = None
    rank_filter: RankFilter | Compose | None = None
    monitor_thread_interval: dt.timedelta = dt.timedelta(seconds=1)
    monitor_process_interval: dt.timedelta = dt.timedelta(seconds=1)
    heartbeat_interval: dt.timedelta = _USUAL_HEARTBEAT_INTERVAL
    progress_watchdog_interval: dt.timedelta = dt.timedelta(seconds=1)
    soft_timeout: dt.timedelta = dt.timedelta(seconds=60)
    hard_timeout: dt.timedelta = dt.timedelta(seconds=90)
    heartbeat_timeout: dt.timedelta = dt.timedelta(seconds=30)
    barrier_timeout: dt.timedelta = BARRIER_TIMEOUT
    completion_timeout: dt.timedelta = COMPLETION_TIMEOUT
    last_call_wait: dt.timedelta = LAST_CALL_WAIT
    termination_grace_time: dt.timedelta = dt.timedelta(seconds=5)
    max_start_faults: int | None = MAX_START_FAULTS
    monitor_process_logfile: str | None = None
    monitor_process_pidfile: str | None = None
    enabled: bool = True
    completion: Completion | Compose | None = None
    terminate: Terminate | Compose | None = None

    @property
    def waits_for_last_call(self) -> bool:
        """Whether ``last_call_wait`` was asked for."""
        return self.last_call_wait is not LAST_CALL_WAIT

    @property
    def join_within(self) -> dt.timedelta:
        """``barrier_timeout``, where it was asked for; else as long as groups of torch wait."""
        is_limited = self.barrier_timeout is not BARRIER_TIMEOUT
        return self.barrier_timeout if is_limited else dt.timedelta(seconds=JOIN_S)

    @property
    def completion_within(self) -> dt.timedelta:
        """``completion_timeout``, where it was asked for; else there is no limit."""
        is_limited = self.completion_timeout is not COMPLETION_TIMEOUT
        return self.completion_timeout if is_limited else dt.timedelta.max

    def validate(self, *, store_mixin: type, distributed_is_available: Callable[[], bool]) -> None:
        """Check all of them, enabled or not; for the errors see the module."""
        self._check_types(store_mixin)
        for name in _TIMES:
            if getattr(self, name) < dt.timedelta(0) and name not in _WITHOUT_EFFECT:
                raise ValueError(f"{name} >= 0 does not hold: {name} is {_seconds(self, name)}")
        if self.max_start_faults is not None and self.max_start_faults < 0:
            raise ValueError(
                f"max_start_faults >= 0 does not hold: max_start_faults is {self.max_start_faults}"
            )
        for less, more in _ORDERS:
            if less == "heartbeat_interval" and self.heartbeats_are_as_usual:
                continue  # the first generation has no such argument: heartbeat_timeout decides
            if not getattr(self, less) < getattr(self, more):
                raise ValueError(
                    f"{less} < {more} does not hold: {less} is {_seconds(self, less)}, {more} is "
                    f"{_seconds(self, more)}"
                )
        for name in ("monitor_process_logfile", "monitor_process_pidfile"):
            _check_path(name, getattr(self, name))
        if not distributed_is_available():
            raise ValueError(
                "torch.distributed.is_available() does not hold: this torch was built without it"
            )

    @property
    def heartbeats_are_as_usual(self) -> bool:
        """Whether heartbeat_interval has its default value."""
        return self.heartbeat_interval == _USUAL_HEARTBEAT_INTERVAL

    @property
    def heartbeats_every(self) -> dt.timedelta:
        """heartbeat_interval, or its default where that is shorter than heartbeat_timeout."""
        if self.heartbeat_interval < self.heartbeat_timeout:
            return self.heartbeat_interval
        return self.heartbeat_timeout / BEATS_IN_SILENCE

    def _check_types(self, store_mixin: type) -> None:
        factory: object = self.store_factory
        if not (isinstance(factory, type) and issubclass(factory, store_mixin)):
            raise _wrong("store_factory", f"a subclass of {store_mixin.__name__}", factory)
        if not isinstance(self.store_kwargs, (dict, type(None))):
            raise _wrong("store_kwargs", "a dict or None", self.store_kwargs)
        for name, base in PLUGINS.items():
            if not isinstance(plugin := getattr(self, name), (base, type(None))):
                article = "an" if base.__name__[0] in "AI" else "a"
                raise _wrong(name, f"{article} {base.__name__} or None", plugin)
        for name in _TIMES:
            if not isinstance(time := getattr(self, name), dt.timedelta):
                raise _wrong(name, "a datetime.timedelta", time, _as_timedelta(time))
        for name in ("monitor_process_logfile", "monitor_process_pidfile"):
            if not isinstance(path := getattr(self, name), (str, type(None))):
                raise _wrong(name, "a str or None", path)
        most: object = self.max_start_faults
        if most is not None and (not isinstance(most, int) or isinstance(most, bool)):
            raise _wrong("max_start_faults", "an int or None", most)
        if not isinstance(self.enabled, bool):
            raise _wrong("enabled", "a bool", self.enabled)


NAMES = tuple(field.name for field in fields(WrapperArguments))
"""Of all arguments, in the order of the constructor."""
_TIMES = tuple(it.name for it in fields(WrapperArguments) if isinstance(it.default, dt.timedelta))


def unknown_argument(kind: str, name: str) -> TypeError:
    """The error for a ``name`` that is not among :data:`NAMES`, of class ``kind``."""
    near = nearest(name, NAMES)
    hint = f"did you mean {near}?" if near else f"its arguments are {', '.join(NAMES)}"
    return TypeError(f"{kind} has no argument {name}: {hint}")


def _wrong(name: str, expected: str, value: object, remedy: str = "") -> TypeError:
    return TypeError(f"{name} should be {expected}, is {value!r}{remedy}")


def _as_timedelta(time: object) -> str:
    """A hint for a plain number in the place of a timedelta."""
    is_number = isinstance(time, (int, float)) and not isinstance(time, bool)
    return f": for seconds, write datetime.timedelta(seconds={time!r})" if is_number else ""


def _seconds(arguments: WrapperArguments, name: str) -> str:
    return f"{getattr(arguments, name).total_seconds():g} s"


def _check_path(name: str, path: str | None) -> None:
    if path is None:
        return
    if not Path(path).is_absolute():
        raise ValueError(f"os.path.isabs({name}) does not hold: {name} is {path!r}")
    try:
        path.format(rank=0)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(
            f"{name} may hold {{rank}} and nothing else in braces, is {path!r} ({error!r})"
        ) from None
