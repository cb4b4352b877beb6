"""The client of this process, for a script that runs with ``ft_launcher`` and without it.

with a monitor in the environment        the one RankMonitorClient of the process, initialised
plain python, torchrun, a child process  a client whose calls do nothing
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from holdfast.fault_tolerance.data import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, WorkloadControlRequest
from holdfast.fault_tolerance.rank_monitor_client import RankMonitorClient
from holdfast.watch.rank.rank_info import UnreachableError

_REFUSED = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE)
"""Of a socket on which the launcher has listened: the second, of a connection made before."""


def client() -> RankMonitorClient:
    """The client of this rank, initialised; one that does nothing where no launcher watches.

    Call it as often as you like: it is the same client each time, and initialised again after a
    ``shutdown_workload_monitoring()``. Where the process was not started by ``ft_launcher`` (plain
    ``python``, ``torchrun``), and in children that ``multiprocessing`` starts, the client has the
    same methods, which return at once: calculations return ``False``, requests to the launcher are
    dropped, and ``state_dict()`` is what ``load_state_dict()`` was given. One line in the log says
    so; ``client().is_initialized`` is false there. The same where the launcher could start no
    monitor for this rank, which it logs: the rank runs unwatched.

    Raises:
        RankMonitorClientError: There is a monitor, and it refused or does not answer, as
            :meth:`RankMonitorClient.init_workload_monitoring` raises it.
    """
    with _Own.lock:
        own, is_watched = _Own.client, _is_watched()
        if own is None or (not own.is_initialized and isinstance(own, _Unwatched) == is_watched):
            own = _Own.client = RankMonitorClient() if is_watched else _Unwatched()
            own.keeps_given_timeouts = True
        if is_watched and not own.is_initialized:
            try:
                own.init_workload_monitoring()
            except UnreachableError as error:
                if error.errno not in _REFUSED:
                    raise
                own._step_aside()  # noqa: SLF001 - of this class, too
                own = _Own.client = _Unwatched(str(error))
                _Own.refused_by = os.environ.get(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR)
        return own


class _Own:
    """The client of this process, once it was asked for."""

    lock = threading.Lock()
    client: RankMonitorClient | None = None
    refused_by: str | None = None
    """The socket of the monitor that this rank does not have."""


def _is_watched() -> bool:
    path = os.environ.get(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR)
    return bool(path) and path != _Own.refused_by and not _is_child()


def _is_child() -> bool:
    """Of ``multiprocessing``: it imports the script again, and is not the rank.

    It has the variables of its rank. Without this, a data-loader worker would wait until the rank
    leaves the monitor.
    """
    module = sys.modules.get("multiprocessing.process")
    if module is None:
        return False
    is_importing = getattr(module.current_process(), "_inheriting", False)  # not a child's yet
    return is_importing or module.parent_process() is not None


class _Unwatched(RankMonitorClient):
    """Refuses nothing and does nothing, as the client of a forked child."""

    def __init__(self, why_refused: str = "") -> None:
        super().__init__()
        self._disarmed = True
        self._state: dict[str, Any] = {}
        if why_refused:
            self.logger.error(
                "this rank runs unwatched, hangs of it will not be found: the launcher could start "
                "no monitor for it, and has logged why (%s)",
                why_refused,
            )
            return
        is_said = os.environ.get("RANK", "0") == "0" and not _is_child()  # one line for the job
        self.logger.log(
            logging.INFO if is_said else logging.DEBUG,
            "no launcher watches this process: its hangs will not be found, its heartbeats and "
            "sections have no effect. Start the script with ft_launcher to have it watched",
        )

    def _report_no_launcher(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {self.CURRENT_TIMEOUTS_STATE_KEY: self._state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._state = dict(state.get(self.CURRENT_TIMEOUTS_STATE_KEY) or {})

    def send_workload_control_request(self, req: WorkloadControlRequest) -> None:
        self.logger.debug("no launcher watches this process: %s was not sent", req)


def _renew_lock() -> None:
    _Own.lock = threading.Lock()  # a thread that held it has stayed in the parent


os.register_at_fork(after_in_child=_renew_lock)
