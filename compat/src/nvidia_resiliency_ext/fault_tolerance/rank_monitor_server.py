"""Rank monitors that a program starts by itself: for tests, notebooks, and launchers of others.

The same process that ``ft_launcher`` starts beside each rank, on a socket path of the caller's
choice. It is exec'd, not forked, so there is nothing to get right about when to call this.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.base import clock, wait_for
from holdfast.base.own_file import OwnFile
from holdfast.base.processes import child
from holdfast.base.pure import codec
from holdfast.net import endpoint
from holdfast.net.client import Client
from holdfast.node.processes.controlled_process import ControlledProcess, start_monitor
from holdfast.page import page
from holdfast.watch.pure.monitor_messages import TO_LAUNCHER, ConfigureMonitor, Cycle, MonitorReady

if TYPE_CHECKING:
    from holdfast.fault_tolerance.config import FaultToleranceConfig

__all__ = ["RankMonitorLogger", "RankMonitorServer"]

READY_S = 180.0
"""How long a monitor may take to start."""
_SIGTERM, _SIGKILL = 15, 9


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


class RankMonitorProcess:
    """A handle like ``multiprocessing.Process``; only the process that made it may wait for it.

    Attributes:
        name: For people.
        pid: Of the monitor.
        daemon: True: it ends with its maker.
        sentinel: Descriptor that is readable when it has ended.
    """

    daemon = True

    def __init__(self, started: ControlledProcess, socket_path: str, private_dir: str) -> None:
        self.pid = started.pid
        self.name = f"RankMonitor-{started.pid}"
        self.sentinel = child.end_descriptor(started.pid)
        self._maker = os.getpid()
        self._control = started.control
        self._socket_file = OwnFile(socket_path)
        self._private_dir = private_dir
        self._exit_code: int | None = None
        # Also keeps the handle alive: a monitor whose control connection is closed leaves.
        atexit.register(self._end_with_maker)

    @property
    def ident(self) -> int:
        """Same as ``pid``."""
        return self.pid

    @property
    def exitcode(self) -> int | None:
        """``None`` while it runs; -N if signal N ended it."""
        self._reap(wait=False)
        return self._exit_code

    def is_alive(self) -> bool:
        """It has not ended."""
        return self.exitcode is None

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._send(_SIGTERM)

    def kill(self) -> None:
        """End it (SIGKILL)."""
        self._send(_SIGKILL)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, ``timeout`` seconds at most."""
        if self._exit_code is None:
            wait_for.readable(self.sentinel, timeout)
            self._reap(wait=False)

    def close(self) -> None:
        """Release the handle.

        Raises:
            ValueError: The process still runs.
        """
        if self.is_alive():
            raise ValueError(f"{self.name} still runs; terminate() and join() it first")

    def _send(self, signum: int) -> None:
        if self.is_alive():
            os.kill(self.pid, signum)

    def _reap(self, *, wait: bool) -> None:
        if self._exit_code is not None:
            return
        if os.getpid() != self._maker:
            raise AssertionError(f"{self.name} is not a child of this process")
        try:
            pid, status = os.waitpid(self.pid, 0 if wait else os.WNOHANG)
            if pid == 0:
                return
            self._exit_code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:  # the program has waited for all children
            if not wait_for.readable(self.sentinel, 0.0):
                return
            self._exit_code = 0
        self._clean_up()

    def _clean_up(self) -> None:
        """After its end, whatever that was."""
        atexit.unregister(self._end_with_maker)
        self._control.close()
        os.close(self.sentinel)
        with contextlib.suppress(OSError):
            self._socket_file.remove()  # it removes it itself, unless killed
        shutil.rmtree(self._private_dir, ignore_errors=True)

    def _end_with_maker(self) -> None:
        if os.getpid() == self._maker and self.is_alive():
            self.kill()
            self._reap(wait=True)


class RankMonitorServer:
    """Starts rank monitors."""

    @staticmethod
    def run_in_subprocess(
        cfg: FaultToleranceConfig,
        ipc_socket_path: str,
        is_restarter_logger: bool = False,
        mp_ctx: object = None,
        env: Mapping[str, str] | None = None,
    ) -> RankMonitorProcess:
        """Start a rank monitor; it serves one rank at a time until it is ended.

        A learned timeout is ``safety_factor`` times the longest interval, as programs that start
        monitors by this name expect, unless ``cfg`` has a ``learned_timeout_floor`` of its own.
        ``ft_launcher``'s monitors keep holdfast's default of that.

        A hung rank is sent ``cfg.rank_termination_signal`` and nothing else: no SIGKILL follows
        another signal, as one does under ``ft_launcher``. Whoever started the rank ends it if the
        rank outlives the signal.

        Args:
            cfg: Its configuration; the rank gets it, too, when it connects.
            ipc_socket_path: Unix socket for the rank (``FT_RANK_MONITOR_IPC_SOCKET``). A stale
                socket is replaced; the file is removed when the monitor ends.
            is_restarter_logger: Write lines about layered restarts to stdout.
            mp_ctx: Without effect: monitors are never forked.
            env: Environment variables to add for the monitor.

        Raises:
            RuntimeError: It was not ready within 180 s.
            OSError: The socket or the process cannot be made.
        """
        del mp_ctx
        if cfg.learned_timeout_floor == type(cfg)().learned_timeout_floor:
            cfg = dataclasses.replace(cfg, learned_timeout_floor=0.0)
        private_dir = tempfile.mkdtemp(prefix="holdfast_")
        try:
            page_path = os.path.join(private_dir, "c0_r0.page")
            dump_path = os.path.join(private_dir, "stacks.txt")
            page.create_page(page_path, cycle=0)
            with endpoint.listen(ipc_socket_path) as listener:
                started = start_monitor(
                    listener.fileno(),
                    ConfigureMonitor(
                        cfg.to_wire(),
                        local_rank=0,
                        marker=None,
                        grace_s=None,
                        node=socket.gethostname(),
                        standalone=True,
                        private_dir=private_dir,
                        restarter=is_restarter_logger,
                    ),
                    None if env is None else {**os.environ, **env},
                )
        except BaseException:
            shutil.rmtree(private_dir, ignore_errors=True)
            raise
        process = RankMonitorProcess(started, ipc_socket_path, private_dir)
        try:
            _introduce(started.control, Cycle(0, page_path, dump_path))
        except OSError as error:
            process.kill()
            process.join()
            raise RuntimeError(f"rank monitor for {ipc_socket_path!r}: {error}") from error
        return process


def _introduce(control: socket.socket, cycle: Cycle) -> None:
    """Send the cycle to watch, and wait until the monitor is ready."""
    client = Client(control)
    give_up_at = clock.monotonic() + READY_S
    client.send(codec.encode(cycle), READY_S)
    try:
        while (
            codec.decode(TO_LAUNCHER, client.receive(give_up_at - clock.monotonic()))
            != MonitorReady()
        ):
            pass
    except TimeoutError:
        raise TimeoutError(f"not ready within {READY_S:g} s") from None
    except ConnectionError:
        raise ConnectionError("it ended before it was ready; see its stderr") from None
