"""Count what is in the files of a run, in the plainest way: nothing of holdfast is used here.

The reports, metrics and views are compared with this. One fault is one cycle that failed; what a
node saw first is its kind there.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass
class Fault:
    """Of one node in one cycle.

    Attributes:
        kind: ``hang``, ``exit``, ``signal`` or ``elsewhere``.
        at: When it was noticed.
        ranks: Whose symptom came first; those of one instant together.
        late_s, stalled_s: Of a hang: after its timeout, and without progress.
        recovered_s: Until the ranks of this node ran again.
    """

    kind: str
    at: float
    rank: int | None = None
    late_s: float = 0.0
    stalled_s: float = 0.0
    recovered_s: float | None = None


@dataclass
class NodeCount:
    """What one launcher has written.

    Attributes:
        events: In the order of the file.
        faults: By cycle.
        kinds: How many events of each kind.
        states: Of its ranks at the end, by rank.
        incidents: By name of their folder.
    """

    events: list[Event]
    incidents: dict[str, dict[str, Any]]
    faults: dict[int, Fault] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)

    @property
    def kinds(self) -> Counter[str]:
        return Counter(event["kind"] for event in self.events)

    def of(self, kind: str, cycle: int | None = None) -> list[Event]:
        """Events of a kind, and of a cycle."""
        return [e for e in self.events if e["kind"] == kind and cycle in (None, e["cycle"])]

    @property
    def cycles(self) -> list[int]:
        return [event["cycle"] for event in self.of("cycle_started")]

    @property
    def began(self) -> float:
        return self.events[0]["t"]


def count(folder: Path) -> NodeCount:
    """Read the folder of one launcher."""
    lines = (folder / "events-launcher.jsonl").read_text().splitlines()
    incidents = {
        path.parent.name: json.loads(path.read_text())
        for path in (folder / "incidents").glob("*/incident.json")
    }
    node = NodeCount([json.loads(line) for line in lines], incidents)
    nproc = node.events[0]["nproc"]
    for cycle in node.cycles:
        fault = _first(node, cycle)
        if fault is None:
            continue
        node.faults[cycle] = fault
        again = [event["t"] for event in node.of("worker_started", cycle + 1)]
        if len(again) == nproc:
            fault.recovered_s = max(again) - fault.at
    last = node.cycles[-1]
    for event in node.of("worker_started", last):
        node.states[event["rank"]] = "running"
    for event in node.of("worker_exited", last):
        node.states[event["rank"]] = "failed" if event["exit_code"] else "completed"
    return node


def _first(node: NodeCount, cycle: int) -> Fault | None:
    stops = [event for event in node.of("cycle_stopping", cycle) if event["restart"]]
    stop_at = stops[0]["t"] if stops else float("inf")
    found = [Fault("elsewhere", stop_at)] if stops else []
    for event in [*node.of("rank_raised", cycle), *node.of("worker_exited", cycle)]:
        if event["exit_code"] and event["t"] <= stop_at:
            kind = "signal" if event["exit_code"] < 0 else "exit"
            found.append(Fault(kind, event["t"], event["rank"]))
    for event in node.of("rank_overdue", cycle):
        if event["t"] <= stop_at:
            late_s = event["detected_at"] - event["at"]
            at = event["detected_at"]
            found.append(Fault("hang", at, event["rank"], late_s, event["age_s"]))
    return min(found, key=lambda fault: fault.at, default=None)
