"""Every exception of in-process restart, each under the one that it is derived from.

::

    Exception
    └── RestartError                    a restart cannot be carried out on this rank
        ├── HealthCheckError            this rank is unhealthy, or its check failed
        ├── InternalError               the wrapper is wrong, or a restart was swallowed
        ├── TimeoutError                a finalizer or a health check took too long
        ├── BarrierError
        │   ├── BarrierTimeout          not all came in time
        │   └── BarrierOverflow         more came than there should be
        ├── rank_assignment.RankDiscarded           the assignment has no place for this rank
        └── health_check.FaultCounterExceeded       this rank failed too often
    BaseException
    ├── RestartAbort                    raise it to leave; the other ranks go on
    └── RankShouldRestart               arrives in the function when it is to be called again

The last two are not :class:`Exception`, so that ``except Exception`` in training code does not
swallow them.
"""

from __future__ import annotations

from holdfast.errors import HoldfastError

__all__ = [
    "BarrierError",
    "BarrierOverflow",
    "BarrierTimeout",
    "HealthCheckError",
    "InternalError",
    "RankShouldRestart",
    "RestartAbort",
    "RestartError",
    "TimeoutError",
]


class RestartError(HoldfastError):
    """A restart that cannot be carried out on this rank."""


class HealthCheckError(RestartError):
    """This rank must not take part any more."""


class InternalError(RestartError):
    """A mistake in the wrapper, or a function that swallowed the request to restart."""


class TimeoutError(RestartError):  # noqa: A001 - the name is public API
    """A finalizer or a health check did not end within its timeout."""


class BarrierError(RestartError):
    """Ranks did not meet."""


class BarrierTimeout(BarrierError):  # noqa: N818 - the name is public API
    """Not all ranks came to a barrier in time."""


class BarrierOverflow(BarrierError):  # noqa: N818 - the name is public API
    """More ranks came to a barrier than it is for."""


class RestartAbort(BaseException):
    """Raise it in the function or in a plug-in: this rank leaves, the others go on without it."""


class RankShouldRestart(BaseException):
    """Arrives in the function, at any line, when it is to be called again: let it pass.

    Raised by the function itself, it is a request to restart.
    """
