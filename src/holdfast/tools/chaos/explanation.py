"""What a launcher says about a failed cycle, in a form that can be compared with the fault."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.events.run.incident_files import Incident, read_incidents
from holdfast.evidence.pure import evidence
from holdfast.evidence.pure.failure import signal_name
from holdfast.tools.chaos.schedule import EXIT, HANG, SYMPTOMS, Planned

Event = Mapping[str, Any]
_INCIDENT = "incident.json"
"""Of a job; files of other names are older, and of one rank."""
_ENDED_BY = re.compile(r"cycle (\d+) ended: ((?:.*?: )?rank (\d+) \(.*)")
_KIND = re.compile(r"\b(hung|exit code|killed by (SIG\w+))")
_TORCHRUN = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")


@dataclass(frozen=True)
class Explanation:
    """What was reported.

    Attributes:
        detected_at: When the first symptom was seen; ``None``: none was.
        ranks: Those that are named as the cause.
        symptom: As in :data:`.schedule.SYMPTOMS`; empty: none is given.
        text: For people.
    """

    detected_at: float | None = None
    ranks: tuple[int, ...] = ()
    symptom: str = ""
    text: str = ""

    def names_rank(self, planned: Planned) -> bool:
        """The rank that had the fault is named, and no other."""
        return self.ranks == (planned.rank,)

    def names_kind(self, planned: Planned) -> bool:
        """The symptom is one of this fault."""
        return self.symptom in SYMPTOMS[planned.fault]


def of_exit(exit_code: int) -> str:
    """The symptom of a process's end."""
    return signal_name(-exit_code) if exit_code < 0 else EXIT


def of_events(events: Iterable[Event], cycle: int) -> Explanation:
    """From the events of a launcher: the cause with which it ended a cycle."""
    here = [event for event in events if event.get("cycle") == cycle]
    ends = [e for e in here if e["kind"] == "worker_exited" and e["exit_code"] != 0]
    overdue = [e for e in here if e["kind"] == "rank_overdue"]
    seen_at = [e["t"] for e in ends] + [e["detected_at"] for e in overdue]
    found = Explanation(detected_at=min(seen_at, default=None))
    stopping = next((e for e in here if e["kind"] == "cycle_stopping"), None)
    if stopping is None:
        return found
    local = stopping["cause_local_rank"]
    text = str(stopping["cause"])
    hung = next((e for e in overdue if e["local_rank"] == local), None)
    end = next((e for e in ends if e["local_rank"] == local), None)
    named = hung or end
    symptom = HANG if hung else of_exit(end["exit_code"]) if end else ""
    ranks = (int(named["rank"]),) if named else ()
    return Explanation(found.detected_at, ranks, symptom, text)


def of_log(lines: Iterable[str], cycle: int, found: Explanation) -> Explanation:
    """From the launcher's log, where another cause was found when all ranks had ended."""
    for line in lines:
        match = _ENDED_BY.search(line)
        if match and int(match[1]) == cycle:
            kind = _KIND.search(match[2])
            words = kind[1] if kind else ""
            symptom = HANG if words == "hung" else EXIT if words == "exit code" else ""
            signal = kind[2] if kind else None
            return replace(found, ranks=(int(match[3]),), symptom=signal or symptom, text=match[2])
    return found


def of_incidents(incidents: Iterable[Incident], cycle: int, found: Explanation) -> Explanation:
    """From the incident of the cycle, whose verdict says more about a hang than a cause does."""
    for one in incidents:
        if one.cycle == cycle and one.path.name == _INCIDENT and one.kind != evidence.DEAD:
            text = one.reason or found.text
            ranks = tuple(sorted(one.culprits))
            return replace(found, ranks=ranks, symptom=one.kind, text=text)
    return found


def read(run_dir: Path, events: Sequence[Event], lines: Iterable[str], cycle: int) -> Explanation:
    """What a launcher says about a cycle: events, log, incidents; each corrects those before."""
    found = of_log(lines, cycle, of_events(events, cycle))
    return of_incidents(read_incidents([("", run_dir)]), cycle, found)


def of_torchrun(lines: Iterable[tuple[float, str]], pids: Mapping[int, int]) -> Explanation:
    """From lines of torchrun's log, with the instants at which they came.

    Args:
        lines: Of its console.
        pids: Ranks by pid, of the cycle.
    """
    for at, line in lines:
        match = _TORCHRUN.search(line)
        if match and int(match[3]) in pids:
            return Explanation(
                at, (pids[int(match[3])],), of_exit(int(match[1])), line[match.start() :]
            )
    return Explanation()
