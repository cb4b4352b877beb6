"""The timeline of a run in the Chrome trace format, which Perfetto opens. Pure.

    process   a node            thread 0   its launcher: cycles, and what it did in them
                                then       each rank: accounts; evidence and kill within them
                                           its sections, a track each

Times are microseconds since the run began. A rank's spans lie end to end: they are those of the
ledger. Slices of a track lie apart or within each other, as the format asks for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from holdfast.core.failure import describe_exit, signal_name
from holdfast.observe.accounts import LABELS
from holdfast.observe.rank_spans import Progress, Span, number
from holdfast.observe.report import NodeSpans, Story, place
from holdfast.observe.run_files import Event
from holdfast.observe.section_slices import Look, SectionSlice, by_name, section_slices

TraceEvent = dict[str, Any]

_LAUNCHER = 0
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
}
"""Names that the format reserves; Perfetto has colours of its own."""
_OF_RANK = {
    "rank_armed": "reports in",
    "rank_overdue": "hung",
    "evidence": "evidence taken",
    "kill_sent": "signal sent",
    "rank_stuck": "cannot be killed",
    "worker_exited": "exits",
    "fault": "fault planted",
    "resumed": "resumed",
}
_OF_LAUNCHER = {
    "launcher_started": "launcher starts",
    "host_checked": "host checked",
    "joining": "joins the rendezvous",
    "standing_by": "waits as a spare",
    "cycle_stopping": "cycle ends",
    "cycle_stopped": "nothing of the cycle is left",
    "control_request": "a rank asks",
    "signal_received": "a signal ends the job",
    "incident": "verdict",
    "monitor_exited": "a monitor died",
    "restarted_in_place": "restarted in place",
    "job_succeeded": "job succeeded",
    "job_failed": "job failed",
}


def trace_of(story: Story) -> dict[str, Any]:
    """The whole trace, as JSON holds it."""
    events: list[TraceEvent] = []
    for index, each in enumerate(story.nodes):
        node = _Node(index, each)
        events += node.names(place(story.run, index))
        events += node.accounts()
        events += node.done_to_ranks()
        events += node.sections()
        events += node.cycles()
        events += node.marks()
    run = story.run
    return {
        "traceEvents": sorted(
            events, key=lambda event: (event.get("ts", -1.0), -event.get("dur", 0))
        ),
        "displayTimeUnit": "ms",
        "otherData": {"run_id": run.run_id, "script": run.name, "state": run.state},
    }


Slice = tuple[str, str, float, float, dict[str, Any]]
"""Name, category, start and end as instants of the launcher, arguments."""


class _Node:
    """The tracks of one launcher and its ranks.

    Args:
        pid: Of the trace's process.
        each: What is known.
    """

    def __init__(self, pid: int, each: NodeSpans) -> None:
        self._pid = pid
        self._each = each
        self._events = each.node.events
        self._end = max((float(event["t"]) for event in self._events), default=0.0)
        self._end = max(self._end, each.node.now or self._end)
        self._spans: dict[int, list[Span]] = {}
        for span in each.spans:
            self._spans.setdefault(span.local_rank, []).append(span)
        self._sections = {k: by_name(slices) for k, slices in self._section_slices().items()}
        self._tracks: dict[tuple[int, str], int] = {}
        for k, sections in self._sections.items():
            for name in ("", *sections):
                self._tracks[k, name] = len(self._tracks) + 1

    # ------------------------------------------------------------ tracks
    def names(self, node: str) -> Iterator[TraceEvent]:
        """Of process and threads."""
        pid = self._pid
        yield _meta(pid, _LAUNCHER, "process_name", name=f"node {node}")
        yield _meta(pid, _LAUNCHER, "process_sort_index", sort_index=pid)
        yield _meta(pid, _LAUNCHER, "thread_name", name="launcher")
        yield _meta(pid, _LAUNCHER, "thread_sort_index", sort_index=-1)
        for (k, section), tid in self._tracks.items():
            ranks = dict.fromkeys(s.rank for s in self._spans[k] if s.rank is not None)
            name = f"rank {'/'.join(map(str, ranks))}" if ranks else f"local rank {k}"
            yield _meta(pid, tid, "thread_name", name=f"{name}: {section}" if section else name)
            yield _meta(pid, tid, "thread_sort_index", sort_index=tid)

    def _slice(self, tid: int, one: Slice) -> TraceEvent:
        name, category, start, end, args = one
        # Both ends are rounded, not the length: slices that touch must not overlap.
        began, over = _us(self._each.at(start)), _us(self._each.at(end))
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
    def accounts(self) -> Iterator[TraceEvent]:
        """What each rank's time was spent on."""
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

    def done_to_ranks(self) -> Iterator[TraceEvent]:
        """Evidence and signals, within the account that the time belongs to."""
        done: dict[int, list[Slice]] = {}
        ends = {(e["cycle"], int(e["rank"])): float(e["t"]) for e in self._of("worker_exited")}
        places = {
            (e["cycle"], int(e["rank"])): int(e["local_rank"]) for e in self._of("worker_started")
        }
        for event in self._of("evidence", "kill_sent"):
            key, t = (event["cycle"], int(event["rank"])), float(event["t"])
            local_rank = places.get(key)
            if local_rank not in self._spans:
                continue
            if event["kind"] == "evidence":
                took_s = max(0.0, number(event.get("took_s")) or 0.0)
                one = "evidence", "taking evidence", t - took_s, t, _args(event)
            else:
                name = f"{signal_name(int(event['signal']))}, until it has ended"
                one = name, "kill", t, ends.get(key, self._end), _args(event)
            done.setdefault(local_rank, []).append(one)
        for local_rank, slices in done.items():
            spans = self._spans[local_rank]
            for one in _one_by_one(slices, [(span.start, span.end) for span in spans]):
                yield self._slice(self._tracks[local_rank, ""], one)

    def sections(self) -> Iterator[TraceEvent]:
        """A track for each section of each rank."""
        for k, sections in self._sections.items():
            for name, slices in sections.items():
                for one in slices:
                    yield self._slice(self._tracks[k, name], _section(one))

    def _section_slices(self) -> dict[int, list[SectionSlice]]:
        """Of each rank that has spans, in order."""
        began: dict[tuple[int, int], float] = {}
        ended: dict[tuple[int, int], float] = {}
        stopped: dict[int, float] = {}
        looks: dict[tuple[int, int], list[Look]] = {}
        for event in self._of("rank_armed", "worker_exited", "cycle_stopped", "progress"):
            cycle, t = int(event["cycle"]), float(event["t"])
            if event["kind"] == "cycle_stopped":
                stopped[cycle] = t
            elif event["kind"] == "progress":
                read_at = min(t, number(event.get("at")) or t)
                for local_rank, shown in _shown(event):
                    looks.setdefault((local_rank, cycle), []).append((read_at, t, shown))
            elif event["kind"] == "rank_armed":
                armed_at = number(event.get("armed_at")) or t
                began.setdefault((int(event["local_rank"]), cycle), armed_at)
            else:
                ended[int(event["local_rank"]), cycle] = t
        found: dict[int, list[SectionSlice]] = {k: [] for k in sorted(self._spans)}
        for key, then in looks.items():
            until = ended.get(key, stopped.get(key[1], self._end))
            if key[0] in found:
                found[key[0]] += section_slices(began.get(key, then[0][0]), then, until)
        return found

    def _of(self, *kinds: str) -> Iterator[Event]:
        return (event for event in self._events if event["kind"] in kinds)

    # ------------------------------------------------------------ launcher
    def cycles(self) -> Iterator[TraceEvent]:
        """Each cycle until nothing of it is left, what the launcher does in it, and restarts."""
        cycles: list[tuple[int, float, float]] = []
        slices: list[Slice] = []
        inner: list[Slice] = []
        begun: tuple[int, float] | None = None
        stopped_at: float | None = None
        found_at: dict[int, float] = {}
        for event in self._of("rank_overdue"):
            at = number(event.get("detected_at")) or float(event["t"])
            found_at.setdefault(int(event["cycle"]), at)
        stopping: tuple[float, Event] | None = None

        def stop(at: float) -> None:
            nonlocal begun, stopping
            if begun is not None:
                cycles.append((*begun, at))
                if stopping is not None:
                    inner.append(("stopping", "stopping", stopping[0], at, _args(stopping[1])))
            begun = stopping = None

        for event in self._events:
            kind, t, cycle = event["kind"], float(event["t"]), int(event["cycle"])
            if kind == "cycle_started":
                stop(t)
                if stopped_at is not None:
                    slices.append(("restart", "restart", stopped_at, t, {"cycle": cycle}))
                begun, stopped_at = (cycle, t), None
            elif begun is None or cycle != begun[0]:
                continue
            elif kind == "worker_started":
                name = f"starts rank {int(event['rank'])}"
                inner.append(
                    (name, "start", max(begun[1], inner[-1][3] if inner else 0.0), t, _args(event))
                )
            elif kind == "restarted_in_place":
                noticed = number(event.get("noticed_at")) or t
                entered = number(event.get("entered_at")) or t
                inner.append(("restart in place", "in place", noticed, entered, _args(event)))
            elif kind == "incident" and cycle in found_at:
                look = "all ranks are looked at", "incident", found_at[cycle], t
                inner.append((*look, _args(event)))
            elif kind == "cycle_stopping" and stopping is None:
                stopping = t, event
            elif kind == "cycle_stopped":
                stop(t)
                stopped_at = t
        stop(self._end)
        slices += [(f"cycle {c}", "cycle", start, end, {"cycle": c}) for c, start, end in cycles]
        slices += _one_by_one(inner, [(start, end) for _, start, end in cycles])
        for one in slices:
            yield self._slice(_LAUNCHER, one)

    # ------------------------------------------------------------ instants
    def marks(self) -> Iterator[TraceEvent]:
        """What happened at an instant."""
        yield from self._first_steps()
        places: dict[int, int] = {}
        for event in self._events:
            kind = event["kind"]
            if kind == "worker_started":
                places[int(event["rank"])] = int(event["local_rank"])
            if kind in _OF_LAUNCHER:
                yield self._mark(_LAUNCHER, event, _OF_LAUNCHER[kind])
            elif kind in _OF_RANK:
                rank, local_rank = number(event.get("rank")), number(event.get("local_rank"))
                if local_rank is None and rank is not None:
                    local_rank = places.get(int(rank))
                track = (-1 if local_rank is None else int(local_rank)), ""
                yield self._mark(self._tracks.get(track, _LAUNCHER), event, _named(event))

    def _first_steps(self) -> Iterator[TraceEvent]:
        """Where each rank is at work in a cycle for the first time."""
        if not self._each.made.is_watched:
            return
        for k, spans in self._spans.items():
            seen: set[int] = set()
            for span in spans:
                if span.account == "steps" and span.cycle not in seen:
                    seen.add(span.cycle)
                    event = {"t": span.start, "kind": "first_step", "cycle": span.cycle}
                    yield self._mark(self._tracks[k, ""], event, "first step")

    def _mark(self, tid: int, event: Event, name: str) -> TraceEvent:
        exact = (number(event.get(key)) for key in ("detected_at", "armed_at"))
        at = next((at for at in exact if at), float(event["t"]))
        return {
            "ph": "i",
            "s": "t",
            "pid": self._pid,
            "tid": tid,
            "ts": _us(self._each.at(at)),
            "name": name,
            "cat": event["kind"],
            "args": _args(event),
        }


def _shown(event: Event) -> Iterator[tuple[int, Progress]]:
    """By local rank; what has not the form of it is passed over."""
    told = event.get("ranks")
    for local_rank, shown in told.items() if isinstance(told, dict) else ():
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            yield int(local_rank), Progress.of(shown)


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


def _meta(pid: int, tid: int, what: str, **args: Any) -> TraceEvent:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": args}


def _named(event: Event) -> str:
    name = _OF_RANK[event["kind"]]
    if event["kind"] == "kill_sent":
        return f"{signal_name(int(event['signal']))} sent"
    if event["kind"] == "worker_exited":
        return f"exits: {describe_exit(int(event['exit_code']))}"
    return name


def _args(event: Event) -> dict[str, Any]:
    left_out = ("t", "wall", "kind", "node", "job")
    return {key: _plain(value) for key, value in event.items() if key not in left_out}


def _plain(value: Any) -> Any:
    """As JSON holds it, which has no infinity, and not too deep."""
    if isinstance(value, float) and number(value) is None:
        return str(value)
    if isinstance(value, (dict, list)):
        text = str(value)
        return text if len(text) <= _ARGS_CHARS_MAX else f"{text[:_ARGS_CHARS_MAX]} ..."
    return value


def _us(s: float) -> float:
    return round(max(0.0, s) * _US, 3)
