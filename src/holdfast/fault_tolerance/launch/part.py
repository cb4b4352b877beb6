"""What those parts of a launcher have in common that go their own way.

A part hears what happens, has deadlines or has processes of its own. None is waited for: a part
must not slow a recovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.common_events import SignalArrived
from holdfast.core.launch.node_evidence import IncidentOver
from holdfast.core.launch.rank_life import MonitorSaid
from holdfast.core.value import Value

if TYPE_CHECKING:
    from holdfast.fault_tolerance.launch.ranks import Ranks
    from holdfast.host.child import Reaped


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
