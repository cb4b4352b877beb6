"""The console of a job that hangs once and then fails, and the same for a log collector."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.real.harness import Launcher
from tests.waiting import until

LAUNCHER = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]

HANGS_THEN_FAILS = """
import os, sys, time
from holdfast.fault_tolerance import RankMonitorClient

def load_batch():
    time.sleep(1000)

client = RankMonitorClient()
client.init_workload_monitoring()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    sys.exit(3)
with client.section("step"):
    load_batch()
"""
OPTIONS = "--nproc-per-node=2", "--max-restarts=1", "--ft-rank-section-timeouts=step:0.5"


def test_a_hang_is_two_lines_and_a_path_and_the_job_ends_with_the_command_that_reads_it(
    ft: Launcher,
) -> None:
    """On one node, with no restarter around it: no rendezvous, and stdout is the script's."""
    job = ft.start(*OPTIONS, "--log-dir=logs", ft.script(HANGS_THEN_FAILS))

    assert job.wait() == 1, job.stderr
    assert job.stdout == ""
    lines = [line.partition(" holdfast: ")[2] or line for line in job.stderr.splitlines()]
    first = next(at for at, line in enumerate(lines) if "`load_batch`" in line)
    path = f"{job.run_dir}/incidents/0001-cycle0"
    assert lines[first + 1].endswith(path)
    restart = (
        r"killed ranks? .* \(section 'step': .*\).*; restart 1 of 1 \(the last\) in .*: cycle 1"
    )
    assert re.match(restart, lines[first + 2])
    assert sum("`load_batch`" in line for line in lines) == 1
    assert lines[first + 3].startswith("====="), "the second failure ends the job"
    assert "rendezvous" not in job.stderr
    assert lines[-1] == f"to read this run: holdfast report {job.run_dir}"
    dated = [line for line in job.stderr.splitlines() if " holdfast: " in line]
    assert all(len(line) <= 200 or str(job.run_dir) in line for line in dated), job.stderr


def test_a_log_collector_reads_each_line_of_holdfast_as_an_object(ft: Launcher) -> None:
    """Of the launcher, and of a rank."""
    job = ft.start(*OPTIONS, "--ft-log-format=json", ft.script(HANGS_THEN_FAILS))

    assert job.wait() == 1
    lines = [json.loads(line) for line in job.stderr.splitlines()]
    assert all({"time", "level", "node", "text"} <= line.keys() for line in lines)
    [of_rank] = [line for line in lines if "is monitored" in line["text"]]
    assert (of_rank["rank"], of_rank["cycle"]) == (0, 0)
    [restart] = [line for line in lines if "restart 1 of 1" in line["text"]]
    assert (restart["level"], restart["cycle"]) == ("WARNING", 1)


def events(ft: Launcher) -> str:
    """A run directory only: its link, under a name without "_", is renamed as this looks."""
    return "".join(path.read_text() for path in ft.folder.glob("logs/*_*/events-*.jsonl"))


@pytest.mark.parametrize("end", ["read on", "signal"])
def test_at_the_end_a_launcher_waits_for_a_reader_that_pauses_but_for_a_signal(
    ft: Launcher, end: str
) -> None:
    """The output is in a file, so its rank has not waited."""
    script = ft.script("print('x' * 999 + '\\n', end='', flush=True)\n" * 1000)
    job = subprocess.Popen(
        [*LAUNCHER, "--standalone", "--tee=3", "--log-dir=logs", script],
        cwd=ft.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert job.stdout is not None
    try:
        until(lambda: "job_succeeded" in events(ft), "the end of the job")
        if end == "read on":
            shown = job.stdout.read()
            assert shown.count(b"x" * 999) == 1000
        else:
            job.terminate()
        assert job.wait(60) == 0
    finally:
        job.kill()
        job.wait()
        job.stdout.close()
