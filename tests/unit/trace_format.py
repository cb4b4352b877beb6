"""What a Chrome trace must be, so that Perfetto opens it and shows all of it.

Perfetto reads times as whole nanoseconds, sorts by them, and drops slices that overlap in part.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

_NEEDED = {
    "X": ("name", "cat", "ts", "dur", "pid", "tid"),
    "i": ("name", "cat", "ts", "pid", "tid", "s"),
    "s": ("name", "cat", "id", "ts", "pid", "tid"),
    "f": ("name", "cat", "id", "ts", "pid", "tid", "bp"),
    "C": ("name", "ts", "pid", "args"),
    "M": ("name", "pid", "tid", "args"),
}
_COLOURS = (
    *("good", "bad", "terrible", "yellow", "olive", "grey", "rail_response", "rail_animation"),
    *("rail_idle", "rail_load", "startup", "generic_work", "white", "black"),
)
_METADATA = ("process_name", "process_sort_index", "thread_name", "thread_sort_index")


def violations(trace: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with it."""
    if not isinstance(trace.get("traceEvents"), list) or trace.get("displayTimeUnit") != "ms":
        return ["it is no trace of the JSON object format"]
    json.dumps(trace, allow_nan=False)
    events = trace["traceEvents"]
    return [
        *_of_events(events),
        *_of_tracks(events),
        *_of_slices(events),
        *_of_arrows(events),
    ]


def _ns(us: float) -> int:
    return round(1000 * us)


def _of_events(events: list[dict[str, Any]]) -> Iterator[str]:
    named = {(e["pid"], e["tid"]) for e in events if e.get("name") == "thread_name"}
    for event in events:
        phase = event.get("ph")
        missing = [key for key in _NEEDED.get(phase, ("known phase",)) if key not in event]
        if missing:
            yield f"{event} lacks {missing}"
            continue
        times = [event[key] for key in ("ts", "dur") if key in event]
        if any(isinstance(t, bool) or not math.isfinite(t) or t < 0 for t in times):
            yield f"{event} has a time that is none"
        if not all(isinstance(event[key], int) for key in ("pid", "tid") if key in event):
            yield f"{event} has a track that is no number"
        if phase != "M" and (event["pid"], event["tid"]) not in named:
            yield f"{event} is on a track without a name"
        if phase == "i" and event["s"] not in ("g", "p", "t"):
            yield f"{event} has no scope"
        if phase == "M" and event["name"] not in _METADATA:
            yield f"{event} is of an unknown kind"
        if event.get("cname", "good") not in _COLOURS:
            yield f"{event} has a colour that there is not"
        if phase == "C" and not all(isinstance(v, (int, float)) for v in event["args"].values()):
            yield f"{event} counts what is no number"


def _of_tracks(events: list[dict[str, Any]]) -> Iterator[str]:
    """Each has one name; what is on them comes in order of time."""
    names = [e for e in events if e.get("name") in ("thread_name", "process_name")]
    own = Counter((e["name"], e["pid"], e["tid"]) for e in names)
    yield from (f"{track} is named twice" for track, times in own.items() if times > 1)
    order = [(_ns(e["ts"]), -_ns(e.get("dur", 0))) for e in events if e.get("ph") != "M"]
    if order != sorted(order):
        yield "events are not in order of time, the longest first"


def _of_slices(events: list[dict[str, Any]]) -> Iterator[str]:
    """Slices of a track lie within each other or apart: Perfetto drops those that overlap."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event.get("ph") == "X":
            ends = _ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"])
            tracks.setdefault((event["pid"], event["tid"]), []).append(ends)
    for track, slices in tracks.items():
        open_until: list[int] = []
        for start, end in sorted(slices, key=lambda ends: (ends[0], -ends[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            if open_until and end > open_until[-1]:
                yield f"slices overlap on track {track} at {start}"
            open_until.append(end)


def _of_arrows(events: list[dict[str, Any]]) -> Iterator[str]:
    """Each has a beginning and a later end, both within a slice of their tracks."""
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    ends: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event.get("ph") == "X":
            track = slices.setdefault((event["pid"], event["tid"]), [])
            track.append((event["ts"], event["ts"] + event["dur"]))
        elif event.get("ph") in ("s", "f"):
            ends.setdefault(event["id"], []).append(event)
    for number, both in ends.items():
        if [end["ph"] for end in both] != ["s", "f"]:
            yield f"arrow {number} is not whole, or ends before it begins"
        for end in both:
            within = slices.get((end["pid"], end["tid"]), [])
            if not any(start <= end["ts"] <= until for start, until in within):
                yield f"{end} begins or ends at no slice"
