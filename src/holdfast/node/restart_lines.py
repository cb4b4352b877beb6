"""Lines on stdout that tell an outer restarter where this job's restarts stand.

They are written where ``--ft-restarter-lines`` asks for them:

    [NestedRestarter] name=[InJob] state=handling stage=starting

Rank 0 is followed (``watch/pure/layered_restart.py``): its monitor says when it is watched, which
is from ``init_workload_monitoring()`` on (no heartbeat sends a message); the launcher when a cycle
failed and when the job is over. The line of a restart that goes on is repeated. Only the launcher
of rank 0's node writes. A script that calls nothing of holdfast has its stdout for itself, as under
torchrun: optimizer steps that count as heartbeats write no line.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.base import clock
from holdfast.node.part import Happening, Part
from holdfast.node.pure.rank_life import MonitorSaid
from holdfast.watch.pure.layered_restart import RankMonitorState, RestartLineWriter
from holdfast.watch.pure.monitor_messages import WatchBegan


class RestartLines(Part):
    """One per launcher; ``every_s``: between two lines while a restart goes on."""

    def __init__(
        self, write: Callable[[str], None], every_s: float, *, is_asked_for: bool = True
    ) -> None:
        self._write = write
        self._is_asked_for = is_asked_for
        self._machine = RestartLineWriter(self._write_line, every_s, clock.monotonic)
        self._has_rank_0 = False
        self._cycle = -1

    def on_event(self, happening: Happening) -> None:
        """Rank 0 has reported to its monitor."""
        match happening:
            case MonitorSaid(0, WatchBegan(cycle, by_steps=False)) if cycle == self._cycle:
                self.rank_works()

    def _write_line(self, msg: str) -> None:
        if self._has_rank_0:
            self._write(f"{msg}\n")

    def next_deadline(self) -> float | None:
        """When :meth:`on_time` has something to do."""
        return self._machine.next_deadline() if self._has_rank_0 else None

    def on_time(self) -> None:
        """Repeat the line of a restart that goes on, if it is time."""
        self._machine.on_time(clock.monotonic())

    def cycle_begins(self, cycle: int, *, has_rank_0: bool) -> None:
        """Ranks are about to be started, rank 0 by this launcher or by another."""
        self._cycle = cycle
        self.cycle_failed()  # maybe on another node only
        self._has_rank_0 = has_rank_0 and self._is_asked_for
        if self._machine.is_restarting():
            self._machine.handle_periodic_check()

    def rank_works(self) -> None:
        """Rank 0 is watched, in this cycle."""
        self._machine.handle_message()

    def cycle_failed(self) -> None:
        """What began before the ranks were at work again belongs to the same restart."""
        if not self._machine.is_restarting():
            self._machine.handle_disconnect()

    def job_is_over(self, *, succeeded: bool) -> None:
        """It says nothing of a job that never was monitored."""
        if succeeded and self._machine.is_restarting():
            self._machine.handle_message()
        elif not succeeded:
            self.cycle_failed()
        if self._machine.state is not RankMonitorState.FINALIZED:
            self._machine.handle_signal()
