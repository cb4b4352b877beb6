"""The timeline of a run in the Chrome trace format, which Perfetto opens. Pure.

    process   a node            thread 0      its launcher: cycles, and what it did
                                thread 1 + k  local rank k: accounts, faults, evidence, kills
    counters  sections of each rank: their share of the time between two looks at its page

Times are microseconds since the run began. A rank's spans lie end to end: they are those of the
ledger. What is inside the time at work is not known occurrence by occurrence, so its parts are in
the arguments of the span and in the counters, not drawn where they may not have been.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.core.failure import describe_exit, signal_name
from holdfast.observe.accounts import LABELS
from holdfast.observe.rank_spans import Progress, Span, number
from holdfast.observe.report import NodeSpans, Story, place
from holdfast.observe.run_files import Event

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
    "incident": "verdict",
    "monitor_exited": "a monitor died",
    "job_succeeded": "job succeeded",
    "job_failed": "job failed",
}


def trace_of(story: Story) -> dict[str, Any]:
    """The whole trace, as JSON holds it."""
    events: list[TraceEvent] = []
    for index, each in enumerate(story.nodes):
        name = place(story.run, index)
        events += _names(index, name, each)
        events += [_slice(index, span, each.shift_s) for span in each.spans]
        events += _first_steps(index, each)
        events += _launcher(index, each)
        events += _marks(index, each)
        events += _counters(index, each)
    run = story.run
    return {
        "traceEvents": sorted(events, key=lambda event: event.get("ts", -1.0)),
        "displayTimeUnit": "ms",
        "otherData": {"run_id": run.run_id, "script": run.name, "state": run.state},
    }


def _names(pid: int, node: str, each: NodeSpans) -> Iterator[TraceEvent]:
    yield _meta(pid, _LAUNCHER, "process_name", name=f"node {node}")
    yield _meta(pid, _LAUNCHER, "process_sort_index", sort_index=pid)
    yield _meta(pid, _LAUNCHER, "thread_name", name="launcher")
    yield _meta(pid, _LAUNCHER, "thread_sort_index", sort_index=-1)
    numbers: dict[int, set[int]] = {}
    for span in each.spans:
        of_rank = numbers.setdefault(span.local_rank, set())
        if span.rank is not None:
            of_rank.add(span.rank)
    for local_rank, ranks in sorted(numbers.items()):
        name = "/".join(map(str, sorted(ranks))) or "?"
        yield _meta(pid, 1 + local_rank, "thread_name", name=f"rank {name}")
        yield _meta(pid, 1 + local_rank, "thread_sort_index", sort_index=local_rank)


def _meta(pid: int, tid: int, what: str, **args: Any) -> TraceEvent:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": args}


def _slice(pid: int, span: Span, shift_s: float) -> TraceEvent:
    args: dict[str, Any] = {"cycle": span.cycle, "rank": span.rank}
    if len(span.shares) > 1:
        args |= {f"{LABELS[account]} (s)": round(s, 6) for account, s in span.shares.items()}
    event: TraceEvent = {
        "ph": "X",
        "pid": pid,
        "tid": 1 + span.local_rank,
        "ts": _us(span.start + shift_s),
        "dur": _us(span.end - span.start),
        "name": LABELS[span.account],
        "cat": "account",
        "args": args,
    }
    if colour := _COLOURS.get(span.account):
        event["cname"] = colour
    return event


def _first_steps(pid: int, each: NodeSpans) -> Iterator[TraceEvent]:
    """Where each rank is at work in a cycle for the first time."""
    if not each.made.is_watched:
        return
    seen: set[tuple[int, int]] = set()
    for span in each.spans:
        key = span.cycle, span.local_rank
        if span.account == "steps" and key not in seen:
            seen.add(key)
            event: Event = {"t": span.start, "kind": "first_step", "cycle": span.cycle}
            yield _mark(pid, 1 + span.local_rank, event, "first step", each.shift_s)


def _launcher(pid: int, each: NodeSpans) -> Iterator[TraceEvent]:
    """A slice for each cycle, from its start to the end of its last process."""
    began: dict[int, float] = {}
    last = 0.0
    for event in each.node.events:
        cycle, last = int(event["cycle"]), float(event["t"])
        if event["kind"] == "cycle_started":
            began[cycle] = last
        elif event["kind"] == "cycle_stopped" and cycle in began:
            yield _cycle(pid, cycle, began.pop(cycle), last, each.shift_s)
    for cycle, start in began.items():
        yield _cycle(pid, cycle, start, max(last, each.node.now or last), each.shift_s)


def _cycle(pid: int, cycle: int, start: float, end: float, shift_s: float) -> TraceEvent:
    return {
        "ph": "X",
        "pid": pid,
        "tid": _LAUNCHER,
        "ts": _us(start + shift_s),
        "dur": _us(end - start),
        "name": f"cycle {cycle}",
        "cat": "cycle",
        "args": {"cycle": cycle},
    }


def _marks(pid: int, each: NodeSpans) -> Iterator[TraceEvent]:
    """What happened at an instant."""
    places: dict[int, int] = {}
    for event in each.node.events:
        kind = event["kind"]
        if kind == "worker_started":
            places[int(event["rank"])] = int(event["local_rank"])
        if kind in _OF_LAUNCHER:
            yield _mark(pid, _LAUNCHER, event, _OF_LAUNCHER[kind], each.shift_s)
        elif kind in _OF_RANK:
            rank = number(event.get("rank"))
            local_rank = number(event.get("local_rank"))
            if local_rank is None and rank is not None:
                local_rank = places.get(int(rank))
            tid = _LAUNCHER if local_rank is None else 1 + int(local_rank)
            yield _mark(pid, tid, event, _named(event), each.shift_s)


def _named(event: Event) -> str:
    name = _OF_RANK[event["kind"]]
    if event["kind"] == "kill_sent":
        return f"{signal_name(int(event['signal']))} sent"
    if event["kind"] == "worker_exited":
        return f"exits: {describe_exit(int(event['exit_code']))}"
    return name


def _mark(pid: int, tid: int, event: Event, name: str, shift_s: float) -> TraceEvent:
    at = number(event.get("detected_at")) or float(event["t"])
    left_out = ("t", "wall", "kind", "node", "job")
    return {
        "ph": "i",
        "s": "t",
        "pid": pid,
        "tid": tid,
        "ts": _us(at + shift_s),
        "name": name,
        "cat": event["kind"],
        "args": {key: _plain(value) for key, value in event.items() if key not in left_out},
    }


def _plain(value: Any) -> Any:
    """As JSON holds it, which has no infinity, and not too deep."""
    if isinstance(value, float) and number(value) is None:
        return str(value)
    if isinstance(value, (dict, list)):
        text = str(value)
        return text if len(text) <= _ARGS_CHARS_MAX else f"{text[:_ARGS_CHARS_MAX]} ..."
    return value


def _counters(pid: int, each: NodeSpans) -> Iterator[TraceEvent]:
    """Between two looks at a page: the share of the time that each section was open."""
    before: dict[tuple[int, str], tuple[float, Mapping[str, float]]] = {}
    for event in each.node.events:
        if event["kind"] not in ("progress", "rank_armed"):
            continue
        at = float(event["t"])
        if event["kind"] == "rank_armed":
            before[int(event["cycle"]), str(event.get("local_rank"))] = at, {}
            continue
        if event.get("final"):  # written when the next cycle has begun, about the end of this one
            continue
        told = event.get("ranks")
        for local_rank, shown in told.items() if isinstance(told, dict) else ():
            try:
                totals = _totals(Progress.of(shown), at)
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
            key = int(event["cycle"]), str(local_rank)
            since, earlier = before.get(key, (at, {}))
            before[key] = at, totals
            if at <= since or not local_rank.isdecimal():
                continue
            yield {
                "ph": "C",
                "pid": pid,
                "tid": 1 + int(local_rank),
                "ts": _us(since + each.shift_s),
                "name": f"sections of local rank {local_rank} (%)",
                "args": {
                    name: round(
                        min(100.0, max(0.0, 100 * (s - earlier.get(name, 0.0)) / (at - since))), 2
                    )
                    for name, s in totals.items()
                },
            }


def _totals(progress: Progress, at: float) -> dict[str, float]:
    """Seconds in each section until ``at``."""
    totals = {name: each.total_s for name, each in progress.ended.items()}
    for name, since in progress.open.items():
        totals[name] = totals.get(name, 0.0) + max(0.0, at - since)
    return totals


def _us(s: float) -> float:
    return round(max(0.0, s) * _US, 3)
