"""The timeline of a run in the Chrome trace format, which Perfetto opens. Pure.

    process   a node            thread 0   its launcher: cycles, and their parts
                                then       each rank: accounts; evidence and kill within them
                                           its sections, a track each
              steps/s                      a counter
    arrows    from the rank at fault to those that it held up

Times are microseconds since the run began. A rank's spans lie end to end: they are those of the
ledger. Slices of a track lie apart or within each other, as the format asks for.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

from holdfast.base.processes.job_name import host_of
from holdfast.base.pure.codec import encode_fields
from holdfast.events.pure import schema
from holdfast.events.pure.schema import Event
from holdfast.events.run.accounts import LABELS
from holdfast.events.run.event_lines import files_of_events
from holdfast.events.run.rank_spans import Span, is_in_order
from holdfast.evidence.pure.failure import describe_exit, signal_name
from holdfast.tools.report.report import NodeSpans, node_spans, place
from holdfast.tools.report.section_slices import RankSections, SectionSlice
from holdfast.tools.report.sorted_lines import SortedLines
from holdfast.tools.report.timeline import recoveries
from holdfast.tools.report.trace_arrows import RankLane, arrows
from holdfast.tools.run.reader import events_in
from holdfast.tools.run.run_files import Run
from holdfast.watch.pure.monitor_messages import Evidence, Overdue, Signalled, Unkillable

TraceEvent = dict[str, Any]

_LAUNCHER = 0
_LINES = 1000
_US = 1e6
_ARGS_CHARS_MAX = 500
_COLOURS = {
    "steps": "good",
    "steps_again": "bad",
    "stalled": "terrible",
    "stopping": "bad",
    "restarting": "yellow",
    "waiting": "grey",
    "checkpointing": "olive",
    "evaluating": "rail_response",
    "finishing": "rail_idle",
}
"""Names that the format reserves; Perfetto has colours of its own."""
_OF_RANK: Mapping[type[schema.Body], str] = {
    schema.RankArmed: "reports in",
    Overdue: "overdue",
    Evidence: "evidence taken",
    Signalled: "signal sent",
    Unkillable: "cannot be killed",
    schema.RankRaised: "ended by an exception",
    schema.RankExited: "exits",
    schema.FaultInjected: "fault planted",
    schema.TrainingResumed: "resumed",
    schema.SnapshotRefused: "refuses the snapshot",
}
_OF_LAUNCHER: Mapping[type[schema.Body], str] = {
    schema.LauncherStarted: "launcher starts",
    schema.NodeChecked: "host checked",
    schema.Joining: "joins the rendezvous",
    schema.StandingBy: "waits as a spare",
    schema.CycleOver: "cycle ends",
    schema.CycleStopped: "nothing of the cycle is left",
    schema.ControlRequest: "a rank asks",
    schema.LeaderMoved: "this node leads the job now",
    schema.WitnessJoined: "a witness joins",
    schema.WitnessLeft: "a witness is gone",
    schema.SignalReceived: "a signal ends the job",
    schema.HangFound: "verdict",
    schema.StallFound: "stall, no rank is killed",
    schema.MonitorExited: "a monitor died",
    schema.InPlaceRestart: "restarted in place",
    schema.SnapshotsOn: "snapshots are on",
    schema.SnapshotsOff: "snapshots are off",
    schema.SnapshotRestored: "begins from a snapshot",
    schema.SnapshotOffered: "a snapshot of another number of ranks is there",
    schema.SnapshotCopied: "its snapshots are copied",
    schema.SnapshotNotCopied: "its snapshots are not copied",
    schema.SnapshotKept: "a step is kept",
    schema.SnapshotWritten: "a snapshot is written",
    schema.JobSucceeded: "job succeeded",
    schema.JobFailed: "job failed",
}


def trace_lines(run: Run) -> Iterator[str]:
    """The whole trace as JSON text, part by part: all of it would be long.

    The format lets events come in any order; these are in order of time, the longest first.
    """
    lines = SortedLines()
    encode = json.JSONEncoder(separators=(",", ":")).encode
    lanes: dict[tuple[int, int], RankLane] = {}

    def add(events: Iterable[TraceEvent]) -> None:
        for event in events:
            lines.add(event.get("ts", -1.0), -event.get("dur", 0.0), encode(event))

    for index, node in enumerate(node_spans(run)):
        tracks = _NodeTracks(index, node)
        add(tracks.all(place(run, index)))
        lanes |= tracks.lanes()
    add(arrows(recoveries(run.events), lanes))
    separator, ordered = '{"traceEvents":[\n', iter(lines)
    while some := list(islice(ordered, _LINES)):
        yield separator + ",\n".join(some)
        separator = ",\n"
    about = {"run_id": run.run_id, "script": run.name, "state": run.state}
    yield f'\n],"displayTimeUnit":"ms","otherData":{encode(about)}}}\n'


Slice = tuple[str, str, float, float, dict[str, Any]]
"""Name, category, start and end as instants of the launcher, arguments."""


class _NodeTracks:
    def __init__(self, pid: int, node: NodeSpans) -> None:
        self._pid = pid
        self._node = node
        self._events = node.node.events
        self._end = max((event.t for event in self._events), default=0.0)
        self._end = max(self._end, node.node.now or self._end)
        self._spans: dict[int, list[Span]] = {}
        for span in node.spans:
            self._spans.setdefault(span.local_rank, []).append(span)
        self._tracks: dict[tuple[int, str], int] = {}
        self._has_slices: set[tuple[int, str]] = set()
        for k in sorted(self._spans):
            for name in ("", *self._sections_of(k)):
                self._track(k, name)

    def _track(self, local_rank: int, section: str) -> int:
        return self._tracks.setdefault((local_rank, section), len(self._tracks) + 1)

    def _sections_of(self, local_rank: int) -> list[str]:
        """All that its last looks show, in the order in which they were opened first."""
        opened: dict[str, float] = {}
        for (_, k), shown in self._node.made.last_progress.items():
            if k == local_rank:
                first = {name: each.first_at for name, each in shown.sections.items()}
                for name, at in {**shown.open, **first}.items():
                    opened[name] = min(at, opened.get(name, at))
        return sorted(opened, key=lambda name: opened[name])

    def lanes(self) -> dict[tuple[int, int], RankLane]:
        """The tracks of its ranks, by cycle and rank."""
        spans: dict[tuple[int, int], list[tuple[str, float, float]]] = {}
        tids: dict[tuple[int, int], int] = {}
        for k, of_rank in self._spans.items():
            for span in of_rank:
                if span.rank is not None:
                    ends = self._timestamp(span.start), self._timestamp(span.end)
                    key = span.cycle, span.rank
                    spans.setdefault(key, []).append((span.account, *ends))
                    tids[key] = self._tracks[k, ""]
        return {key: RankLane(self._pid, tids[key], tuple(some)) for key, some in spans.items()}

    def all(self, name: str) -> Iterator[TraceEvent]:
        """All events."""
        yield from self._accounts()
        yield from self._done_to_ranks()
        yield from self._sections()
        yield from self._cycles()
        yield from self._marks()
        yield from self._step_rates()
        yield from self._names(name)  # last: only now is known which tracks there are

    # ------------------------------------------------------------ tracks
    def _names(self, node: str) -> Iterator[TraceEvent]:
        pid = self._pid
        yield _meta(pid, _LAUNCHER, "process_name", name=f"node {node}")
        yield _meta(pid, _LAUNCHER, "process_sort_index", sort_index=pid)
        yield _meta(pid, _LAUNCHER, "thread_name", name="launcher")
        yield _meta(pid, _LAUNCHER, "thread_sort_index", sort_index=-1)
        for (k, section), tid in self._tracks.items():
            if section and (k, section) not in self._has_slices:
                continue
            ranks = dict.fromkeys(s.rank for s in self._spans[k] if s.rank is not None)
            name = f"rank {'/'.join(map(str, ranks))}" if ranks else f"local rank {k}"
            yield _meta(pid, tid, "thread_name", name=f"{name}: {section}" if section else name)
            yield _meta(pid, tid, "thread_sort_index", sort_index=tid)

    def _timestamp(self, t: float) -> float:
        """An instant of this launcher, as the format has it."""
        return round(max(0.0, self._node.at(t)) * _US, 3)

    def _slice(self, tid: int, one: Slice) -> TraceEvent:
        name, category, start, end, args = one
        # Both ends are rounded, not the length: slices that touch must not overlap.
        began, over = self._timestamp(start), self._timestamp(end)
        return {
            "ph": "X",
            "pid": self._pid,
            "tid": tid,
            "ts": began,
            "dur": round(max(0.0, over - began), 3),
            "name": name,
            "cat": category,
            "args": args,
        }

    # ------------------------------------------------------------ ranks
    def _accounts(self) -> Iterator[TraceEvent]:
        for k, spans in self._spans.items():
            for span in spans:
                args: dict[str, Any] = {"cycle": span.cycle, "rank": span.rank}
                if len(span.shares) > 1:
                    args |= {f"{LABELS[a]} (s)": round(s, 6) for a, s in span.shares.items()}
                one = LABELS[span.account], "account", span.start, span.end, args
                event = self._slice(self._tracks[k, ""], one)
                if colour := _COLOURS.get(span.account):
                    event["cname"] = colour
                yield event

    def _done_to_ranks(self) -> Iterator[TraceEvent]:
        """Evidence and signals, within the account that the time belongs to."""
        done: dict[int, list[Slice]] = {}
        ends: dict[tuple[int, int], float] = {}
        places: dict[tuple[int, int], int] = {}
        for event in self._events:
            if isinstance(event.body, schema.RankStarted):
                places[event.cycle, event.body.rank] = event.body.local_rank
            elif isinstance(event.body, schema.RankExited):
                ends[event.cycle, event.body.rank] = event.t
        for event in self._events:
            body, t = event.body, event.t
            if not isinstance(body, (Evidence, Signalled)):
                continue
            key = event.cycle, body.rank
            local_rank = places.get(key)
            if local_rank is None or local_rank not in self._spans:
                continue
            if isinstance(body, Evidence):
                one = "evidence", "taking evidence", t - max(0.0, body.took_s), t, _args(event)
            else:
                name = f"{signal_name(body.signal)}, until it has ended"
                one = name, "kill", t, ends.get(key, self._end), _args(event)
            done.setdefault(local_rank, []).append(one)
        for local_rank, slices in done.items():
            spans = self._spans[local_rank]
            for one in _one_by_one(slices, [(span.start, span.end) for span in spans]):
                yield self._slice(self._tracks[local_rank, ""], one)

    def _sections(self) -> Iterator[TraceEvent]:
        free_from: dict[int, float] = {}
        for k, one in self._section_slices():
            tid = self._track(k, one.name)
            if one.start >= free_from.get(tid, -inf):  # else a page contradicts itself
                free_from[tid] = one.end
                self._has_slices.add((k, one.name))
                yield self._slice(tid, _section(one))

    def _section_slices(self) -> Iterator[tuple[int, SectionSlice]]:
        """With the local rank; those of each of its sections in order."""
        began: dict[tuple[int, int], float] = {}
        ended: dict[tuple[int, int], float] = {}
        stopped: dict[int, float] = {}
        last: dict[int, float] = {}
        for event in self._events:
            cycle, t = event.cycle, event.t
            match event.body:
                case schema.CycleStopped():
                    stopped[cycle] = t
                case schema.PagesRead():
                    last[cycle] = t
                case schema.RankArmed(local_rank=local_rank, armed_at=armed_at):
                    began.setdefault((local_rank, cycle), armed_at or t)
                case schema.RankExited(local_rank=local_rank):
                    ended[local_rank, cycle] = t
        open_cycles: dict[int, dict[int, RankSections]] = {}
        for event in _looks_in(self._node.node.folder):
            cycle, t, look = event.cycle, event.t, event.body
            if not isinstance(look, schema.PagesRead) or t > last.get(cycle, -inf):
                continue  # written after the other events were read
            ranks = open_cycles.setdefault(cycle, {})
            read_at = min(t, look.at or t)
            for key, shown in look.ranks.items():
                k = int(key) if key.isdecimal() else -1
                if k not in self._spans:
                    continue
                if k not in ranks:
                    until = ended.get((k, cycle), stopped.get(cycle, self._end))
                    ranks[k] = RankSections(began.get((k, cycle), read_at), until)
                yield from ((k, one) for one in ranks[k].look(read_at, t, shown))
            if t == last[cycle]:
                for k, rank in open_cycles.pop(cycle).items():
                    yield from ((k, one) for one in rank.over())

    # ------------------------------------------------------------ launcher
    def _cycles(self) -> Iterator[TraceEvent]:
        """Each cycle until nothing of it is left, its parts, and restarts."""
        cycles: list[tuple[int, float, float]] = []
        slices: list[Slice] = []
        inner: list[Slice] = []
        begun: tuple[int, float] | None = None
        stopped_at: float | None = None
        found_at: dict[int, float] = {}
        for event in self._events:
            if isinstance(event.body, Overdue):
                found_at.setdefault(event.cycle, event.body.detected_at)
        stopping: tuple[float, Event] | None = None

        def stop(at: float) -> None:
            nonlocal begun, stopping
            if begun is not None:
                cycles.append((*begun, at))
                if stopping is not None:
                    inner.append(("stopping", "stopping", stopping[0], at, _args(stopping[1])))
            begun = stopping = None

        for event in self._events:
            t, cycle = event.t, event.cycle
            if isinstance(event.body, schema.CycleJoined):
                stop(t)
                if stopped_at is not None:
                    slices.append(("restart", "restart", stopped_at, t, {"cycle": cycle}))
                begun, stopped_at = (cycle, t), None
                continue
            if begun is None or cycle != begun[0]:
                continue
            match event.body:
                case schema.RankStarted(rank=rank):
                    since = max(begun[1], inner[-1][3] if inner else 0.0)
                    inner.append((f"starts rank {rank}", "start", since, t, _args(event)))
                case schema.InPlaceRestart() as restart if is_in_order(restart):
                    times = restart.noticed_at, restart.entered_at
                    inner.append(("restart in place", "in place", *times, _args(event)))
                case schema.HangFound() if cycle in found_at:
                    look = "all ranks are inspected", "incident", found_at[cycle], t
                    inner.append((*look, _args(event)))
                case schema.CycleOver() if stopping is None:
                    stopping = t, event
                case schema.CycleStopped():
                    stop(t)
                    stopped_at = t
        stop(self._end)
        slices += [(f"cycle {c}", "cycle", start, end, {"cycle": c}) for c, start, end in cycles]
        slices += _one_by_one(inner, [(start, end) for _, start, end in cycles])
        for one in slices:
            yield self._slice(_LAUNCHER, one)

    def _step_rates(self) -> Iterator[TraceEvent]:
        """A counter; 0 where no step follows at once."""
        rates = self._node.node.steps
        counts = {self._timestamp(each.end): 0.0 for each in rates}
        counts |= {self._timestamp(each.start): round(each.per_s, 3) for each in rates}
        for at, per_s in counts.items():
            place = {"pid": self._pid, "tid": _LAUNCHER, "ts": at}
            yield {"ph": "C", **place, "name": "steps/s", "args": {"steps/s": per_s}}

    # ------------------------------------------------------------ instants
    def _marks(self) -> Iterator[TraceEvent]:
        yield from self._first_steps()
        places: dict[int, int] = {}
        for event in self._events:
            body = event.body
            if isinstance(body, schema.RankStarted):
                places[body.rank] = body.local_rank
            if (name := _OF_LAUNCHER.get(type(body))) is not None:
                yield self._mark(_LAUNCHER, event, _with_step(body) or name)
            elif type(body) in _OF_RANK:
                place_of_rank = places.get(getattr(body, "rank", -1), -1)
                track = getattr(body, "local_rank", place_of_rank), ""
                yield self._mark(self._tracks.get(track, _LAUNCHER), event, _named(event))

    def _first_steps(self) -> Iterator[TraceEvent]:
        """Where each rank is at work in a cycle for the first time."""
        if not self._node.made.is_watched:
            return
        for k, spans in self._spans.items():
            seen: set[int] = set()
            for span in spans:
                if span.account == "steps" and span.cycle not in seen:
                    seen.add(span.cycle)
                    event = Event(span.start, span.cycle, schema.OtherKind(), kind="first_step")
                    yield self._mark(self._tracks[k, ""], event, "first step")

    def _mark(self, tid: int, event: Event, name: str) -> TraceEvent:
        at = event.t
        if isinstance(event.body, Overdue):
            at = event.body.detected_at
        elif isinstance(event.body, schema.RankArmed):
            at = event.body.armed_at or at
        return {
            "ph": "i",
            "s": "t",
            "pid": self._pid,
            "tid": tid,
            "ts": self._timestamp(at),
            "name": name,
            "cat": event.kind,
            "args": _args(event),
        }


def _with_step(body: schema.Body) -> str:
    match body:
        case schema.SnapshotRestored(step=step):
            return f"begins from the snapshot of step {step}"
        case schema.SnapshotCopied(step=step, peer=peer):
            return f"its snapshots of step {step} are at {host_of(peer)}"
        case schema.SnapshotKept(step=step):
            return f"step {step} is kept at other nodes"
        case schema.SnapshotWritten(step=step, why=why):
            return f"the snapshot of step {step} is {'not ' if why else ''}on disk"
    return ""


def _section(one: SectionSlice) -> Slice:
    args: dict[str, Any] = {"section": one.name, "seconds": round(one.total_s, 6)}
    name = one.name
    if one.times > 1:
        share = 100 * one.total_s / (one.end - one.start)
        name = f"{name} x{one.times}, {share:.0f} %"
        args |= {"times": one.times, "mean (s)": round(one.total_s / one.times, 6)}
        args["share of this time (%)"] = round(share, 2)
    if one.is_open:
        args["still open"] = True
    return name, "section", one.start, one.end, args


def _one_by_one(slices: Iterable[Slice], parents: list[tuple[float, float]]) -> Iterator[Slice]:
    """Each within the parent where it begins, and after the one before it.

    Args:
        slices: Of one track.
        parents: Start and end of the slices that these lie in; in order, without overlap.
    """
    starts = [start for start, _ in parents]
    free_from = float("-inf")
    for name, category, start, end, args in sorted(slices, key=lambda one: one[2:4]):
        begin = max(start, free_from)
        index = bisect_right(starts, begin) - 1
        if index >= 0 and begin < (until := min(end, parents[index][1])):
            free_from = until
            yield name, category, begin, until, args


def _meta(pid: int, tid: int, kind: str, **args: Any) -> TraceEvent:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": args}


def _named(event: Event) -> str:
    match event.body:
        case Signalled(signal=number):
            return f"{signal_name(number)} sent"
        case schema.RankExited(exit_code=code):
            return f"exits: {describe_exit(code)}"
    return _OF_RANK[type(event.body)]


def _args(event: Event) -> dict[str, Any]:
    fields = {"cycle": event.cycle, **encode_fields(event.body)}
    return {key: _plain(value) for key, value in fields.items() if key != "job"}


def _plain(value: Any) -> Any:
    """Not too deep."""
    if isinstance(value, (dict, list)):
        text = str(value)
        return text if len(text) <= _ARGS_CHARS_MAX else f"{text[:_ARGS_CHARS_MAX]} ..."
    return value


def _looks_in(folder: Path) -> Iterator[schema.Event]:
    """All looks at ranks' pages in a run folder, as they are read."""
    for path in files_of_events(folder):
        with suppress(OSError):
            yield from events_in(path, schema.PagesRead)
