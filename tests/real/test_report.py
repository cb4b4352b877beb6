"""What is told of a job agrees: report, trace, metrics and views, events, clock, and its ranks."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.net.port import ReservedPort
from holdfast.tools.report.report import as_json, story_of
from holdfast.tools.report.report_html import as_html
from holdfast.tools.report.time_axis import ticks
from holdfast.tools.run.run_files import read_run
from holdfast.tools.run_list import resolve
from tests.real.counted import NodeCount, count
from tests.real.faulty_run import CRASHES, HANGS, FaultyRun, Told, plan
from tests.real.harness import Launcher, kill
from tests.unit.made_events import HANG, THEN_WELL, elsewhere
from tests.unit.trace_format import violations
from tests.waiting import BOUND_S, SCALE, until

FAULTS = int(os.environ.get("HOLDFAST_REPORT_FAULTS", "8"))
"""20 and more: make soak."""
SOME = ("killed", "hangs", "raises", "stopped")
"""Of the run with two nodes, whose launchers take their time to start."""
HOLDFAST = [sys.executable, "-m", "holdfast.cli"]
LATE_S = 0.1 * SCALE
"""A busy machine may stop a process for so long between two instants that it takes."""


def told_by(command: str, *words: str | Path) -> str:
    """What a command of ours prints."""
    done = subprocess.run([*HOLDFAST, command, *map(str, words)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


class Scrape:
    """What a node's launcher tells Prometheus."""

    def __init__(self, port: int) -> None:
        asked_at = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        self.taken = asked_at, time.monotonic()
        """Within these instants."""
        self._families = list(text_string_to_metric_families(text))

    def by(self, label: str, name: str) -> dict[str, float]:
        """Samples of this name, by one of their labels."""
        return {labels[label]: value for labels, value in self._samples(name)}

    def one(self, name: str) -> float:
        """The only sample of this name."""
        ((_, value),) = self._samples(name)
        return value

    def by_rank_and_section(self, name: str) -> dict[tuple[int, str], float]:
        """Samples of sections."""
        return {(int(at["rank"]), at["section"]): value for at, value in self._samples(name)}

    def _samples(self, name: str) -> list[tuple[Mapping[str, str], float]]:
        return [
            (sample.labels, sample.value)
            for family in self._families
            for sample in family.samples
            if sample.name == f"holdfast_{name}"
        ]


class Watched:
    """The page's events and the metrics, read all the time that a job runs."""

    def __init__(self, run: FaultyRun) -> None:
        self._run = run
        self.states: list[dict[str, Any]] = []
        self.scrapes: list[Scrape] = []
        self._is_over = threading.Event()
        self._view = subprocess.Popen(
            [*HOLDFAST, "view", "--port", "0", *map(str, run.folders)], stdout=subprocess.PIPE
        )
        assert self._view.stdout is not None
        self.url = self._view.stdout.readline().decode().partition("#")[0].strip()
        self._threads = [threading.Thread(target=each) for each in (self._page, self._metrics)]
        for thread in self._threads:
            thread.start()

    def _page(self) -> None:
        with urllib.request.urlopen(f"{self.url}events", timeout=BOUND_S) as stream:
            while not self._is_over.is_set():
                if line := stream.readline().strip():
                    self.states.append(json.loads(line.removeprefix(b"data: ")))

    def _metrics(self) -> None:
        port = self._run.metrics_port(self._run.jobs[0])
        while not self._is_over.wait(0.2):
            with suppress(OSError, HTTPException):  # the server has not begun, or has ended
                self.scrapes.append(Scrape(port))

    def close(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(BOUND_S)
        self._view.terminate()
        self._view.wait(BOUND_S)
        assert self._view.stdout is not None
        self._view.stdout.close()


@contextmanager
def watched(run: FaultyRun) -> Iterator[Watched]:
    """Nothing of it stays."""
    one = Watched(run)
    try:
        yield one
    finally:
        one.close()


def test_all_that_is_told_of_a_run_with_faults_of_many_kinds_agrees(ft: Launcher) -> None:
    """While it runs and when it is over; on one node."""
    tell_and_compare(FaultyRun(ft, plan(FAULTS)))


def test_what_is_told_of_a_run_on_two_nodes_agrees(ft: Launcher) -> None:
    """Each launcher has seen its part only: a fault is counted once, by its first symptom."""
    port = ReservedPort()
    try:
        faults = plan(FAULTS if FAULTS >= 20 else 3, SOME)
        run = FaultyRun(ft, faults, endpoint=f"127.0.0.1:{port.number}")
        tell_and_compare(run)
        other_clocks_change_nothing(run, ft.folder / "elsewhere")
    finally:
        port.release()


def other_clocks_change_nothing(run: FaultyRun, copy: Path) -> None:
    """As if the second node were another host, one hour behind and set back by another one."""
    copy.mkdir()
    lines = (run.folders[1] / "events-launcher.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    late = len(events) // 2
    moved = [
        elsewhere(one, "b", 1e5, -3600.0 if k < late else -7200.0) for k, one in enumerate(events)
    ]
    (copy / "events-launcher.jsonl").write_text("".join(json.dumps(one) + "\n" for one in moved))
    starts = [[e["t"] for e in count(folder).of("cycle_started")] for folder in run.folders]
    # Clocks are put together by this: a cycle starts at one instant on all nodes.
    late_s = LATE_S + 2 * max(abs(a - b) for a, b in zip(*starts, strict=True))
    told, other = (
        as_json(story_of(read_run(folders))) for folders in (run.folders, [run.folders[0], copy])
    )
    clocks = [(node["clock_ahead_s"], node["clock_set_by_s"]) for node in told["nodes"]]
    assert all(abs(off_s) <= LATE_S for clock in clocks for off_s in clock)
    (ahead_s, set_by_s) = [
        max(abs(node[key]) for node in other["nodes"])
        for key in ("clock_ahead_s", "clock_set_by_s")
    ]
    assert (ahead_s, set_by_s) == pytest.approx((3600.0, 3600.0), abs=late_s)
    assert other["length_s"] == pytest.approx(told["length_s"], abs=late_s)
    assert other["rank_seconds"] == pytest.approx(told["rank_seconds"], rel=1e-3)
    for row, same in zip(other["cycles"], told["cycles"], strict=True):
        for key in ("at_s", "until_s"):
            assert row[key] == pytest.approx(same[key], abs=late_s)
        failure, was = (each["failure"] or {} for each in (row, same))
        if "hung" not in was.get("symptom", ""):  # of two, either may be found first
            assert failure.get("symptom") == was.get("symptom")
        for key in ("detected_s", "ranks_started_after_s", "steps_after_s"):
            assert failure.get(key) == pytest.approx(was.get(key), abs=late_s)


def tell_and_compare(run: FaultyRun) -> None:
    """Let it run, and compare all that is told of it."""
    for job in run.jobs:
        until(lambda job=job: job.events("cycle_started"), "a cycle", 4 * BOUND_S)
    with watched(run) as seen:
        run.has_done_its_steps()
        metrics_agree(run)
        views_agree(run, json.loads(told_by("top", "--json", *run.folders)), seen)
        run.end()
        until(lambda: seen.states[-1]["state"] == "succeeded", "the page shows the end")
    nodes = [count(folder) for folder in run.folders]
    the_planned_faults_happened(run, nodes)
    report_agrees(run, nodes)
    trace_agrees(run, nodes)
    top = json.loads(told_by("top", "--json", *run.folders))
    assert {one["rank"]: one["state"] for one in top["ranks"]} == states_of(nodes)
    assert top["age_s"] == pytest.approx(length_of(nodes), abs=0.05)
    for shown in (top, seen.states[-1]):
        assert (shown["state"], shown["restarts"]) == ("succeeded", len(run.faults))
        assert incidents_shown(shown["incidents"]) == incidents_written(nodes)
    page_was_never_wrong(seen, nodes)


# ---------------------------------------------------------------- what is true
def the_planned_faults_happened(run: FaultyRun, nodes: list[NodeCount]) -> None:
    """Each cycle ended as planned, seen by the node of its rank."""
    for node in nodes:
        assert node.cycles == list(range(len(run.faults) + 1))
        assert sorted(node.faults) == list(range(len(run.faults)))
    for cycle, planned in enumerate(run.faults):
        kind, _, whose = planned.partition(":")
        here = [node.faults[cycle] for node in nodes if node.faults[cycle].kind != "elsewhere"]
        first = min(here, key=lambda fault: fault.at)
        blamed = {first.rank, *culprits(nodes, cycle)}
        assert int(whose) in blamed or kind in ("both", "skips"), planned
        is_hang = first.kind == "hang"
        assert (is_hang, not is_hang) == (kind in HANGS, kind in CRASHES), planned


def first_fault(nodes: list[NodeCount], cycle: int) -> Any:
    """What was noticed first, on any node."""
    found = [node.faults[cycle] for node in nodes if node.faults[cycle].kind != "elsewhere"]
    return min(found, key=lambda fault: fault.at)


def culprits(nodes: list[NodeCount], cycle: int) -> set[int]:
    """Of its incidents. A rank that waits for a hung one may be overdue first, and is none."""
    written = [data for node in nodes for data in node.incidents.values()]
    return {rank for data in written if data["cycle"] == cycle for rank in data["culprits"]}


def length_of(nodes: list[NodeCount]) -> float:
    """Seconds from the first event to the last."""
    return max(n.events[-1]["t"] for n in nodes) - min(n.began for n in nodes)


def states_of(nodes: list[NodeCount]) -> dict[int, str]:
    """Of all ranks."""
    return {rank: state for node in nodes for rank, state in node.states.items()}


def incidents_written(nodes: list[NodeCount]) -> list[tuple[int, str, list[int]]]:
    """Of the job: each node writes its own file of each."""
    written = {name: data for node in nodes for name, data in node.incidents.items()}
    return sorted((data["cycle"], data["kind"], data["culprits"]) for data in written.values())


def incidents_shown(shown: list[dict[str, Any]]) -> list[tuple[int, str, list[int]]]:
    """The same, of a report or a view."""
    return sorted((one["cycle"], one["kind"], one["culprits"]) for one in shown)


def done(told: list[Told], section: str) -> tuple[int, int]:
    """How often a section was closed, at least and at most: a rank may die before it says so."""
    of_name = [one for one in told if one.name == section]
    return sum(one.closed is not None for one in of_name), len(of_name)


def spent_in(told: list[Told], section: str) -> tuple[float, float]:
    """Seconds in those that were closed, at least and at most."""
    closed = [one for one in told if one.name == section and one.closed]
    least = sum(one.closed[0] - one.opened[1] for one in closed)
    return least, sum(one.closed[1] - one.opened[0] for one in closed)


# ---------------------------------------------------------------- metrics
def metrics_agree(run: FaultyRun) -> None:
    """Of each node, with its events; the ranks wait meanwhile."""
    for job, folder in zip(run.jobs, run.folders, strict=True):
        port = run.metrics_port(job)
        kinds = lambda folder=folder: count(folder).kinds  # noqa: E731
        until(
            lambda port=port, kinds=kinds: (
                Counter(Scrape(port).by("kind", "events_total")) == kinds()
            ),
            "all",
        )
        scrape, node = Scrape(port), count(folder)
        faults = list(node.faults.values())
        assert scrape.one("restarts_total") == len(node.cycles) - 1 == scrape.one("cycle")
        assert scrape.one("restarts_left") == 0
        assert Counter(scrape.by("kind", "faults_total")) == Counter(f.kind for f in faults)
        kinds_of = Counter(data["kind"] for data in node.incidents.values())
        assert Counter(scrape.by("kind", "incidents_total")) == kinds_of
        hangs = [fault for fault in faults if fault.kind == "hang"]
        # Of two ranks found hung at once, the launcher may hear of either first.
        apart_s = 0.0
        for cycle in node.cycles:
            overdue = node.of("rank_overdue", cycle)
            for key in ("detected_at", "age_s"):
                of_all = [event[key] for event in overdue]
                apart_s += max(of_all, default=0.0) - min(of_all, default=0.0)
        for name, values in (
            ("recovery_seconds", [fault.recovered_s for fault in faults]),
            ("stalled_seconds", [fault.stalled_s for fault in hangs]),
            ("detection_lateness_seconds", [max(0.0, fault.late_s) for fault in hangs]),
        ):
            assert scrape.one(f"{name}_count") == len(values), name
            late_s = LATE_S + apart_s
            assert scrape.one(f"{name}_sum") == pytest.approx(sum(values), abs=late_s), name
        states = Counter(node.states.values())
        assert scrape.by("state", "ranks") == {
            state: states[state] for state in ("running", "overdue", "completed", "failed")
        }
        # Every second of every rank, until the scrape; and the steps that ranks say they did.
        seconds = scrape.by("account", "rank_seconds")
        places = len(node.states)
        least_s, most_s = (places * (at - node.began) for at in scrape.taken)
        assert least_s - 0.001 <= sum(seconds.values()) <= most_s + 0.001
        assert scrape.one("goodput_ratio") == pytest.approx(
            seconds["steps"] / sum(seconds.values()), abs=1e-3
        )
        ends = scrape.by_rank_and_section("section_ends_total")
        spent = scrape.by_rank_and_section("section_seconds_total")
        for rank in node.states:
            told = [one for cycle in node.cycles for one in run.told(cycle, rank)]
            for section in ("data", "step", "checkpoint", "eval"):
                least, most = done(told, section)
                assert least <= ends[rank, section] <= most
                least_s, most_s = spent_in(told, section)
                late_s = 0.001 * len(node.cycles)
                assert least_s - late_s <= spent[rank, section] <= most_s + (most - least) * LATE_S
        productive_s(run, node, seconds)


def productive_s(run: FaultyRun, node: NodeCount, seconds: Mapping[str, float]) -> None:
    """Time in saves and evaluations as the ranks took it, up to what a crash left unmeasured."""
    told = [one for cycle in node.cycles for rank in node.states for one in run.told(cycle, rank)]
    for account, section in (("checkpointing", "checkpoint"), ("evaluating", "eval")):
        least_s, most_s = spent_in(told, section)
        unsaid = LATE_S * (done(told, section)[1] - done(told, section)[0])
        late_s = 0.03 * SCALE * len(node.cycles) * len(node.states)
        assert least_s - late_s <= seconds[account] <= most_s + unsaid, account


# ---------------------------------------------------------------- live views
def views_agree(run: FaultyRun, top: dict[str, Any], seen: Watched) -> None:
    """``top`` and the page show the same, and what the events say."""
    nodes = [count(folder) for folder in run.folders]

    def page() -> dict[str, Any]:
        return seen.states[-1] if seen.states else {"restarts": -1}

    until(lambda: page()["restarts"] == len(run.faults), "the page is up to date")
    for shown in (top, page()):
        assert (shown["state"], shown["restarts"]) == ("running", len(run.faults))
        assert shown["restarts_left"] == 0
        assert (shown["run_id"], len(shown["nodes"])) == ("told", len(nodes))
        assert {one["rank"]: one["state"] for one in shown["ranks"]} == states_of(nodes)
        assert incidents_shown(shown["incidents"]) == incidents_written(nodes)
        pids = {e["rank"]: e["pid"] for n in nodes for e in n.of("worker_started", n.cycles[-1])}
        assert {one["rank"]: one["pid"] for one in shown["ranks"]} == pids
        age_s = shown["wall"] - min(node.events[0]["wall"] for node in nodes)
        assert shown["age_s"] == pytest.approx(age_s, abs=0.05)
    said = told_by("top", "--once", *run.folders)
    n = len(run.faults), len(incidents_written(nodes))
    assert f"{n[0]} restarts, 0 left  {n[1]} incident{'' if n[1] == 1 else 's'}" in said


def page_was_never_wrong(seen: Watched, nodes: list[NodeCount]) -> None:
    """Each state was true a moment ago: a launcher writes soon, and a page is made after a look."""
    starts = [event for node in nodes for event in node.of("cycle_started")]
    for shown in seen.states:
        known = [e["cycle"] for e in starts if e["wall"] <= shown["wall"] - 2 * SCALE]
        possible = [e["cycle"] for e in starts if e["wall"] <= shown["wall"]]
        assert max(known, default=0) <= shown["restarts"] <= max(possible, default=0)
    for name in ("restarts_total", "recovery_seconds_count", "stalled_seconds_sum"):
        values = [scrape.one(name) for scrape in seen.scrapes]
        assert values == sorted(values), name
    assert len(seen.scrapes) > 3
    assert len(seen.states) > 3


# ---------------------------------------------------------------- report
def report_agrees(run: FaultyRun, nodes: list[NodeCount]) -> None:
    """Its three forms."""
    folders = run.folders
    told = json.loads(told_by("report", "--json", *folders))
    wall_s = length_of(nodes)
    began = min(node.began for node in nodes)
    assert told["state"] == "succeeded"
    assert told["length_s"] == pytest.approx(wall_s, abs=0.01)

    # The ledger: each rank from the first event of its launcher to the last.
    assert len(told["ranks"]) == 2
    own_s = {
        folder.name: node.events[-1]["t"] - node.began
        for folder, node in zip(folders, nodes, strict=True)
    }
    folder_of = {node["node"]: Path(node["folder"]).name for node in told["nodes"]}
    for rank in told["ranks"]:
        of_launcher = own_s[folder_of[rank["node"]]]
        assert sum(rank["rank_seconds"].values()) == pytest.approx(of_launcher, rel=1e-3)
    sums = [sum(row["rank_seconds"].values()) for row in told["cycles"]]
    assert sum(sums) == pytest.approx(sum(told["rank_seconds"].values()), rel=1e-4)
    if len(nodes) == 1:
        productive_s(run, nodes[0], told["rank_seconds"])
        (line,) = [one for one in run.jobs[0].stderr.splitlines() if "holdfast: goodput " in one]
        percent = float(line.partition("goodput ")[2].partition(" %")[0])
        # It is logged some milliseconds before the last event, up to which the report counts.
        assert percent == pytest.approx(100 * told["goodput"], abs=0.11)

    # After their last steps the ranks have waited.
    last = len(run.faults)
    waited_s = sum(
        node.events[-1]["t"] - max(one.opened[0] for one in told if one.closed)
        for node in nodes
        for told in (run.told(last, event["rank"]) for event in node.of("worker_exited", last))
    )
    assert 0.5 * waited_s < told["rank_seconds"]["finishing"] < waited_s + 0.001

    # A row for each cycle, a failure for each that failed: when, who, and how it went on.
    assert [row["cycle"] for row in told["cycles"]] == list(range(len(run.faults) + 1))
    for row in told["cycles"]:
        cycle, failure = row["cycle"], row["failure"]
        of_ranks = [run.told(cycle, rank) for rank in (0, 1)]
        least = max(done(told, "step")[0] for told in of_ranks)
        most = max(done(told, "data")[1] for told in of_ranks)  # which is a part of a step
        assert least <= (row["steps"] or 0) <= most, cycle
        assert row["ranks"] == 2
        stopped = max(node.of("cycle_stopped", cycle)[0]["t"] for node in nodes)
        assert row["until_s"] == pytest.approx(stopped - began, abs=0.01) or not failure
        assert (failure is not None) == (cycle < len(run.faults))
        if failure is None:
            continue
        first = first_fault(nodes, cycle)
        assert failure["detected_s"] == pytest.approx(first.at - began, abs=0.01)
        named = re.match(r"ranks? ((?:\d, )*\d)\b", failure["symptom"])
        has_failed = {first.rank, *culprits(nodes, cycle)}
        if run.faults[cycle].startswith("both"):
            has_failed = {0, 1}
        assert set(map(int, named[1].split(", "))) & has_failed, failure
        assert ("hung" in failure["symptom"]) == (first.kind == "hang")
        again = max(e["t"] for n in nodes for e in n.of("worker_started", cycle + 1))
        assert failure["ranks_started_after_s"] == pytest.approx(again - first.at, abs=0.01)
        firsts = [
            [one.opened for one in run.told(cycle + 1, rank) if one.name != "setup"][:1]
            for rank in (0, 1)
        ]
        if all(firsts):  # a rank may fail before the other one makes its first step
            # Of the last rank that made one, but it may have died before its monitor saw that.
            least_s = min(opened[0] for (opened,) in firsts) - first.at
            most_s = max(opened[1] for (opened,) in firsts) - first.at
            assert least_s - LATE_S <= failure["steps_after_s"] <= most_s + LATE_S
    assert incidents_shown(told["incidents"]) == incidents_written(nodes)
    assert all(node["lines_passed_over"] == 0 for node in told["nodes"])
    hung = {cycle for cycle in range(len(run.faults)) if first_fault(nodes, cycle).kind == "hang"}
    stalled = {
        row["cycle"] for row in told["cycles"] if row["rank_seconds"].get("stalled", 0) > 0.4
    }
    assert hung <= stalled

    # As text, and as a page.
    text = told_by("report", *folders)
    assert f": succeeded after {len(run.faults)} restarts and " in text
    assert f"Goodput {100 * told['goodput']:.1f} %" in text
    assert max(len(line) for line in text.splitlines() if str(run.shared.parent) not in line) <= 100
    rows = re.findall(r"^ +(\d+)  .*$", text, re.MULTILINE)
    assert [int(row) for row in rows] == list(range(len(run.faults) + 1))
    assert text.splitlines()[1].startswith("┌─ Succeeded, after ")
    assert {each["cycle"] for each in told["failures"]} == set(range(len(run.faults)))
    what = told["failures"][-1]["what"]
    assert " ".join(what.split()) in " ".join(text.split())
    facts_agree(run, told)
    page = as_html(story_of(read_run(folders)))
    assert len(re.findall("class=[\"']mark[\"']", page)) == len(run.faults)
    assert f">{100 * told['goodput']:.1f} %<" in page
    assert page.count("<tr data-from=") == len(run.faults) + 1


def facts_agree(run: FaultyRun, told: dict[str, Any]) -> None:
    """Of the start; of the ranks that raised; and how fast steps were, as the ranks have them."""
    for facts in told["facts"]:
        assert facts["command"][0] == "ft_launcher"
        assert facts["versions"]["torch"].partition("+")[0] == version("torch").partition("+")[0]
    for each in told["failures"]:
        if run.faults[each["cycle"]].startswith("raises"):
            assert each["what"].partition(" raised ")[2], each
            assert any("Traceback" in line for line in each["stderr"])
            assert re.search(r"\.py:\d+ \(rank \d, pid \d+, node ", each["where"])
    of_all = sum(one["steps"] or 0 for one in told["cycles"])
    of_one_node = sum(each["steps"] for each in told["step_rates"])
    assert 0.8 * of_all <= of_one_node <= of_all
    assert told["steps_per_s"] > 0.0


# ---------------------------------------------------------------- trace
def trace_agrees(run: FaultyRun, nodes: list[NodeCount]) -> None:
    """What Perfetto takes; an instant for each event; and each section where its rank has it."""
    trace = json.loads(told_by("trace", "-o", "-", *run.folders))
    events = trace["traceEvents"]
    assert violations(trace) == []
    kinds = sum((node.kinds for node in nodes), Counter[str]())
    marks = Counter(e["cat"] for e in events if e["ph"] == "i")
    for kind in (
        *("rank_armed", "rank_overdue", "evidence", "kill_sent", "worker_exited"),
        *("incident", "cycle_stopping", "cycle_stopped", "job_succeeded"),
    ):
        assert marks[kind] == kinds[kind], kind
    slices = [e for e in events if e["ph"] == "X"]
    per = Counter(e["cat"] for e in slices)
    n_nodes, n_faults = len(nodes), len(run.faults)
    assert per["cycle"] == n_nodes * (n_faults + 1)
    assert per["restart"] == n_nodes * n_faults
    assert per["stopping"] == sum(  # none where all ranks had ended before
        node.of("cycle_stopping", cycle)[0]["t"] < node.of("cycle_stopped", cycle)[0]["t"]
        for node in nodes
        for cycle in range(n_faults)
    )
    assert per["taking evidence"] == kinds["evidence"]
    ends = {(e["cycle"], e["rank"]): e["t"] for n in nodes for e in n.of("worker_exited")}
    kills = [event for node in nodes for event in node.of("kill_sent")]
    in_time = [e for e in kills if e["t"] < ends[e["cycle"], e["rank"]]]
    assert per["kill"] == len(in_time)  # its launcher may have ended the rank a moment before
    failed_at = [*(first_fault(nodes, cycle).at for cycle in range(n_faults)), math.inf]
    stepped = [
        any(one.name != "setup" and one.closed and one.closed[0] < at for one in told)
        for cycle, at in enumerate(failed_at)
        for told in (run.told(cycle, 0), run.told(cycle, 1))
    ]
    assert sum(stepped) <= marks["first_step"] <= 2 * (n_faults + 1)
    own_s = sum(len(n.states) * (n.events[-1]["t"] - n.began) for n in nodes)
    accounts = sum(e["dur"] for e in slices if e["cat"] == "account")
    assert accounts == pytest.approx(1e6 * own_s, rel=1e-3)
    names = {e["name"] for e in slices if e["cat"] == "account"}
    assert {"importing", "setup", "productive steps", "evidence and stopping"} <= names

    arrows = [e for e in events if e["ph"] == "s"]  # to the other rank
    assert 0 < len(arrows) <= n_faults
    assert any(e["ph"] == "C" and e["args"]["steps/s"] > 0.0 for e in events)

    # Sections: those of one time are the rank's own, those of many are as many.
    began = min(node.began for node in nodes)
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    told = {
        rank: [one for cycle in range(n_faults + 1) for one in run.told(cycle, rank)]
        for rank in (0, 1)
    }
    counted = Counter[tuple[int, str]]()
    for e in slices:
        if e["cat"] != "section":
            continue
        rank, section = re.match(r"rank (\d): (\w+)$", tracks[e["pid"], e["tid"]]).groups()
        of_rank = [one for one in told[int(rank)] if one.name == section]
        start, end = began + e["ts"] / 1e6, began + (e["ts"] + e["dur"]) / 1e6
        many = e["args"].get("times", 1)
        is_open = e["args"].get("still open", False)
        assert e["args"]["section"] == section
        inside = [one for one in of_rank if start <= one.inside <= end]
        if is_open or many == 1:
            found = [
                one for one in of_rank if one.opened[0] - 1e-5 <= start <= one.opened[1] + 1e-5
            ]
            if is_open and not found:  # its rank ended before it said that this was open
                assert not [one for one in told[int(rank)] if start < one.inside <= end]
                continue
            (one,) = found
            if one.closed is not None:
                assert not is_open
                assert one.closed[0] - 1e-5 <= end <= one.closed[1] + 1e-5
        else:
            least, most = done(inside, section)
            assert least <= many <= most, e
        counted[int(rank), section] += 0 if is_open else many
    for rank in (0, 1):
        for section in ("setup", "data", "step", "checkpoint", "eval"):
            least, most = done(told[rank], section)
            assert least <= counted[rank, section] <= most, (rank, section)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_page_opens_in_a_browser(tmp_path: Path) -> None:
    """Its script draws the axis of the timeline anew, and nothing is asked for."""
    folder = tmp_path / "run"
    folder.mkdir()
    lines = "".join(f"{json.dumps(event)}\n" for event in HANG + THEN_WELL)
    (folder / "events-launcher.jsonl").write_text(lines)
    page = tmp_path / "report.html"
    page.write_text(as_html(story_of(read_run([folder]))))
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    browser = ["chromium", *options, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*browser, page.as_uri()], capture_output=True, text=True, timeout=BOUND_S, check=True
    )
    axis = re.search(r'id="axis">(.*?)</div>', done.stdout, re.DOTALL)[1]
    # The script has written these: the page has no blank behind "left:".
    drawn = re.findall(r'<span style="left: ([\d.]+)%;">([^<]+)</span>', axis)
    assert [label for _, label in drawn] == [label for _, label in ticks(0.0, 132.0)]
    assert [float(left) for left, _ in drawn] == pytest.approx(
        [100 * at / 132.0 for at, _ in ticks(0.0, 132.0)], abs=0.01
    )
    assert not re.search("Uncaught|CONSOLE.*rror|Refused", done.stderr)


def test_a_run_is_told_while_it_goes_on_and_when_its_launcher_was_killed(
    ft: Launcher,
) -> None:
    """Its state says which; the ledger closes in both."""
    (job,) = FaultyRun(ft, []).jobs
    until(lambda: job.said("is monitored"), "ranks at work")
    until(lambda: len(job.events("rank_armed")) == 2, "both are written down")

    story = story_of(read_run(resolve([str(job.folder / "logs")])))
    assert story.run.state == "running"
    assert story.ledger.total_s == pytest.approx(2 * story.length_s, abs=0.5)

    kill(job.process.pid)
    job.process.wait()
    story = story_of(read_run(resolve([str(job.folder / "logs")])))
    assert story.run.state == "cut off"
    for seconds in story.ledger.by_rank.values():
        assert sum(seconds.values()) == pytest.approx(story.length_s, rel=1e-3)
