"""Durations as the machines, torch and the kernel take them, and calls that may take too long."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from holdfast.base.bounded import call_within
from holdfast.inprocess.exception import TimeoutError as RestartTimeoutError

_LONGEST = dt.timedelta(days=3650)
"""The longest that is counted, and means never: torch and the kernel cannot count much longer."""


def in_seconds(duration: dt.timedelta) -> float:
    """At most ten years, which stand for ever."""
    return min(duration, _LONGEST).total_seconds()


def run_within(timeout_s: float, task: str, function: Callable[[], object]) -> None:
    """Call ``function`` in a thread, which is left behind if it does not end within ``timeout_s``.

    Raises:
        RestartTimeoutError: It did not end in time; names ``task``.
    """
    late = RestartTimeoutError(f"{task} did not end within its timeout of {timeout_s:g} s")
    call_within(timeout_s, function, late, f"holdfast {task}")
