"""A run as the folders of its launchers show it: events, incidents, state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from holdfast.base import clock
from holdfast.base.processes.job_name import clock_of, is_living
from holdfast.base.pure.codec import instants
from holdfast.events.pure import schema
from holdfast.tools.run.incident_files import Incident, of_event, read_incidents
from holdfast.tools.run.node_clocks import Axis, ClockMarks, on_one_axis
from holdfast.tools.run.one_job import Start, of_one_job, starts_in
from holdfast.tools.run.reader import read_folder
from holdfast.tools.run.step_rates import StepCounts, StepRate

RUNNING, SUCCEEDED, FAILED, CUT_OFF = "running", "succeeded", "failed", "cut off"
"""How a launcher stands. Cut off: it was killed, or is on another host and silent."""
_SILENT_S = 60.0
_SILENT_SHARE = 0.05
"""For a launcher of another host: each writes every 10 s, or when it has become 1 % older."""


@dataclass
class NodeRun:
    """One launcher of a run.

    Attributes:
        events: In order of time, on the host's own monotonic clock.
        end: How it ended, in words; empty while it has not.
        exit_code: None while it has not.
        passed_over: Lines that are no events.
        n_events: Of all events; ``events`` lacks looks at pages that later ones replace.
        steps: How fast its ranks made steps, from all looks; on its own clock.
    """

    folder: Path
    node: str
    start: schema.LauncherStarted
    events: list[schema.Event]
    marks: ClockMarks
    state: str
    end: str = ""
    exit_code: int | None = None
    passed_over: int = 0
    n_events: int = 0
    axis: Axis = field(default_factory=Axis)
    steps: list[StepRate] = field(default_factory=list)

    @property
    def facts(self) -> schema.LaunchFacts:
        """Of its start; empty in runs of versions up to 0.6."""
        found = (one.body for one in self.events if isinstance(one.body, schema.LaunchFacts))
        return next(found, schema.LaunchFacts())

    @property
    def now(self) -> float | None:
        """The present on its clock, where it still runs."""
        if self.state != RUNNING:
            return None
        if is_living(self.start.job):
            return clock.monotonic()
        last = self.events[-1]
        return last.t + (0.0 if last.wall is None else max(0.0, clock.wall() - last.wall))

    @property
    def starts(self) -> dict[Start, object]:
        """Cycles that it took part in; its number in each."""
        return starts_in(self.events)


@dataclass
class Run:
    """All launchers of a job whose folders were given.

    Attributes:
        nodes: In order of their start.
        offset_s: Wall time minus the time of ``events``.
    """

    nodes: list[NodeRun]
    offset_s: float

    @cached_property
    def events(self) -> list[schema.Event]:
        """Of all, in order of time, on one axis."""
        events = [
            _on_axis(event, node.axis, index)
            for index, node in enumerate(self.nodes)
            for event in node.events
        ]
        return sorted(events, key=lambda event: event.t)

    @property
    def incidents(self) -> list[Incident]:
        """Of all nodes, each once."""
        return [one for one in self._looks if not one.stall]

    @property
    def stalls(self) -> list[Incident]:
        """For which no rank was ended: ranks made no optimizer steps."""
        return [one for one in self._looks if one.stall]

    @cached_property
    def _looks(self) -> list[Incident]:
        """All for which the ranks were looked at."""
        found = read_incidents([(node.node, node.folder) for node in self.nodes])
        judged: dict[str, Incident] = {}
        for event in self.events:
            if isinstance(event.body, (schema.HangFound, schema.StallFound)):
                folder = self.nodes[event.launcher].folder
                one = of_event(event, event.body, folder)
                before = judged.get(one.name)
                if before is None or (before.stall and not one.stall):
                    judged[one.name] = one
        with_files = [one.but(at=self._at(one, judged.get(one.name))) for one in found]
        names = {one.name for one in found}
        return with_files + [one for name, one in judged.items() if name not in names]

    def _at(self, one: Incident, judged: Incident | None) -> float | None:
        if judged is not None:
            return judged.at
        if one.wall is None:
            return None
        # The event is lost, or the file is of an earlier version.
        node = next(node for node in self.nodes if node.folder in one.path.parents)
        return one.wall - node.axis.ahead_s - self.offset_s

    @property
    def of_other_jobs(self) -> list[NodeRun]:
        """Launchers that had ranks, but no cycle in common with the first that had."""
        starts = {index: node.starts for index, node in enumerate(self.nodes)}
        had_ranks = [index for index, found in starts.items() if found]
        of_this = of_one_job(had_ranks[0], starts) if had_ranks else []
        return [self.nodes[index] for index in had_ranks if index not in of_this]

    @property
    def state(self) -> str:
        """Of the job: running if a launcher is; else the worst that became of one."""
        states = {node.state for node in self.nodes}
        return next(s for s in (RUNNING, FAILED, CUT_OFF, SUCCEEDED) if s in states)

    @cached_property
    def steps(self) -> list[StepRate]:
        """How fast steps were made, in order of time: of all nodes, that with the most looks."""
        node = max(self.nodes, key=lambda node: len(node.steps))
        return [each.moved(node.axis.at) for each in node.steps]

    @property
    def name(self) -> str:
        """Of the script."""
        return self.nodes[0].start.name

    @property
    def run_id(self) -> str:
        """As the user gave it, or a random one."""
        return self.nodes[0].start.run_id

    @property
    def began(self) -> float:
        """Instant of the first event."""
        starts = [node.axis.at(node.events[0].t) for node in self.nodes if node.events]
        return min(starts, default=0.0)

    @property
    def ended(self) -> float:
        """Instant of the last event, or the present."""
        ends = [node.axis.at(node.events[-1].t) for node in self.nodes if node.events]
        presents = [node.axis.at(now) for node in self.nodes if (now := node.now) is not None]
        return max([*ends, *presents], default=0.0)


def read_run(folders: Iterable[Path]) -> Run:
    """Read the folders of one job.

    Raises:
        FileNotFoundError: One of them has no events of a launcher.
        NewerEventsError: A newer version has written them.
        OSError: They cannot be read.
    """
    nodes = [_read_node(folder) for folder in folders]
    axes, offset_s = on_one_axis([node.marks for node in nodes])
    for node, axis in zip(nodes, axes, strict=True):
        node.axis = axis
    nodes.sort(key=lambda node: node.axis.at(node.events[0].t if node.events else 0.0))
    return Run(nodes, offset_s)


def _on_axis(event: schema.Event, axis: Axis, launcher: int) -> schema.Event:
    if not axis.is_moved:
        return event.but(launcher=launcher) if launcher else event
    fields = vars(event.body)
    given = {name: fields[name] for name in instants(type(event.body))}
    moved = {name: axis.at(t) for name, t in given.items() if t is not None}
    body = type(event.body)(**{**fields, **moved})
    return event.but(t=axis.at(event.t), body=body, launcher=launcher)


def _read_node(folder: Path) -> NodeRun:
    counts = StepCounts()
    events, n, bad = read_folder(folder, counts)
    starts = [event for event in events if isinstance(event.body, schema.LauncherStarted)]
    first = next(iter(starts or events), None)
    start = (
        first.body
        if first and isinstance(first.body, schema.LauncherStarted)
        else schema.LauncherStarted()
    )
    marks = ClockMarks(clock_of(start.job) or str(folder))
    for event in events:
        marks.take(event)
    name = first.node if first else "?"
    node = NodeRun(folder, name, start, events, marks, CUT_OFF, passed_over=bad, n_events=n)
    node.steps = counts.rates()
    over = [event.body for event in events if isinstance(event.body, schema.JobOver)]
    if over:
        node.state = SUCCEEDED if isinstance(over[-1], schema.JobSucceeded) else FAILED
        node.end, node.exit_code = over[-1].end or node.state, over[-1].exit_code
    elif events and _is_alive(start, events):
        node.state = RUNNING
    return node


def _is_alive(start: schema.LauncherStarted, events: list[schema.Event]) -> bool:
    """Whether the launcher still runs; of another host, by its last event."""
    is_living_here = is_living(start.job)
    if is_living_here is not None:
        return is_living_here
    age_s = clock.wall() - (events[0].wall or 0.0)
    silent_s = clock.wall() - (events[-1].wall or 0.0)
    return silent_s < max(_SILENT_S, _SILENT_SHARE * age_s)
