"""What those parts of a launcher have in common that go their own way.

A part hears what happens, has deadlines or has processes of its own. None is waited for: a part
must not slow a recovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.base.pure.common_events import SignalArrived
from holdfast.base.pure.value import Value
from holdfast.node.pure.node_evidence import IncidentOver
from holdfast.node.pure.rank_life import MonitorSaid

if TYPE_CHECKING:
    from holdfast.base.processes.child import Reaped
    from holdfast.node.processes.ranks import Ranks


class CycleBegins(Value):
    """These ranks are about to be started."""

    ranks: Ranks


class CycleStarted(Value):
    """All these ranks were started."""

    ranks: Ranks


class CycleEnding(Value):
    """The ranks are being stopped, or have ended."""


Happening = CycleBegins | CycleStarted | CycleEnding | MonitorSaid | SignalArrived | IncidentOver


class Part:
    """One of them. Main thread only."""

    def hear(self, happening: Happening) -> None:
        """It has happened just now."""

    def next_deadline(self) -> float | None:
        """When :meth:`on_time` is due; None: never."""
        return None

    def on_time(self) -> None:
        """That instant may have come."""

    def pids(self) -> frozenset[int]:
        """Its processes, those included that were told to end and have not; they outlive cycles."""
        return frozenset()

    def died(self, reaped: Reaped) -> bool:
        """Note that a process was reaped; whether it was one of these."""
        del reaped
        return False
