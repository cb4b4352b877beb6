"""What a job leaves is told truly: ledger, report and trace agree with its events and the clock."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from holdfast.observe.report import as_json, tell
from holdfast.observe.report_html import as_html
from holdfast.observe.run_files import read_run
from holdfast.observe.run_list import resolve
from holdfast.observe.trace import trace_of
from tests.real.harness import BOUND_S, Launcher, kill, until
from tests.unit.made_events import HANG, THEN_WELL
from tests.unit.trace_format import violations

FAULTS = int(os.environ.get("HOLDFAST_REPORT_FAULTS", "4"))
"""20 and more: make soak."""

TRAINS = """
import os, pathlib, signal, sys, time
from holdfast.fault_tolerance import RankMonitorClient

rank, cycle = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
saved, faults, steps = pathlib.Path(os.environ["OUT"], "saved"), int(sys.argv[1]), int(sys.argv[2])
client = RankMonitorClient()
client.init_workload_monitoring()
with client.section("setup"):
    begin = int(saved.read_text()) if saved.exists() else 0
fails = cycle < faults and cycle % 2 == rank
for step in range(begin, steps):
    if fails and step == begin + 4 + cycle % 3:
        kind = cycle % 4
        if kind == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == 1:
            sys.exit(3)
        elif kind == 2:
            raise RuntimeError("planted")
    with client.section("step"):
        time.sleep(60 if fails and step == begin + 4 + cycle % 3 else 0.01)
    if step % 3 == 2:
        with client.section("checkpoint"):
            time.sleep(0.005)
            if rank == 0 and (cycle >= faults or step < begin + 6):
                saved.with_suffix(".new").write_text(str(step + 1))
                saved.with_suffix(".new").rename(saved)
    if step % 10 == 9:
        with client.section("eval"):
            time.sleep(0.005)
client.shutdown_workload_monitoring()
"""
"""Two ranks that save every third step; in each cycle one dies, leaves, raises or hangs."""


def _options() -> list[str]:
    limits = "setup:30,step:0.5,checkpoint:30,eval:30"
    return [
        *("--nproc-per-node=2", f"--max-restarts={FAULTS}", "--log-dir=logs"),
        *("--rdzv-id=told", "--ft-rank-section-timeouts", limits),
    ]


def test_ledger_report_and_trace_of_a_run_with_faults_agree(ft: Launcher) -> None:
    """The ledger closes to a thousandth of what the clock says, and nothing is told twice."""
    began = time.monotonic()
    job = ft.start(*_options(), ft.script(TRAINS), str(FAULTS), str(60 + 6 * FAULTS))
    assert job.wait() == 0, job.stderr
    outside_s = time.monotonic() - began

    run = read_run(resolve([str(job.folder / "logs")]))
    story = tell(run)
    told, trace = as_json(story), trace_of(story)
    by_kind = Counter(event["kind"] for event in run.events)
    failed = {e["cycle"] for e in run.events if e["kind"] == "worker_exited" and e["exit_code"]}

    # The ledger: each rank, and all accounts of the cycles.
    wall_s = run.events[-1]["t"] - run.events[0]["t"]
    assert wall_s <= outside_s
    for rank in told["ranks"]:
        assert sum(rank["rank_seconds"].values()) == pytest.approx(wall_s, rel=1e-3)
    sums = [sum(row["rank_seconds"].values()) for row in told["cycles"]]
    assert sum(sums) == pytest.approx(2 * wall_s, rel=1e-3)
    assert {"steps", "steps_again", "checkpointing", "importing"} <= set(told["rank_seconds"])
    (line,) = [line for line in job.stderr.splitlines() if "holdfast: goodput " in line]
    assert f"goodput {100 * told['goodput']:.1f} %" in line

    # The report: a row for each cycle, a failure for each that failed, nobody could not be read.
    assert len(failed) == FAULTS
    assert [row["cycle"] for row in told["cycles"]] == list(range(FAULTS + 1))
    assert {row["cycle"] for row in told["cycles"] if row["failure"]} == failed
    hangs = {e["cycle"] for e in run.events if e["kind"] == "rank_overdue"}
    stalled = {
        row["cycle"] for row in told["cycles"] if row["rank_seconds"].get("stalled", 0) > 0.4
    }
    assert stalled >= hangs
    assert {one["cycle"] for one in told["incidents"]} == hangs
    assert told["nodes"][0]["lines_passed_over"] == 0
    assert as_html(story).count("class='mark'") + as_html(story).count('class="mark"') == FAULTS

    # The trace: what Perfetto takes, an instant for each event, a slice for each cycle and span.
    assert violations(json.loads(json.dumps(trace))) == []
    marks = Counter(e["cat"] for e in trace["traceEvents"] if e["ph"] == "i")
    for kind in (
        "worker_exited",
        "rank_overdue",
        "evidence",
        "kill_sent",
        "incident",
        "cycle_stopped",
    ):
        assert marks[kind] == by_kind[kind], kind
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert sum(e["cat"] == "cycle" for e in slices) == FAULTS + 1
    assert sum(e["dur"] for e in slices if e["cat"] == "account") == pytest.approx(
        2e6 * wall_s, rel=1e-3
    )


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_page_opens_in_a_browser(tmp_path: Path) -> None:
    """Its script draws the axis of the timeline anew, and nothing is asked for."""
    folder = tmp_path / "run"
    folder.mkdir()
    lines = "".join(f"{json.dumps(event)}\n" for event in HANG + THEN_WELL)
    (folder / "events-launcher.jsonl").write_text(lines)
    page = tmp_path / "report.html"
    page.write_text(as_html(tell(read_run([folder]))))
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    browser = ["chromium", *options, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*browser, page.as_uri()], capture_output=True, text=True, timeout=BOUND_S, check=True
    )
    assert 'style="left: 25%;' in done.stdout  # written by the script; ours has no blank there
    assert not re.search("Uncaught|CONSOLE.*rror|Refused", done.stderr)


def test_a_run_is_told_while_it_goes_on_and_when_its_launcher_was_killed(
    ft: Launcher,
) -> None:
    """Its state says which; the ledger closes in both."""
    script = ft.script(TRAINS)
    job = ft.start(*_options(), script, "0", "100000")
    until(lambda: job.said("is monitored"), "ranks at work")
    until(lambda: len(job.events("rank_armed")) == 2, "both are written down")

    story = tell(read_run(resolve([str(job.folder / "logs")])))
    assert story.run.state == "running"
    assert story.ledger.total_s == pytest.approx(2 * story.length_s, abs=0.5)

    kill(job.process.pid)
    job.process.wait()
    story = tell(read_run(resolve([str(job.folder / "logs")])))
    assert story.run.state == "cut off"
    for seconds in story.ledger.by_rank.values():
        assert sum(seconds.values()) == pytest.approx(story.length_s, rel=1e-3)
