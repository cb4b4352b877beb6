"""A real rank monitor process without a launcher around it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.base.processes.job_name import new_job
from holdfast.base.pure import codec
from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.net import endpoint
from holdfast.net.pure.frames import Decoder, encode
from holdfast.node.processes.controlled_process import start_monitor
from holdfast.node.records.run_dirs import make_runtime_dir
from holdfast.page.page import create_page
from holdfast.watch.pure.monitor_messages import ConfigureMonitor, Cycle

BOUND_S = 60.0


class Monitor:
    """One monitor; this process plays its launcher. Used as a context manager."""

    def __init__(self, sections: Mapping[str, float | None], **config: Any) -> None:
        self._config = FaultToleranceConfig(rank_section_timeouts=dict(sections), **config)

    def __enter__(self) -> Monitor:  # noqa: PYI034 - Self is in typing from Python 3.11
        self._folder = Path(make_runtime_dir(new_job()))
        self._cycle = -1
        path = self._folder / "rmon.socket"
        self.rank_environment = {
            "FT_RANK_MONITOR_IPC_SOCKET": str(path),
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
        }
        self._listener = endpoint.listen(str(path))
        began_at = time.monotonic()
        process = start_monitor(
            self._listener.fileno(),
            ConfigureMonitor(
                self._config.to_wire(), local_rank=0, marker=None, grace_s=15.0, node="bench"
            ),
        )
        self.pid, self._control = process.pid, process.control
        self._decoder = Decoder()
        self._messages: list[tuple[float, dict[str, Any]]] = []
        ready_at, _ = self.wait_for("monitorready")
        self.ready_ms = (ready_at - began_at) * 1e3
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        os.waitpid(self.pid, 0)
        self._listener.close()
        shutil.rmtree(self._folder)

    def begin_cycle(self) -> None:
        """Make room for a new rank."""
        self._cycle += 1
        page = self._folder / f"c{self._cycle}_r0.page"
        create_page(str(page), self._cycle)
        (self._folder / f"c{self._cycle - 1}_r0.page").unlink(missing_ok=True)
        dump, incidents = str(self._folder / "stacks.txt"), str(self._folder)
        cycle = Cycle(self._cycle, str(page), dump, incidents)
        self._control.sendall(encode(codec.encode(cycle)))

    def wait_for(self, operation: str) -> tuple[float, dict[str, Any]]:
        """When the next message of this kind came, and the message; earlier ones are dropped."""
        give_up_at = time.monotonic() + BOUND_S
        while True:
            while self._messages:
                came_at, message = self._messages.pop(0)
                if message["op"] == operation:
                    return came_at, message
            left_s = give_up_at - time.monotonic()
            assert left_s > 0, f"the monitor did not say {operation!r}"
            select.select([self._control], [], [], left_s)
            now = time.monotonic()
            data = self._control.recv(65536)
            assert data, "the monitor is gone"
            self._messages += [(now, message) for message in self._decoder.feed(data)]

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Within the block it does not run."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)
