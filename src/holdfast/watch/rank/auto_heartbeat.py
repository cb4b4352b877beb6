"""Count the steps of a rank's optimizer, which the script need not report.

Of a rank whose script sends no heartbeats they are the heartbeats. Beside a client of the script's
they say that the rank makes progress while no timeout of its own runs, as between two sections.
A rank that is watched so is never called hung for being slow: see ``watch/pure/steps.py``.
"""

from __future__ import annotations

import os
import sys

from holdfast.errors import RankMonitorClientError
from holdfast.fault_tolerance import rank_monitor_client
from holdfast.fault_tolerance.data import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.page.pure import page as layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.watch.rank.rank_info import RankInfo


class StepClient(rank_monitor_client.RankMonitorClient):
    """The client of a rank whose script has none. Raises nothing."""

    _is_automatic = True

    def _count_step(self) -> None:
        """It is a heartbeat."""
        words = self._words
        if words is not None:
            words[layout.STEPS] += 1.0
            self.send_heartbeat()

    def _expect_heartbeats(self) -> None:
        """None comes before the next step."""

    def _announce(self, info: RankInfo) -> None:
        """Nothing: logging and stderr belong to the script, so the launcher logs it."""


def begin() -> Callable[[], None]:
    """Begin after some steps; return the function to call after each one from now on."""
    if not os.environ.get(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR) or _is_child():
        return _nothing
    if not rank_monitor_client.initialised_clients():
        client = StepClient()
        _kept.append(client)
        try:
            client.init_workload_monitoring()
        except (RankMonitorClientError, OSError, RuntimeError) as error:
            client.logger.debug("optimizer steps do not count as heartbeats: %s", error)
    rank_monitor_client.count_step()
    return rank_monitor_client.count_step


_kept: list[StepClient] = []
"""The client of this process that is automatic: there is no other reference to it."""


def _nothing() -> None:
    pass


def _is_child() -> bool:
    """Of ``multiprocessing``: it has the variables of its rank, and is not the rank."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None
