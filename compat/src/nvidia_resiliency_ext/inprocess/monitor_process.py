"""A process beside a rank that outlives it: says in the store that it hangs, or is gone.

holdfast's Wrapper has one such process per node (``holdfast.inplace.guard_main``) and needs no
store for it. This class serves programs that use the parts by themselves, one rank at a time.
"""

from __future__ import annotations

import datetime as dt
import json
import mmap
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from holdfast.base import wait_for
from holdfast.base.clock import monotonic
from holdfast.base.processes.proc import process_state
from nvidia_resiliency_ext._former import ignore
from nvidia_resiliency_ext.inprocess.attribution import Interruption, InterruptionRecord
from nvidia_resiliency_ext.inprocess.sibling_monitor import SiblingMonitor

__all__ = ["MonitorProcess", "is_process_active", "terminate_process"]

_AUTOMATIC, _MANUAL = 0, 1
_NOW = dt.timedelta(0)
_KILL_AGAIN_S = 0.1
_SECOND = dt.timedelta(seconds=1)


def is_process_active(pid: int) -> bool:
    """There is a process ``pid`` that has not ended; a zombie has."""
    state = process_state(pid)
    return state is not None and state.state not in ("Z", "X")


def terminate_process(pid: int, termination_grace_time: dt.timedelta = dt.timedelta(0)) -> None:
    """End a process: SIGCONT and SIGTERM; after the grace time SIGKILL, until it is gone.

    Args:
        pid: Any process of this user.
        termination_grace_time: Between SIGTERM and the first SIGKILL.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        wait_s = termination_grace_time.total_seconds()
        signals = [signal.SIGCONT, signal.SIGTERM]
        while is_process_active(pid):
            with suppress(ProcessLookupError):
                for signum in signals:
                    signal.pidfd_send_signal(process, signum)
            wait_for.readable(process, wait_s)
            signals, wait_s = [signal.SIGCONT, signal.SIGTERM, signal.SIGKILL], _KILL_AGAIN_S
    finally:
        os.close(process)


class MonitorProcess:
    """Forked off by a rank, into a session of its own; make it before the rank has threads.

    It sends heartbeats for the rank, watches those of the next one, and records in the store the
    end of the rank: ``SOFT_TIMEOUT`` once per iteration, ``HARD_TIMEOUT`` after which it ends
    the rank, ``TERMINATED`` when the rank's process is gone. A rank that is gone arrives at
    the iteration barrier. It ends with :meth:`shutdown`, or once the rank is gone.

    Args:
        rank: Of this process.
        world_size: Of the job.
        store_factory: Makes the monitor's own store, with
            :class:`~nvidia_resiliency_ext.inprocess.store.StoreMixin`; called in the monitor.
        store_kwargs: Its arguments.
        soft_timeout: No progress for so long is recorded.
        hard_timeout: No progress for so long ends the rank.
        interval: Between two looks at the marks.
        heartbeat_interval: Between two heartbeats.
        heartbeat_timeout: Older heartbeats of other ranks are stale.
        termination_grace_time: Between SIGTERM and SIGKILL.
        logfile: Absolute path of the monitor's stderr, emptied first; ``{rank}`` is the rank.
        pidfile: Absolute path of a file for the monitor's pid; ``{rank}`` likewise.

    Attributes:
        pid: Of the monitor; ``None`` before :meth:`start`.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store_factory: Callable[..., Any],
        store_kwargs: Mapping[str, Any] | None = None,
        soft_timeout: dt.timedelta = dt.timedelta(seconds=60),
        hard_timeout: dt.timedelta = dt.timedelta(seconds=90),
        interval: dt.timedelta = _SECOND,
        heartbeat_interval: dt.timedelta = _SECOND,
        heartbeat_timeout: dt.timedelta = dt.timedelta(seconds=30),
        termination_grace_time: dt.timedelta = dt.timedelta(seconds=5),
        logfile: str | None = None,
        pidfile: str | None = None,
        **others: object,
    ) -> None:
        ignore(others, "MonitorProcess")
        self.rank = rank
        self.world_size = world_size
        self.store_factory = store_factory
        self.store_kwargs = dict(store_kwargs or {})
        self.soft_timeout = soft_timeout
        self.hard_timeout = hard_timeout
        self.interval = interval
        self.heartbeat_interval = heartbeat_interval
        self.heartbeat_timeout = heartbeat_timeout
        self.termination_grace_time = termination_grace_time
        self.logfile = logfile
        self.pidfile = pidfile
        self.target_pid = os.getpid()
        self.pid: int | None = None
        self._marks = memoryview(mmap.mmap(-1, 16)).cast("d")  # shared with the fork
        self._control: socket.socket | None = None
        self.reset()

    # ------------------------------------------------------------------ in the rank
    def start(self) -> None:
        """Fork twice, so that the monitor is no child of this process; returns when it runs.

        Raises:
            RuntimeError: It could not make its store.
        """
        parent, monitor = socket.socketpair()
        child = os.fork()
        if child == 0:
            parent.close()
            self._become_monitor(monitor)
        monitor.close()
        os.waitpid(child, 0)
        said = parent.recv(1 << 12).decode(errors="replace")
        if not said.isdigit():
            parent.close()
            raise RuntimeError(f"the monitor process of rank {self.rank} did not start: {said}")
        self.pid, self._control = int(said), parent

    def reset(self) -> None:
        """An iteration begins: progress is made now, and no ``ping()`` was called yet."""
        self.report(monotonic(), None)

    def report(self, automatic: float, manual: float | None) -> None:
        """When progress was made, by ``time.monotonic``; as ``ProgressWatchdog`` reports it."""
        self._marks[_AUTOMATIC] = automatic
        self._marks[_MANUAL] = 0.0 if manual is None else manual

    def record_interrupted(self, records: Iterable[InterruptionRecord]) -> None:
        """Have the monitor write records into the store."""
        assert self._control is not None, "start() comes first"
        self._control.sendall(json.dumps([str(each) for each in records]).encode() + b"\n")

    def shutdown(self) -> None:
        """End the monitor, and wait for its end."""
        if self._control is None:
            return
        control, self._control = self._control, None
        with control, suppress(OSError):
            control.sendall(b"bye\n")
            control.recv(1)  # it is closed by its end

    # ------------------------------------------------------------------ in the monitor
    def _become_monitor(self, control: socket.socket) -> NoReturn:
        try:
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
            self._close_stdio()
            try:
                target = os.pidfd_open(self.target_pid)
                store = self.store_factory(**self.store_kwargs)
                other = self.store_factory(**self.store_kwargs)
                if self.pidfile is not None:
                    path = self.pidfile.format(rank=self.rank)
                    with open(path, "w", encoding="ascii") as file:
                        file.write(f"{os.getpid()}\n")
            except Exception as error:  # noqa: BLE001 - the rank says it
                control.sendall(repr(error).encode()[:1000])
                os._exit(1)
            sys.stderr.write(f"{__name__}: target_pid={self.target_pid}\n")
            control.sendall(str(os.getpid()).encode())
            sibling = SiblingMonitor(
                other, self.rank, self.world_size, self.heartbeat_timeout, self.interval
            )
            sibling.start()
            self._watch(store, control, target)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the rank's own code must never run here
            traceback.print_exc()
            os._exit(1)

    def _close_stdio(self) -> None:
        path = os.devnull if self.logfile is None else self.logfile.format(rank=self.rank)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        null = os.open(os.devnull, os.O_RDWR)
        for number, descriptor in ((0, null), (1, null), (2, log)):
            os.dup2(descriptor, number)
        sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8")  # noqa: SIM115

    def _watch(self, store: Any, control: socket.socket, target: int) -> None:
        period_s = min(self.interval, self.heartbeat_interval).total_seconds()
        has_recorded_soft = False
        buffer = b""
        poll = select.poll()
        poll.register(control, select.POLLIN)
        poll.register(target, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(period_s * 1000)}
            if target in ready or not is_process_active(self.target_pid):
                self._is_gone(store, "TERMINATED")
                return
            if control.fileno() in ready:
                data = control.recv(1 << 16)
                if not data:  # closed: the rank is about to end, or has lost it
                    poll.unregister(control)
                buffer += data
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    if line == b"bye":
                        return
                    store.record_interrupted(map(InterruptionRecord.from_str, json.loads(line)))
            store.send_heartbeat(self.rank)
            idle_s = self._idle_s()
            is_soft = idle_s > self.soft_timeout.total_seconds()
            if is_soft and not has_recorded_soft:
                store.record_interrupted([self._record("SOFT_TIMEOUT")])
            has_recorded_soft = is_soft
            if idle_s > self.hard_timeout.total_seconds():  # of a monitor that was late, at once
                self._is_gone(store, "HARD_TIMEOUT")
                terminate_process(self.target_pid, self.termination_grace_time)
                return

    def _idle_s(self) -> float:
        """Since the older one of the marks that there are."""
        marks = [mark for mark in self._marks if mark > 0.0]
        return monotonic() - min(marks)

    def _is_gone(self, store: Any, kind: str) -> None:
        store.record_terminated_ranks([self.rank])
        store.record_interrupted([self._record(kind)])
        store.iteration_barrier([self.rank], self.world_size, _NOW)

    def _record(self, kind: str) -> InterruptionRecord:
        return InterruptionRecord(self.rank, Interruption[kind])
