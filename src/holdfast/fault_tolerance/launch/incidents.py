"""What a launcher does at an incident: has its monitors look, lets them go on, writes it down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast.core.launch import node_evidence
from holdfast.core.monitor import monitor_messages as said

if TYPE_CHECKING:
    from holdfast.fault_tolerance.launch.incident_folder import IncidentFolders
    from holdfast.fault_tolerance.launch.monitors import Monitors
    from holdfast.fault_tolerance.launch.ranks import Rank
    from holdfast.observe.event_log import EventLog

Effect = node_evidence.LookAt | node_evidence.LetGoOn | node_evidence.IncidentOver

_VERDICTS: dict[type, str] = {
    said.Overdue: "rank_overdue",
    said.Evidence: "evidence",
    said.Signalled: "kill_sent",
    said.Stuck: "rank_stuck",
}
"""What a monitor says of a verdict, by the kind of the event that is written down."""


class Incidents:
    """Of one launcher.

    Args:
        monitors: Of its ranks.
        events: Where events are written.
        folders: Where each incident is written down.
        on_over: Called with each incident that is over, for what is said to people.
    """

    def __init__(
        self,
        monitors: Monitors,
        events: EventLog,
        folders: IncidentFolders,
        on_over: Callable[[node_evidence.IncidentOver], None],
    ) -> None:
        self._monitors = monitors
        self._events = events
        self._folders = folders
        self._on_over = on_over

    def note(self, message: said.ToLauncher) -> None:
        """Write down what a monitor says of its rank, if it is about a verdict."""
        if kind := _VERDICTS.get(type(message)):
            fields = dict(vars(message))
            self._events.write(kind, fields.pop("cycle"), **fields)
        self._folders.note(message)

    def carry_out(self, effect: Effect, ranks: Mapping[int, Rank]) -> None:
        """Do it; ``ranks``: of this cycle, by local rank."""
        match effect:
            case node_evidence.LookAt(incident, cycle, local_ranks, within_s):
                for local_rank in local_ranks:
                    rank = ranks[local_rank]
                    whom = rank.place.rank, rank.pid
                    look = said.LookNow(incident, cycle, *whom, within_s)
                    self._monitors.tell(local_rank, look)
            case node_evidence.LetGoOn(incident, cycle, local_ranks, verdict):
                for local_rank in local_ranks:
                    self._monitors.tell(local_rank, said.GoOn(incident, cycle, verdict))
            case node_evidence.IncidentOver():
                verdict = effect.verdict
                self._on_over(effect)
                self._folders.over(effect)
                self._events.write(
                    "incident",
                    effect.cycle,
                    incident=effect.incident,
                    culprits=[*verdict.culprits],
                    verdict=verdict.kind,
                    confidence=verdict.confidence,
                    reason=verdict.reason,
                    overdue=[ranks[local_rank].place.rank for local_rank in effect.overdue],
                    without=effect.without,
                    notifies=effect.notifies,
                )
