"""An unmodified script: its optimizer's steps and its collectives are heartbeats."""

from __future__ import annotations

import pytest

from tests.real.harness import BOUND_S, Launcher, until

pytest.importorskip("torch")

SCRIPT = """
import os, subprocess, sys, threading, time
started = os.environ.get("PYTHONPATH"), [path for path in sys.path if path.endswith("rank/auto")]
assert started == (None, []), started
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, cycle = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.1)

def hangs_in_an_evaluation(seconds=2.5):  # of collectives, longer than the limit
    for _ in range(int(seconds / 0.05)):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.05)
    if rank == 1:
        threading.Event().wait()

def evaluates_by_itself(seconds=2.5):
    if rank == 1:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(1000))
        subprocess.run(["sleep", str(seconds)])

for step in range(40):
    weight.grad = torch.ones(4)
    dist.all_reduce(weight.grad)
    optimizer.step()
    time.sleep(0.01)
    if step == 30 and cycle == "0":
        {"hang": hangs_in_an_evaluation, "evaluate": evaluates_by_itself}[os.environ["MODE"]]()
print("done", rank, flush=True)
"""


@pytest.mark.parametrize("mode", ["hang", "evaluate"])
def test_a_script_that_reports_nothing_is_restarted_for_a_hang_and_not_for_an_evaluation(
    ft: Launcher, mode: str
) -> None:
    job = ft.start(
        *("--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", "logs"),
        *("--ft-warm-standby", "false", "--ft-auto-heartbeat-floor", "2"),
        *("--ft-on-incident", "touch told"),
        ft.script(SCRIPT),
        env={"MODE": mode},
    )
    assert job.wait(3 * BOUND_S) == 0, job.stderr
    assert job.stdout.count("done") == 2
    assert "NestedRestarter" not in job.stdout
    assert job.stderr.count("reports nothing by itself") == 1
    overdue = job.events("rank_overdue")
    told = job.folder / "told"
    if mode == "hang":
        until(told.exists, "the command that hears of incidents")
        assert {event["clock"] for event in overdue} == {"optimizer step"}
        assert max(event["cycle"] for event in job.events()) == 1
        assert job.events("incident")[0]["culprits"] == [1], job.stderr
        assert not [event for event in job.events("monitor_abandoned") if event["cycle"] == 0]
    else:
        assert max(event["cycle"] for event in job.events()) == 0
        assert job.events("monitor_abandoned")
        assert not overdue
        assert not job.events("incident")
        assert not job.said(r"\[ERROR\]")
        assert job.said("no optimizer step for .*; no rank is ended, as nothing proves a hang; r")
        assert not told.exists()
