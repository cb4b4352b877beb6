"""Read the folders of a run: events, incidents, how it stands. Whatever the files hold.

A run may go on, its launcher may have been killed in the middle of a line, its disk may have been
full, its folder copied from another host. What cannot be read is passed over and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.host import clock
from holdfast.host.job_name import clock_of, is_living
from holdfast.observe.event_log import LAUNCHER_FILE, PATTERN
from holdfast.observe.incident_files import Incident, of_event, read_incidents
from holdfast.observe.node_clocks import Axis, Marks, on_one_axis
from holdfast.observe.rank_spans import number

Event = dict[str, Any]

RUNNING, SUCCEEDED, FAILED, CUT_OFF = "running", "succeeded", "failed", "cut off"
"""How a launcher stands. Cut off: it was killed, or is on another host and silent."""
_SILENT_S = 60.0
_SILENT_SHARE = 0.05
"""A launcher writes every 10 s, or when it has become 1 % older; only of another host we ask."""
_NEEDED: dict[str, tuple[str, ...]] = {
    "worker_started": ("local_rank", "rank"),
    "worker_exited": ("local_rank", "rank", "exit_code"),
    "rank_armed": ("local_rank", "rank"),
    "rank_overdue": ("rank", "age_s", "limit_s"),
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
        n_events: Of all events; ``events`` may lack looks at pages that later ones replace.
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
        events: Of all, in order of time, on one axis; those of the second
            launcher and of further ones have its number as ``launcher``.
        incidents: Of all, each once.
    """

    nodes: list[NodeRun]
    offset_s: float
    events: list[Event] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)

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
        return float(self.events[0]["t"]) if self.events else 0.0

    @property
    def ended(self) -> float:
        """Instant of the last event, or the present."""
        last = float(self.events[-1]["t"]) if self.events else 0.0
        presents = [node.axis.at(now) for node in self.nodes if (now := node.now) is not None]
        return max([last, *presents])


def read_run(folders: Iterable[Path], *, every_look: bool = True) -> Run:
    """Read the folders of one job.

    Args:
        folders: One for each launcher.
        every_look: False: of the looks at ranks' pages in a cycle, keep the last alone. They are
            most of what there is to keep, of a long job gigabytes.

    Raises:
        FileNotFoundError: One of them has no events of a launcher.
        OSError: They cannot be read.
    """
    nodes = [_read_node(folder, every_look=every_look) for folder in folders]
    axes, offset_s = on_one_axis([node.marks for node in nodes])
    for node, axis in zip(nodes, axes, strict=True):
        node.axis = axis
    nodes.sort(key=lambda node: node.axis.at(float(node.start.get("t", 0.0))))
    run = Run(nodes, offset_s)
    for index, node in enumerate(nodes):
        run.events += [_on_axis(event, node.axis, index) for event in node.events]
    run.events.sort(key=lambda event: float(event["t"]))
    run.incidents = read_incidents([(node.node, node.folder) for node in nodes])
    known = {one.name for one in run.incidents}
    judged_at: dict[str, float] = {}
    for event in run.events:
        if event["kind"] == "incident":
            one = of_event(event, nodes[event.get("launcher", 0)].folder)
            judged_at.setdefault(one.name, float(event["t"]))
            if one.name not in known:
                known.add(one.name)
                run.incidents.append(one)
    for one in run.incidents:
        one.at = judged_at.get(one.name)
        if one.at is None and one.wall is not None:  # of an earlier version, or the event is lost
            node = next(node for node in nodes if node.folder in one.path.parents)
            one.at = one.wall - node.axis.ahead_s - offset_s
    return run


def _on_axis(event: Event, axis: Axis, launcher: int) -> Event:
    moved: Event = {"launcher": launcher} if launcher else {}
    if axis.is_moved:
        given = ((key, number(event.get(key))) for key in _INSTANTS)
        moved |= {key: axis.at(at) for key, at in given if at is not None}
    return {**event, **moved} if moved else event


def _read_node(folder: Path, *, every_look: bool) -> NodeRun:
    try:
        (folder / LAUNCHER_FILE).open("rb").close()
    except FileNotFoundError:
        text = f"{folder} has no {LAUNCHER_FILE}: it is not the folder of a run"
        raise FileNotFoundError(text) from None
    events: list[Event] = []
    passed_over = n_events = 0
    for path in sorted(folder.glob(PATTERN)):
        found, n, bad = read_lines(path, every_look=every_look)
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


def read_lines(path: Path, *, every_look: bool = True) -> tuple[list[Event], int, int]:
    """Events of one file; how many there are; how many lines are none.

    The last line may still be being written.
    """
    events: list[Event] = []
    looks: dict[Any, Event] = {}
    n = bad = 0
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    event = json.loads(line)
                except (ValueError, RecursionError):
                    bad += line.endswith(b"\n")
                    continue
                if not _is_event(event):
                    bad += 1
                    continue
                n += 1
                event = _without_senseless(event)
                if every_look or event["kind"] != "progress":
                    events.append(event)
                else:
                    looks[event["cycle"]] = event
    except OSError:
        bad += 1
    return [*events, *looks.values()], n, bad


def _is_event(event: Any) -> bool:
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        return False
    needed = ("t", "cycle", *_NEEDED.get(event["kind"], ()))
    return all(number(event.get(name)) is not None for name in needed)


def _without_senseless(event: Event) -> Event:
    """Without instants that are none; whoever needs them does without."""
    senseless = [key for key in _INSTANTS if key in event and number(event[key]) is None]
    return {key: event[key] for key in event if key not in senseless} if senseless else event


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
