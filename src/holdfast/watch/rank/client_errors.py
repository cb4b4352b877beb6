"""What a rank's calls raise beyond :class:`RankMonitorClientError`: the same, and a builtin type.

So that code written against ``RuntimeError`` and ``OSError`` goes on to work.
"""

from __future__ import annotations

from typing import NoReturn

from holdfast.errors import RankMonitorClientError


class NoSetupError(RankMonitorClientError, RuntimeError):
    """Something that the environment should have provided is not there."""


class UnreachableError(RankMonitorClientError, OSError):
    """A socket cannot be connected to."""


def raise_unreachable(rank: int, whom: str, cause: OSError) -> NoReturn:
    """Say who cannot be reached by whom, and why."""
    error = UnreachableError(f"rank {rank}: its {whom} cannot be reached: {cause}")
    error.errno = cause.errno
    raise error from cause
