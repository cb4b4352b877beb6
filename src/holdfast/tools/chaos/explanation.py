"""A launcher's explanation of a failed cycle, in a form that can be compared with the fault."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from holdfast.events.pure.schema import CycleOver, Event, FirstCause, RankExited
from holdfast.evidence.pure import evidence
from holdfast.evidence.pure.failure import signal_name
from holdfast.testing.inject import Fault
from holdfast.tools.chaos.schedule import EXIT, HANG, LOST, SYMPTOMS, ScheduledFault
from holdfast.tools.run.incident_files import Incident, read_incidents
from holdfast.watch.pure.monitor_messages import Overdue

_INCIDENT = "incident.json"
"""Of a job; files of other names are older, and of one rank."""
_TORCHRUN = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")


@dataclass(frozen=True)
class Explanation:
    """The report of one cycle's end.

    Attributes:
        detected_at: When the first symptom was seen; ``None``: none was.
        symptom: As in :data:`.schedule.SYMPTOMS`; empty: none is given.
    """

    detected_at: float | None = None
    ranks: tuple[int, ...] = ()
    symptom: str = ""
    text: str = ""

    def names_rank(self, planned: ScheduledFault) -> bool:
        """The rank that had the fault is named, and no other; none, where its node was lost."""
        return self.ranks == (() if planned.fault is Fault.NODE else (planned.rank,))

    def names_kind(self, planned: ScheduledFault) -> bool:
        """The symptom is one of this fault."""
        return self.symptom in SYMPTOMS[planned.fault]


def of_exit(exit_code: int) -> str:
    """The symptom of a process's end."""
    return signal_name(-exit_code) if exit_code < 0 else EXIT


def of_events(events: Iterable[Event], cycle: int) -> Explanation:
    """From the events of a launcher: the cause with which it ended a cycle.

    That is the first symptom, unless it found another cause when all ranks had ended.
    """
    here = [event for event in events if event.cycle == cycle]
    exits = [(event.t, event.body) for event in here if isinstance(event.body, RankExited)]
    ends = [(at, end) for at, end in exits if end.exit_code != 0]
    overdue = [event.body for event in here if isinstance(event.body, Overdue)]
    seen_at = [at for at, _ in ends] + [one.detected_at for one in overdue]
    found = Explanation(detected_at=min(seen_at, default=None))
    stopped_at, stopping = next(
        ((e.t, e.body) for e in here if isinstance(e.body, CycleOver)), (None, None)
    )
    cause = next((e.body for e in here if isinstance(e.body, FirstCause)), None)
    if stopping is None:
        return found
    found = replace(found, text=stopping.cause, detected_at=min(seen_at, default=stopped_at))
    local = stopping.cause_local_rank if cause is None else cause.local_rank
    if cause is not None and local != stopping.cause_local_rank:
        found = replace(found, text=cause.sentence)
    hung = next((one for one in overdue if one.local_rank == local), None)
    end = next((end for _, end in ends if end.local_rank == local), None)
    named = hung or end
    if cause is not None and cause.left:  # the error names them, and not its own rank
        return replace(found, ranks=cause.left[:1], symptom=EXIT, text=cause.sentence)
    if named is None:
        return found
    is_hang = hung is not None or (cause is not None and cause.hung)
    was_exiting = cause is not None and cause.was_exiting
    symptom = HANG if is_hang or end is None else EXIT if was_exiting else of_exit(end.exit_code)
    return replace(found, ranks=(named.rank,), symptom=symptom)


def of_incidents(incidents: Iterable[Incident], cycle: int, found: Explanation) -> Explanation:
    """With the incident of the cycle: of a hang, its verdict says more than a cause."""
    for one in incidents:
        if one.cycle == cycle and one.path.name == _INCIDENT and one.kind != evidence.DEAD:
            text = one.reason or found.text
            ranks = tuple(sorted(one.culprits))
            return replace(found, ranks=ranks, symptom=one.kind, text=text)
    return found


def read(run_dir: Path, events: Iterable[Event], cycle: int) -> Explanation:
    """The launcher's explanation of a cycle: events, corrected by incidents."""
    return of_incidents(read_incidents([("", run_dir)]), cycle, of_events(events, cycle))


def of_nodes(found: Iterable[Explanation]) -> Explanation:
    """Of several launchers, each by its own events: the one whose rank is the cause knows most.

    Where no rank of any of them is, a node was lost. Each of the others has stopped its ranks.
    """
    each = [one for one in found if one.text]
    named = min((one for one in each if one.ranks), key=_detected_at, default=None)
    if named is not None or not each:
        return named or Explanation()
    first = min(each, key=_detected_at)
    return replace(first, symptom=first.symptom or LOST)


def _detected_at(one: Explanation) -> float:
    return inf if one.detected_at is None else one.detected_at


def of_torchrun(lines: Iterable[tuple[float, str]], pids: Mapping[int, int]) -> Explanation:
    """From lines of torchrun's log, with the instants at which they came."""
    for at, line in lines:
        match = _TORCHRUN.search(line)
        if match and int(match[3]) in pids:
            return Explanation(
                at, (pids[int(match[3])],), of_exit(int(match[1])), line[match.start() :]
            )
    return Explanation()
