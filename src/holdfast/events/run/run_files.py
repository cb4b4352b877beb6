"""Read the folders of a run: events, incidents, how it stands. Whatever the files hold.

A run may go on, its launcher may have been killed in the middle of a line, its disk may have been
full, its folder copied from another host. What cannot be read is passed over and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from sys import intern
from typing import Any

from holdfast.base import clock
from holdfast.base.processes.job_name import clock_of, is_living
from holdfast.events.event_log import LAUNCHER_FILE, PATTERN
from holdfast.events.run.incident_files import Incident, of_event, read_incidents
from holdfast.events.run.node_clocks import Axis, Marks, on_one_axis
from holdfast.events.run.one_job import Start, of_one_job
from holdfast.events.run.rank_spans import number

Event = dict[str, Any]

RUNNING, SUCCEEDED, FAILED, CUT_OFF = "running", "succeeded", "failed", "cut off"
"""How a launcher stands. Cut off: it was killed, or is on another host and silent."""
_STARTED = "cycle_started"
_SILENT_S = 60.0
_SILENT_SHARE = 0.05
"""A launcher writes every 10 s, or when it has become 1 % older; only of another host we ask."""
_NEEDED: dict[str, tuple[str, ...]] = {
    "worker_started": ("local_rank", "rank"),
    "worker_exited": ("local_rank", "rank", "exit_code"),
    "rank_armed": ("local_rank", "rank"),
    "rank_overdue": ("rank", "age_s", "limit_s"),
    "rank_raised": ("local_rank", "rank", "exit_code"),
    "evidence": ("rank",),
    "first_cause": ("rank", "began_at"),
    "kill_sent": ("rank", "signal"),
    "fault": ("rank", "step"),
    "resumed": ("step",),
}
"""Numbers without which an event of a kind says nothing."""
_INSTANTS = (
    *("t", "detected_at", "at", "armed_at", "began_at"),
    *("progress_at", "noticed_at", "entered_at"),
)


@dataclass
class NodeRun:
    """What one launcher has left.

    Attributes:
        folder: Its run folder.
        node: Name of its host.
        events: In order of time, on the host's own monotonic clock.
        marks: What they say of its clocks.
        state: One of the words above.
        end: How it ended, in words; empty while it has not.
        exit_code: None while it has not.
        passed_over: Lines that are no events.
        n_events: Of all events; ``events`` lacks looks at pages that later ones replace.
        axis: From its clock to that of the run.
    """

    folder: Path
    node: str
    events: list[Event]
    marks: Marks
    state: str
    end: str = ""
    exit_code: int | None = None
    passed_over: int = 0
    n_events: int = 0
    axis: Axis = field(default_factory=Axis)

    @property
    def start(self) -> Event:
        """The event of its start, or what there is of it."""
        return self.events[0] if self.events else {}

    @property
    def now(self) -> float | None:
        """The present on its clock, where it still runs."""
        if self.state != RUNNING:
            return None
        if is_living(str(self.start.get("job", ""))):
            return clock.monotonic()
        last = self.events[-1]
        wall = number(last.get("wall"))
        return float(last["t"]) + (0.0 if wall is None else max(0.0, clock.wall() - wall))


@dataclass
class Run:
    """What all launchers of a job have left, as far as their folders were given.

    Attributes:
        nodes: In order of their start.
        offset_s: Wall time minus the time of ``events``.
    """

    nodes: list[NodeRun]
    offset_s: float

    @cached_property
    def events(self) -> list[Event]:
        """Of all, in order of time, on one axis.

        Those of the second launcher and of further ones have its number as ``launcher``.
        """
        events = [
            _on_axis(event, node.axis, index)
            for index, node in enumerate(self.nodes)
            for event in node.events
        ]
        return sorted(events, key=lambda event: float(event["t"]))

    @property
    def incidents(self) -> list[Incident]:
        """Of all nodes, each once."""
        return [one for one in self._looks if not one.is_stall]

    @property
    def stalls(self) -> list[Incident]:
        """For which no rank was ended: ranks made no optimizer steps."""
        return [one for one in self._looks if one.is_stall]

    @cached_property
    def _looks(self) -> list[Incident]:
        """All for which the ranks were looked at."""
        found = read_incidents([(node.node, node.folder) for node in self.nodes])
        judged: dict[str, Incident] = {}
        for event in self.events:
            if event["kind"] in ("incident", "stall"):
                one = of_event(event, self.nodes[event.get("launcher", 0)].folder)
                one.at = float(event["t"])
                before = judged.get(one.name)
                if before is None or (before.is_stall and not one.is_stall):
                    judged[one.name] = one
        for one in found:
            if one.name in judged:
                one.at = judged[one.name].at
            elif one.wall is not None:  # of an earlier version, or the event is lost
                node = next(node for node in self.nodes if node.folder in one.path.parents)
                one.at = one.wall - node.axis.ahead_s - self.offset_s
        with_files = {one.name for one in found}
        return found + [one for name, one in judged.items() if name not in with_files]

    @property
    def of_other_jobs(self) -> list[NodeRun]:
        """Launchers that had ranks, but no cycle in common with the first that had."""
        starts = {
            index: dict(_started(event) for event in node.events if event["kind"] == _STARTED)
            for index, node in enumerate(self.nodes)
        }
        had_ranks = [index for index, found in starts.items() if found]
        of_this = of_one_job(had_ranks[0], starts) if had_ranks else []
        return [self.nodes[index] for index in had_ranks if index not in of_this]

    @property
    def state(self) -> str:
        """Of the job: running if a launcher is; else the worst that became of one."""
        states = {node.state for node in self.nodes}
        return next(s for s in (RUNNING, FAILED, CUT_OFF, SUCCEEDED) if s in states)

    @property
    def name(self) -> str:
        """Of the script."""
        return str(self.nodes[0].start.get("name", "?"))

    @property
    def run_id(self) -> str:
        """As the user gave it, or a random one."""
        return str(self.nodes[0].start.get("run_id", "?"))

    @property
    def began(self) -> float:
        """Instant of the first event."""
        starts = [node.axis.at(float(node.events[0]["t"])) for node in self.nodes if node.events]
        return min(starts, default=0.0)

    @property
    def ended(self) -> float:
        """Instant of the last event, or the present."""
        ends = [node.axis.at(float(node.events[-1]["t"])) for node in self.nodes if node.events]
        presents = [node.axis.at(now) for node in self.nodes if (now := node.now) is not None]
        return max([*ends, *presents], default=0.0)


def read_run(folders: Iterable[Path]) -> Run:
    """Read the folders of one job.

    Args:
        folders: One for each launcher.

    Raises:
        FileNotFoundError: One of them has no events of a launcher.
        OSError: They cannot be read.
    """
    nodes = [_read_node(folder) for folder in folders]
    axes, offset_s = on_one_axis([node.marks for node in nodes])
    for node, axis in zip(nodes, axes, strict=True):
        node.axis = axis
    nodes.sort(key=lambda node: node.axis.at(float(node.start.get("t", 0.0))))
    return Run(nodes, offset_s)


def _on_axis(event: Event, axis: Axis, launcher: int) -> Event:
    moved: Event = {"launcher": launcher} if launcher else {}
    if axis.is_moved:
        given = ((key, number(event.get(key))) for key in _INSTANTS)
        moved |= {key: axis.at(at) for key, at in given if at is not None}
    return {**event, **moved} if moved else event


def _read_node(folder: Path) -> NodeRun:
    try:
        (folder / LAUNCHER_FILE).open("rb").close()
    except FileNotFoundError:
        text = f"{folder} has no {LAUNCHER_FILE}: it is not the folder of a run"
        raise FileNotFoundError(text) from None
    events: list[Event] = []
    passed_over = n_events = 0
    for path in sorted(folder.glob(PATTERN)):
        found, n, bad = read_lines(path)
        events += found
        n_events += n
        passed_over += bad
    events.sort(key=lambda event: float(event["t"]))
    own = [event for event in events if event["kind"] == "launcher_started"] or events
    first = own[0] if own else {}
    marks = Marks(clock_of(str(first.get("job", ""))) or str(folder))
    for event in events:
        marks.take(event)
    node = NodeRun(folder, str(first.get("node", "?")), events, marks, CUT_OFF)
    node.passed_over, node.n_events = passed_over, n_events
    over = [event for event in events if event["kind"] in ("job_succeeded", "job_failed")]
    if over:
        node.state = SUCCEEDED if over[-1]["kind"] == "job_succeeded" else FAILED
        node.end = str(over[-1].get("end", node.state))
        code = over[-1].get("exit_code")
        node.exit_code = code if isinstance(code, int) else None
    elif _is_alive(first, events):
        node.state = RUNNING
    return node


def read_lines(path: Path) -> tuple[list[Event], int, int]:
    """Events of one file; how many there are; how many lines are none.

    The last line may still be being written. Of the looks at ranks' pages in a cycle, the last
    alone is kept: they are most of what there is to keep, of a long job gigabytes.
    """
    events: list[Event] = []
    looks: dict[Any, Event] = {}
    n = bad = 0
    try:
        with path.open("rb") as file:
            for line in file:
                event = _event(line)
                if event is None:
                    bad += line.endswith(b"\n")
                    continue
                n += 1
                if event["kind"] != "progress":
                    events.append(event)
                else:
                    looks[event["cycle"]] = event
    except OSError:
        bad += 1
    return [*events, *looks.values()], n, bad


def looks_in(folder: Path) -> Iterator[Event]:
    """All looks at ranks' pages in a run folder, as they are read."""
    for path in sorted(folder.glob(PATTERN)):
        with suppress(OSError), path.open("rb") as file:
            for line in file:
                event = _event(line) if b'"progress"' in line else None
                if event is not None and event["kind"] == "progress":
                    yield event


def _event(line: bytes) -> Event | None:
    """What a line says; None: it is no event."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not _is_event(event):
        return None
    # Keys are shared, which halves what the events of a long job take; instants that are none are
    # left out: whoever needs them does without.
    return {
        intern(key): value
        for key, value in event.items()
        if key not in _INSTANTS or number(value) is not None
    }


def _is_event(event: Any) -> bool:
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        return False
    needed = ("t", "cycle", *_NEEDED.get(event["kind"], ()))
    return all(number(event.get(name)) is not None for name in needed)


def _is_alive(first: Mapping[str, Any], events: list[Event]) -> bool:
    """Whether the launcher still runs, as far as can be told from here."""
    if not events:
        return False
    is_living_here = is_living(str(first.get("job", "")))
    if is_living_here is not None:
        return is_living_here
    age_s = clock.wall() - (number(first.get("wall")) or 0.0)
    silent_s = clock.wall() - (number(events[-1].get("wall")) or 0.0)
    return silent_s < max(_SILENT_S, _SILENT_SHARE * age_s)


def run_id_of(folder: Path) -> str | None:
    """The run id of the launcher that has written there."""
    try:
        with (folder / LAUNCHER_FILE).open("rb") as file:
            run_id = json.loads(file.readline()).get("run_id")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return run_id if isinstance(run_id, str) else None


def starts_of(folder: Path) -> dict[Start, object]:
    """Cycles that its launcher took part in; its number in each."""
    found: dict[Start, object] = {}
    with suppress(OSError), (folder / LAUNCHER_FILE).open("rb") as file:
        for line in file:
            if b'"cycle_started"' in line:
                with suppress(ValueError, AttributeError, RecursionError, TypeError):
                    found.update([_started(json.loads(line))])
    return found


def _started(event: Mapping[str, Any]) -> tuple[Start, object]:
    return (number(event.get("cycle")), str(event.get("master_port"))), number(
        event.get("group_rank")
    )
