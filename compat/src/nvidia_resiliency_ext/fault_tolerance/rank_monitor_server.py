"""Rank monitors that a program starts by itself."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.fault_tolerance.rank_monitor_server import RankMonitorProcess
from holdfast.fault_tolerance.rank_monitor_server import RankMonitorServer as _RankMonitorServer

if TYPE_CHECKING:
    from holdfast.fault_tolerance.config import FaultToleranceConfig

__all__ = ["RankMonitorLogger", "RankMonitorServer"]


class RankMonitorLogger(logging.Logger):
    """A logger with a handler of its own, for the lines of a layered-restart state machine.

    Args:
        name: Of the logger.
        level: Least level that is written.
        is_restarter_logger: Write the lines of :meth:`log_restarter_event`, to stderr.
    """

    def __init__(
        self,
        name: str = "RankMonitor",
        level: int = logging.INFO,
        is_restarter_logger: bool = False,
    ) -> None:
        super().__init__(name, level)
        self.is_restarter_logger = is_restarter_logger
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s [%(levelname)s] %(message)s"))
        self.addHandler(handler)

    def log_restarter_event(self, message: str) -> None:
        """Write one line about layered restarts, if that was asked for."""
        if self.is_restarter_logger:
            self.info(message)


class RankMonitorServer(_RankMonitorServer):
    """Starts rank monitors; see :class:`holdfast.fault_tolerance.RankMonitorServer`."""

    @staticmethod
    def run_in_subprocess(
        cfg: FaultToleranceConfig,
        ipc_socket_path: str,
        is_restarter_logger: bool = False,
        mp_ctx: Any = None,
        env: Mapping[str, str] | None = None,
    ) -> RankMonitorProcess:
        """Start a rank monitor; it serves one rank at a time until it is ended.

        A learned timeout is ``safety_factor`` times the longest interval, as programs that start
        monitors by this name expect, unless ``cfg`` has a ``learned_timeout_floor`` of its own.
        ``ft_launcher``'s monitors keep holdfast's default of that.

        Args:
            cfg: Its configuration; the rank gets it, too, when it connects.
            ipc_socket_path: Unix socket for the rank (``FT_RANK_MONITOR_IPC_SOCKET``).
            is_restarter_logger: Write lines about layered restarts to stdout.
            mp_ctx: Without effect: monitors are never forked.
            env: Environment variables to add for the monitor.

        Raises:
            RuntimeError: It was not ready within 180 s.
            OSError: The socket or the process cannot be made.
        """
        if cfg.learned_timeout_floor == type(cfg)().learned_timeout_floor:
            cfg = dataclasses.replace(cfg, learned_timeout_floor=0.0)
        return _RankMonitorServer.run_in_subprocess(
            cfg, ipc_socket_path, is_restarter_logger, mp_ctx, env
        )
