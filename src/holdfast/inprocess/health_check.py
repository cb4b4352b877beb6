"""Is this rank fit to take part? Asked before the function is called, and again after each fault.

A check that cannot be made passes: none here needs CUDA, NVML or a network card.
"""

from __future__ import annotations

import abc
import datetime as dt
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from holdfast.base.pure.wording import count
from holdfast.base.rank_log import rank_logger
from holdfast.inplace.cuda import cuda_in_use, own_device
from holdfast.inprocess._timing import in_seconds, run_within
from holdfast.inprocess.compose import Compose
from holdfast.inprocess.exception import HealthCheckError, RestartError
from holdfast.inprocess.state import FrozenState, State

__all__ = [
    "ChainedGPUHealthCheck",
    "ChainedNVLHealthCheck",
    "ChainedNicHealthCheck",
    "CudaHealthCheck",
    "FaultCounter",
    "FaultCounterExceeded",
    "HealthCheck",
]

LOGGER = rank_logger(__name__)

_State = FrozenState | State | None


class HealthCheck(abc.ABC):
    """Base of all checks. One that raises says that this rank is not fit.

    Before the function, that is a fault like any other; after a fault, the rank leaves with
    :class:`~holdfast.inprocess.exception.HealthCheckError`.
    """

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Raise, or give back ``state``."""


class _Check(HealthCheck):
    """A check that is called in the manner of either generation."""

    def __call__(self, state: Any, *exception: Any) -> Any:
        """Raise, or give back what came."""
        self._check(state, exception[0] if exception else getattr(state, "fn_exception", None))
        return (state, *exception) if exception else state

    @abc.abstractmethod
    def _check(self, state: _State, exception: Exception | None) -> None:
        """Raise where this rank is not fit."""


class CudaHealthCheck(_Check):
    """The device answers. Passes where CUDA is not initialised.

    Synchronises twice: in a thread, as a stuck device never answers; then here, so that an error
    that the device has been keeping is raised here.

    Args:
        timeout: How long the device may take.

    Raises:
        exception.TimeoutError: When called, and the device does not answer.
    """

    def __init__(self, timeout: dt.timedelta = dt.timedelta(seconds=30)) -> None:
        if not isinstance(timeout, dt.timedelta):
            raise TypeError(f"timeout should be a datetime.timedelta, is {timeout!r}")
        self.timeout = timeout

    def _check(self, state: _State, exception: Exception | None) -> None:  # noqa: ARG002
        cuda = cuda_in_use()
        if cuda is None:
            return
        device = own_device()
        run_within(
            in_seconds(self.timeout),
            f"synchronising CUDA device {device}",
            lambda: cuda.synchronize(device),
        )
        cuda.synchronize(device)


class FaultCounterExceeded(RestartError):  # noqa: N818 - the name is public API
    """This rank failed more often than it may."""


class FaultCounter(_Check):
    """Counts faults of this rank, not those of others that interrupt it.

    Args:
        max_rank_faults: So many are allowed; ``None``: any number.

    Attributes:
        faults: Counted so far.

    Raises:
        FaultCounterExceeded: When called, and there is one too many.
    """

    def __init__(self, max_rank_faults: int | None = None) -> None:
        self.max_rank_faults = max_rank_faults
        self.faults = 0

    def _check(self, state: _State, exception: Exception | None) -> None:
        if exception is None:
            return
        self.faults += 1
        if self.max_rank_faults is not None and self.faults > self.max_rank_faults:
            name = "this rank" if state is None else f"rank {state.rank}"
            raise FaultCounterExceeded(
                f"{name} has failed {count(self.faults, 'time')}, "
                f"max_rank_faults={self.max_rank_faults}; "
                f"the last time by {exception!r}"
            )


# ---------------------------------------------------------------- hardware
def _probe(name: str, device_index: int | None) -> Any:
    """A finding of ``holdfast.health``; ``None``: nothing wrong, or it cannot tell."""
    try:
        probe = getattr(import_module("holdfast.health"), name)
    except (ImportError, AttributeError):
        return None
    return cast("Callable[[int | None], Any]", probe)(device_index)


class _DeviceCheck(_Check):
    def __init__(self, device_index: int | None = None) -> None:
        self.device_index = device_index


class ChainedGPUHealthCheck(_DeviceCheck):
    """The driver asks for no recovery action on the GPU.

    Args:
        device_index: Of the GPU; ``None``: all of this node.

    Raises:
        HealthCheckError: When called, and it does.
    """

    def _check(self, state: _State, exception: Exception | None) -> None:  # noqa: ARG002
        problem = _probe("gpu_problem", self.device_index)
        if problem is not None:
            raise HealthCheckError(str(problem))


class ChainedNVLHealthCheck(_DeviceCheck):
    """Looks at the NVLinks of the GPU, and logs a problem; never fails.

    Args:
        device_index: Of the GPU; ``None``: all of this node.
    """

    def _check(self, state: _State, exception: Exception | None) -> None:  # noqa: ARG002
        problem = _probe("nvlink_problem", self.device_index)
        if problem is not None:
            LOGGER.warning("%s", problem)


class ChainedNicHealthCheck(_DeviceCheck):
    """The network card of the GPU has not lost its link since the check was last made.

    Args:
        device_index: Of the GPU; ``None``: all cards of this node.

    Raises:
        HealthCheckError: When called, and it has.
    """

    def __init__(self, device_index: int | None = None) -> None:
        super().__init__(device_index)
        self._before = self._count()

    def _check(self, state: _State, exception: Exception | None) -> None:  # noqa: ARG002
        before, self._before = self._before, self._count()
        lost = [
            f"{card} ({count(before[card], 'time')} before, {now} now)"
            for card, now in sorted(self._before.items())
            if card in before and now > before[card]
        ]
        if lost:
            raise HealthCheckError(f"a network link went down: {', '.join(lost)}")

    def _count(self) -> dict[str, int]:
        """How often each card has lost its link."""
        return dict(_probe("link_downed_counts", self.device_index) or {})


def restart_health_check(
    health_check: Callable[..., Any] | None, local_rank: str | None
) -> Callable[..., Any] | None:
    """The checks after a fault: the network card, NVLink, the GPU, then the user's.

    Args:
        health_check: The user's; a Compose is taken apart.
        local_rank: ``LOCAL_RANK``, the device. Where it is not a whole number, only the user's
            checks are made.

    Returns:
        ``None`` where there is nothing to check.
    """
    try:
        device = int(local_rank or "")
    except ValueError:
        return health_check
    users: tuple[Callable[..., Any], ...] = ()
    if isinstance(health_check, Compose):
        users = health_check.instances
    elif health_check is not None:
        users = (health_check,)
    return Compose(
        *users,
        ChainedGPUHealthCheck(device),
        ChainedNVLHealthCheck(device),
        ChainedNicHealthCheck(device),
    )
