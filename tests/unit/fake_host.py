"""A host for a launcher: ranks, monitors and a health process that do what a test says.

No process is started and no signal is sent. Monitors and the health process are the other ends of
the launcher's own sockets, so what they say and are told passes through its loop, as frames. Time
is real, and skips to the launcher's next deadline when a test says so.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import clock
from holdfast.base.processes import child, proc, reaper
from holdfast.base.pure import codec
from holdfast.health import messages as health
from holdfast.health.pure.gate import Answered, Ask, Noticed
from holdfast.health.pure.health import Finding
from holdfast.net.loop import Loop
from holdfast.net.pure.frames import Decoder, encode
from holdfast.node import monitors
from holdfast.node.agent import NodeAgent
from holdfast.node.console import LOGGER
from holdfast.node.processes.controlled_process import ControlledProcess
from holdfast.node.records import run_dirs
from holdfast.options.arguments import parse_args
from holdfast.options.plan import make_plan
from holdfast.watch.pure import monitor_messages

_NOBODYS_PID = 1 << 23
"""Above all that the kernel gives: what is looked up of it, or sent to it, meets no process."""


class _Loop(Loop):
    """Waits for nothing: a test says what happens."""

    def __init__(self) -> None:
        super().__init__()
        self.script: Callable[[], None] = lambda: None
        self.is_stopped = False
        self.on_signal: dict[int, Callable[[int], None]] = {}

    def on_signals(self, signums: Iterable[int], callback: Callable[[int], None]) -> None:
        self.on_signal.update(dict.fromkeys(signums, callback))

    def run(self, next_deadline: Callable[[], float | None], on_time: Callable[[], None]) -> None:
        self.next_deadline, self.on_time = next_deadline, on_time
        self.script()

    def stop(self) -> None:
        self.is_stopped = True


class _Family:
    """Below the launcher are these processes."""

    def __init__(self) -> None:
        self.leftovers: list[int] = []
        self.ended: list[child.Reaped] = []

    def below(self, _own: Collection[int], _spared: Collection[int]) -> dict[int, tuple[int, int]]:
        return {pid: (pid, 1) for pid in self.leftovers}

    def reap(self, _own: Collection[int]) -> Iterator[child.Reaped]:
        while self.ended:
            yield self.ended.pop(0)

    def ranks_started(self, _pids: list[int]) -> None:
        pass

    def remember(self, _own: Collection[int]) -> None:
        pass

    def left_alone(self) -> dict[int, str]:
        return {}

    def close(self) -> None:
        pass


class _Process:
    """The far end of the control connection of a monitor or of a health process."""

    def __init__(self, pid: int) -> None:
        self.near, self._far = socket.socketpair()
        self.near.setblocking(False)
        self._far.setblocking(False)
        self._decoder = Decoder()
        self.pid = pid

    def say(self, *messages: object) -> None:
        for message in messages:
            self._far.sendall(encode(codec.encode(message)))

    def told(self, kinds: Mapping[str, Any]) -> list[Any]:
        """What the launcher has said since this was asked last."""
        try:
            data = self._far.recv(1 << 20)
        except BlockingIOError:
            return []
        return [codec.decode(kinds, message) for message in self._decoder.feed(data)]

    def close(self) -> None:
        self._far.close()


class FakeHost:
    """One launcher runs on it, once: :meth:`run`. What happens meanwhile is a function's.

    Attributes:
        run_dir: The launcher's.
        started: The environment of each rank that it has started.
        pids: The process of each local rank, the last one.
        sent: Signals that it has sent: to which process, and which. SIGCONT goes before others and
            is left out.
        killed: Leftovers that it has killed.
        leftovers: Processes below it that ranks have started.
        processes_left: How many ranks it can still start.
        monitors_left: How many monitors.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._loop = _Loop()
        self._family = _Family()
        self._monitors: dict[int, _Process] = {}
        self._health: _Process | None = None
        self._last_pid = _NOBODYS_PID
        self._skipped_s = 0.0
        self.run_dir = folder
        self.started: list[Mapping[str, str]] = []
        self.pids: dict[int, int] = {}
        self.sent: list[tuple[int, int]] = []
        self.killed: list[int] = []
        self.leftovers = self._family.leftovers
        self.processes_left = self.monitors_left = 1000
        real = clock.monotonic
        monkeypatch.setattr(clock, "monotonic", lambda: real() + self._skipped_s)
        monkeypatch.setattr(child, "death_tie", list)
        monkeypatch.setattr(child, "spawn_rank", self._spawn_rank)
        monkeypatch.setattr(child, "send_signal", self._send_signal)
        monkeypatch.setattr(proc, "is_ending", lambda _: False)
        monkeypatch.setattr(reaper, "kill", lambda identity: self.killed.append(identity[0]))
        monkeypatch.setattr(monitors, "start_monitor", self._start_monitor)
        monkeypatch.setattr(run_dirs, "end_orphaned_processes", lambda: ([], {}))
        monkeypatch.setattr(run_dirs, "remove_orphaned_runtime_dirs", lambda: None)

    def run(
        self, happens: Callable[[], None], *options: str, nproc: int = 1, checks: bool = False
    ) -> int:
        """The exit code of a launcher on whose host ``happens`` what a test wants.

        Args:
            happens: Called once its ranks run; when it returns, the launcher is stopped.
            options: Of its command line.
            nproc: Number of ranks.
            checks: The host is checked, and found well each time.
        """
        script = self._folder / "train.py"
        script.touch()
        given = {
            "--nproc-per-node": str(nproc),
            "--log-dir": str(self._folder / "logs"),
            "--ft-host-checks": str(checks).lower(),
            "--ft-evidence-timeout": "0",  # of ranks that are not overdue
        }
        words = [*(f"{name}={value}" for name, value in given.items()), *options, str(script)]
        started = None
        if checks:
            self._health = _Process(self._next_pid())
            started = ControlledProcess(self._health.pid, self._health.near)
        agent = NodeAgent(
            make_plan(parse_args(words), {"OMP_NUM_THREADS": "1"}),
            {},
            health=started,
            loop=self._loop,
            family=lambda *_, **__: self._family,
        )
        self.run_dir = agent.run_dir

        def script_of_test() -> None:
            self._settle()
            try:
                happens()
            finally:
                self.leftovers.clear()
                for process in self._processes():
                    process.close()

        self._loop.script = script_of_test
        before = LOGGER.level, LOGGER.propagate
        try:
            return agent.run()
        finally:  # a launcher leaves them as they are when it ends, with its process
            LOGGER.setLevel(before[0])
            LOGGER.propagate = before[1]

    # ------------------------------------------------------------ what happens
    def monitor_says(self, local_rank: int, *messages: monitor_messages.ToLauncher) -> None:
        """Of its rank; the launcher hears it."""
        self.monitor_writes(local_rank, *messages)
        self._settle()

    def monitor_writes(self, local_rank: int, *messages: monitor_messages.ToLauncher) -> None:
        """The same, and the launcher has not read it yet."""
        self._monitors[local_rank].say(*messages)

    def health_process_says(self, finding: Finding) -> None:
        """That something broke."""
        assert self._health is not None
        self._health.say(Noticed(finding))
        self._settle()

    def rank_ends(self, local_rank: int, exit_code: int) -> None:
        self._ends(self.pids[local_rank], exit_code)

    def monitor_dies(self, local_rank: int) -> None:
        process = self._monitors[local_rank]
        process.close()
        self._ends(process.pid, -signal.SIGKILL)

    def something_ends(self) -> None:
        """That is nobody's business: the launcher looks what is left."""
        self._ends()

    def time_passes(self) -> None:
        """Until the launcher wants to be called."""
        at = self.next_deadline()
        assert at is not None, "it waits for nothing"
        self._skipped_s += max(0.0, at - clock.monotonic())
        self._loop.on_time()
        self._settle()

    # ------------------------------------------------------------ what it shows
    @property
    def is_stopped(self) -> bool:
        """It has nothing more to do."""
        return self._loop.is_stopped

    def next_deadline(self) -> float | None:
        """When it wants to be called."""
        return self._loop.next_deadline()

    def told_to_monitor(self, local_rank: int) -> list[monitor_messages.ToMonitor]:
        """Since this was asked last."""
        return self._monitors[local_rank].told(monitor_messages.TO_MONITOR)

    # ------------------------------------------------------------ inside
    def _processes(self) -> list[_Process]:
        return [*self._monitors.values(), *([self._health] if self._health else [])]

    def _settle(self) -> None:
        """Until nothing is left that somebody has said, and the health process has answered."""
        self._loop.wait(0.0)
        while self._health:
            asked = [m for m in self._health.told(health.TO_HEALTH) if isinstance(m, Ask)]
            if not asked:
                break
            self._health.say(*(Answered(check.number) for check in asked))
            self._loop.wait(0.0)

    def _ends(self, pid: int | None = None, exit_code: int = 0) -> None:
        if pid is not None:
            self._family.ended.append(child.Reaped(pid, exit_code, 1024))
        self._loop.on_signal[signal.SIGCHLD](signal.SIGCHLD)
        self._settle()

    def _next_pid(self) -> int:
        self._last_pid += 1
        return self._last_pid

    def _spawn_rank(
        self, _tie: object, _command: object, env: Mapping[str, str], _descriptors: object
    ) -> int:
        if not self.processes_left:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.processes_left -= 1
        self.started.append(env)
        self.pids[int(env["LOCAL_RANK"])] = pid = self._next_pid()
        return pid

    def _start_monitor(
        self, _listener: int, config: monitor_messages.ConfigureMonitor, _env: object
    ) -> ControlledProcess:
        if not self.monitors_left:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.monitors_left -= 1
        if config.local_rank in self._monitors:
            self._monitors[config.local_rank].close()
        self._monitors[config.local_rank] = process = _Process(self._next_pid())
        return ControlledProcess(process.pid, process.near)

    def _send_signal(self, pid: int, signum: int, *, group: bool = False) -> bool:
        if signum != signal.SIGCONT:
            self.sent.append((pid, signum))
        return True
