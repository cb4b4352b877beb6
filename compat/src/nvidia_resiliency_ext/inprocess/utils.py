"""Small parts of a restart in place, for programs that put one together themselves.

The Wrapper needs none of them: its main thread waits for its guard, and logs exceptions itself.
"""

from __future__ import annotations

import datetime as dt
import threading
from typing import Any

from holdfast.base.rank_log import rank_logger
from holdfast.inprocess.exception import RestartError

__all__ = ["HealthCheckPassed", "log_exc", "spare_fn"]

_LOGGER = rank_logger("holdfast.compat")


class HealthCheckPassed(RestartError):  # noqa: N818 - the name is public API
    """This rank is well; for programs that tell it as an exception. The Wrapper raises none."""


def log_exc(rank_or_state: Any, exc: BaseException, name: str = "fn") -> None:
    """Log an exception in one line, as an error, and its traceback at level debug.

    Args:
        rank_or_state: A rank, or a state that has one.
        exc: The exception.
        name: What raised it.
    """
    rank = getattr(rank_or_state, "rank", rank_or_state)
    _LOGGER.error("rank %s: %s raised %r", rank, name, exc)
    _LOGGER.debug("rank %s: %s raised", rank, name, exc_info=exc)


def spare_fn(
    store: Any,
    progress_watchdog: Any = None,
    interval: dt.timedelta = dt.timedelta(seconds=1),
) -> None:
    """The work of a reserve rank: it waits until any rank has completed the iteration.

    Args:
        store: Of the iteration, with :class:`~nvidia_resiliency_ext.inprocess.store.StoreMixin`.
        progress_watchdog: Its ``ping`` is called each ``interval``; ``None``: nothing is.
        interval: Between two looks.
    """
    never = threading.Event()
    while not store.is_any_rank_completed():
        if progress_watchdog is not None:
            progress_watchdog.ping()
        never.wait(interval.total_seconds())
