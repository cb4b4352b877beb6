"""Write down the events of an incident: what monitors say of a verdict, and how it was judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.launch.node_evidence import IncidentOver
from holdfast.core.launch.rank_life import MonitorSaid
from holdfast.core.monitor import monitor_messages as said
from holdfast.fault_tolerance.launch.part import CycleBegins, Happening, Part

if TYPE_CHECKING:
    from holdfast.fault_tolerance.launch.incident_folder import IncidentFolders
    from holdfast.fault_tolerance.launch.ranks import Ranks
    from holdfast.observe.event_log import EventLog

_VERDICTS: dict[type, str] = {
    said.Overdue: "rank_overdue",
    said.Evidence: "evidence",
    said.Signalled: "kill_sent",
    said.Stuck: "rank_stuck",
}
"""What a monitor says of a verdict, by the kind of the event that is written down."""


class Incidents(Part):
    """Of one launcher.

    Args:
        events: Where events are written.
        folders: Where each incident is written down.
        on_over: Called with each incident that is over, for what is said to people.
    """

    def __init__(
        self,
        events: EventLog,
        folders: IncidentFolders,
        on_over: Callable[[IncidentOver], None],
    ) -> None:
        self._events = events
        self._folders = folders
        self._on_over = on_over
        self._ranks: Ranks | None = None

    def hear(self, happening: Happening) -> None:
        """Write it down, if it belongs to an incident."""
        match happening:
            case CycleBegins(ranks):
                self._ranks = ranks
            case MonitorSaid(_, message):
                if kind := _VERDICTS.get(type(message)):
                    fields = dict(vars(message))
                    self._events.write(kind, fields.pop("cycle"), **fields)
                self._folders.note(message)
            case IncidentOver():
                self._over(happening)

    def _over(self, over: IncidentOver) -> None:
        assert self._ranks is not None
        verdict, ranks = over.verdict, self._ranks.ranks
        self._on_over(over)
        self._folders.over(over)
        self._events.write(
            "incident",
            over.cycle,
            incident=over.incident,
            culprits=[*verdict.culprits],
            verdict=verdict.kind,
            confidence=verdict.confidence,
            reason=verdict.reason,
            overdue=[ranks[local_rank].place.rank for local_rank in over.overdue],
            without=over.without,
            notifies=over.notifies,
        )
