"""Errors that are a :class:`RankMonitorClientError` and a builtin type.

So code written against ``RuntimeError`` and ``OSError`` goes on to work.
"""

from __future__ import annotations

from typing import NoReturn

from holdfast.errors import RankMonitorClientError


class NoSetupError(RankMonitorClientError, RuntimeError):
    """Something that the environment should have provided is not there."""


class UnreachableError(RankMonitorClientError, OSError):
    """A socket cannot be connected to."""


def raise_unreachable(rank: int, peer: str, cause: OSError) -> NoReturn:
    """Raise that the rank cannot reach its ``peer``, and why."""
    error = UnreachableError(f"rank {rank}: its {peer} cannot be reached: {cause}")
    error.errno = cause.errno
    raise error from cause
