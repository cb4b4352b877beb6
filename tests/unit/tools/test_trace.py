"""The timeline for Perfetto: well-formed whatever the events are, and what it shows of a hang."""

from __future__ import annotations

import atexit
import json
import os
import tempfile
import tracemalloc
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.tools.report import sorted_lines, trace
from holdfast.tools.report.trace import trace_lines
from holdfast.tools.run.run_files import read_run
from tests.unit.made_events import (
    HANG,
    THEN_WELL,
    WITH_SNAPSHOTS,
    event,
    made_up,
    of_rank,
    progress,
    shown,
)
from tests.unit.trace_format import violations

EXAMPLES = int(os.environ.get("HOLDFAST_LEDGER_EXAMPLES", "40"))


def traced(*nodes: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The trace of these launchers' events, as a program reads it."""
    folders = [_folder() / str(k) for k in range(len(nodes))]
    for path, events in zip(folders, nodes, strict=True):
        path.mkdir(exist_ok=True)
        lines = "".join(f"{json.dumps(each)}\n" for each in events)
        (path / "events-launcher.jsonl").write_text(lines)
    return json.loads("".join(trace_lines(read_run(folders))))


@cache
def _folder() -> Path:
    """For all examples: to make and remove one takes longer than to read it."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


def slices(trace: dict[str, Any], category: str) -> list[tuple[str, str, float, float]]:
    """Track, name, start and length in seconds."""
    events = trace["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = [e for e in events if e["ph"] == "X" and e["cat"] == category]
    return [(tracks[e["tid"]], e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in found]


@settings(max_examples=EXAMPLES)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=3))
def test_whatever_the_events_are_every_track_can_be_drawn(seeds: list[int]) -> None:
    """Slices of a track lie apart or within each other; tracks have names, instants are numbers."""
    assert (
        violations(traced(*(made_up(seed) or [event(0.0, "launcher_started")] for seed in seeds)))
        == []
    )


def test_a_hang_is_drawn_from_its_section_to_the_restart() -> None:
    """On the rank: its section, the stall, evidence, kill. On the launcher: look, stop, restart."""
    hang = [one for one in HANG if one["kind"] != "progress" and one["t"] < 85.0]
    taken = [
        event(80.4, "incident", 0, incident=1, culprits=[1], reason="rank 1 sleeps"),
        of_rank(80.45, "evidence", 0, 1, took_s=0.44),
        of_rank(80.5, "kill_sent", 0, 1, signal=9),
    ]
    looked = [
        shown(
            0,
            16.0,
            {"1": progress({"checkpoint": 15.0}, {"step": [9, 4.5, 0.6, 10.0, 14.9]})},
            final=False,
        ),
        shown(
            0,
            26.0,
            {"1": progress({"checkpoint": 15.0}, {"step": [9, 4.5, 0.6, 10.0, 14.9]})},
            final=False,
        ),
        shown(
            0,
            85.0,
            {
                "1": progress(
                    {"step": 50.0},
                    {
                        "step": [39, 24.5, 0.9, 10.0, 49.0],
                        "checkpoint": [1, 14.0, 14.0, 15.0, 29.0],
                    },
                )
            },
        ),
    ]
    trace = traced(sorted([*hang, *taken, *looked], key=lambda one: one["t"]))
    assert violations(trace) == []
    assert slices(trace, "section") == [
        ("rank 1: step", "step x9, 92 %", 10.0, 4.9),
        ("rank 1: checkpoint", "checkpoint", 15.0, 14.0),
        ("rank 1: step", "step x30, 87 %", 26.0, 23.0),
        ("rank 1: step", "step", 50.0, 31.0),
    ]
    assert slices(trace, "taking evidence") == [("rank 1", "evidence", 80.01, 0.44)]
    assert slices(trace, "kill") == [("rank 1", "SIGKILL, until it has ended", 80.5, 0.5)]
    assert slices(trace, "incident") == [("launcher", "all ranks are inspected", 80.0, 0.4)]
    assert slices(trace, "stopping") == [("launcher", "stopping", 80.6, 1.4)]
    assert slices(trace, "restart") == [("launcher", "restart", 82.0, 1.0)]
    names = [e["name"] for e in trace["traceEvents"] if e["ph"] == "i" and e["tid"] > 0]
    assert {"reports in", "first step", "overdue", "evidence taken", "SIGKILL sent"} <= set(names)


def test_a_restart_from_a_snapshot_is_marked_with_its_step_and_what_was_lost() -> None:
    trace = traced(WITH_SNAPSHOTS)
    (mark,) = [it for it in trace["traceEvents"] if it.get("cat") == "snapshot_restored"]
    assert mark["name"] == "begins from the snapshot of step 30"
    assert (mark["ts"], mark["tid"]) == (84.1e6, 0)
    assert mark["args"]["lost_steps"] == 1


def test_copies_and_what_is_left_on_disk_are_marked_with_their_step() -> None:
    marks = {
        "snapshot_copied": "its snapshots of step 40 are at n1-7",
        "snapshot_kept": "step 40 is kept at other nodes",
        "snapshot_not_copied": "its snapshots are not copied",
        "snapshot_written": "the snapshot of step 40 is on disk",
    }
    fields = {"step": 40, "peer": "n1-7"}
    trace = traced([*HANG, *(event(50.0, kind, 0, **fields) for kind in marks)])
    found = {it["cat"]: it["name"] for it in trace["traceEvents"] if it.get("cat") in marks}
    assert found == marks


def test_an_arrow_leads_from_the_culprit_to_each_rank_that_waits_for_it() -> None:
    """Also on another node; a rank that failed has stopped the others."""
    judged = event(80.4, "incident", 0, incident=1, culprits=[1], reason="rank 1 sleeps")
    rank0, rank1 = (
        [one for one in HANG if one.get("rank") in (None, rank) or one["kind"] == "progress"]
        for rank in (0, 1)
    )
    rank0, rank1 = (sorted([*of, judged], key=lambda one: one["t"]) for of in (rank0, rank1))
    trace = traced(rank1, rank0)
    assert violations(trace) == []
    begin, end = (e for e in trace["traceEvents"] if e["ph"] in ("s", "f"))
    assert begin["name"] == end["name"] == "waits for rank 1"
    assert begin["ts"] / 1e6 == pytest.approx(50.0, abs=0.1)
    assert begin["pid"] != end["pid"]

    died = [one for one in HANG if one["kind"] not in ("rank_overdue", "worker_exited")]
    exits = [of_rank(80.0, "worker_exited", 0, 1, exit_code=-9)]
    exits += [of_rank(81.0, "worker_exited", 0, 0, exit_code=-15)]
    trace = traced(sorted([*died, *exits], key=lambda one: one["t"]))
    assert violations(trace) == []
    assert [e["name"] for e in trace["traceEvents"] if e["ph"] == "s"] == ["stopped: rank 1 failed"]

    exits[0] |= {"rank": 0, "local_rank": 0}
    exits[1] |= {"rank": 1, "local_rank": 1}
    left = {"left": [1], "left_how": "rank 1 left", "then": "rank 0 failed", "began_at": 80.0}
    cause = of_rank(82.0, "first_cause", 0, 0, **left)
    trace = traced(sorted([*died, *exits, cause], key=lambda one: one["t"]))
    assert [e["name"] for e in trace["traceEvents"] if e["ph"] == "s"] == ["stopped: rank 1 left"]


def test_a_counter_shows_steps_per_second() -> None:
    events = traced(HANG + THEN_WELL)["traceEvents"]
    counts = [(e["ts"] / 1e6, e["args"]["steps/s"]) for e in events if e["ph"] == "C"]
    assert counts == [(10.0, 0.75), (50.0, 0.0), (90.0, 0.75), (130.0, 0.0)]


def test_each_account_is_one_slice() -> None:
    """Two marks that begin the same account are not drawn as two."""
    accounts = [
        name for track, name, *_ in slices(traced(HANG + THEN_WELL), "account") if track == "rank 1"
    ]
    assert all(name != after for name, after in pairwise(accounts))


def test_a_long_trace_is_written_part_by_part(tmp_path: Path, monkeypatch) -> None:
    """More looks take less memory than they give text: neither are all of them held at once."""
    monkeypatch.setattr(sorted_lines, "_PART", 100)
    monkeypatch.setattr(sorted_lines, "_BLOCK", 25)
    monkeypatch.setattr(trace, "_LINES", 50)

    def length_and_peak(n: int) -> tuple[int, int]:
        looks = [
            shown(0, 10.0 + t, {"0": progress({}, {"step": [9 * t, 0.9 * t, 0.2, 9.0, 9.9 + t]})})
            for t in range(1, n)
        ]
        events = [one for one in HANG if one["t"] < 10.0] + looks
        lines = "".join(f"{json.dumps(each)}\n" for each in events)
        (tmp_path / "events-launcher.jsonl").write_text(lines)
        tracemalloc.start()
        try:
            length = sum(len(part) for part in trace_lines(read_run([tmp_path])))
            return length, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    length_and_peak(10)  # modules, caches
    (short, less), (long, more) = length_and_peak(400), length_and_peak(1600)
    assert more - less < (long - short) / 3, f"{more - less} bytes for {long - short} of text"


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 0), st.text(max_size=3)), max_size=40),
    st.integers(1, 50),
)
def test_lines_that_are_put_aside_come_in_order(lines: list[tuple[int, int, str]], n: int) -> None:
    """Whatever is put aside when; those with the same key as they came."""
    kept = sorted_lines.SortedLines()
    with patch.object(sorted_lines, "_PART", n), patch.object(sorted_lines, "_BLOCK", 3):
        for line in lines:
            kept.add(*line)
    assert list(kept) == [line for *_, line in sorted(lines, key=lambda line: line[:2])]
