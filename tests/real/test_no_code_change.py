"""An unmodified script: its optimizer's steps and its collectives are heartbeats."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import pytest

from tests.real.harness import BOUND_S, Launcher, until

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")

SCRIPT = """
import os, subprocess, sys, threading, time
started = os.environ.get("PYTHONPATH"), [path for path in sys.path if path.endswith("rank/auto")]
assert started == (os.environ.get("GIVEN"), []), started
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, cycle = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.1)

def hangs_in_an_evaluation(seconds=5):  # of collectives, longer than the limit
    for _ in range(int(seconds / 0.05)):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.05)
    if rank == 1:
        threading.Event().wait()

def evaluates_by_itself(seconds=5):
    if rank == 1:
        while not os.path.exists("was overdue"):
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


@needs_torch
@pytest.mark.parametrize("mode", ["hang", "evaluate"])
def test_a_script_that_reports_nothing_is_restarted_for_a_hang_and_not_for_an_evaluation(
    ft: Launcher, mode: str
) -> None:
    given = {"GIVEN": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    job = ft.start(
        *("--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", "logs"),
        *("--ft-warm-standby", "false", "--ft-auto-heartbeat-floor", "4"),
        *("--ft-on-incident", "touch told"),
        ft.script(SCRIPT),
        env={"MODE": mode, **given},
    )
    if mode == "evaluate":  # how long it may take follows from the steps before
        until(lambda: job.events("monitor_abandoned"), "it takes longer than it may", 3 * BOUND_S)
        (job.folder / "was overdue").touch()
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
        assert not overdue
        assert not job.events("incident")
        assert not job.said(r"\[ERROR\]")
        assert job.said("no optimizer step for .*; no rank is ended, as nothing proves a hang; r")
        assert not told.exists()


ISOLATED = """
import os, subprocess, sys, time
assert "rank/auto" in os.environ["PYTHONPATH"] and not any("rank/auto" in path for path in sys.path)
child = subprocess.Popen([sys.executable, sys.argv[1]], stdin=-1, stdout=-1)
child.stdout.readline()
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
child.communicate()
print("watched", os.getpid(), flush=True)
"""
CHILD = """
import sys
from torch.optim.optimizer import hooks
for _ in range(4):
    for hook in hooks:
        hook(None, (), {})
print("hooks", len(hooks), flush=True)
sys.stdin.read()
"""


def test_a_child_of_a_rank_that_ignores_pythonpath_does_not_take_its_place(ft: Launcher) -> None:
    """It finds the hook that the rank has not found, and its steps are not the rank's."""
    optim = ft.folder / "torch" / "optim"
    optim.mkdir(parents=True)
    for name in ("torch/__init__.py", "torch/optim/__init__.py"):
        (ft.folder / name).touch()
    hooks = "hooks = []\nregister_optimizer_step_post_hook = hooks.append\n"
    (optim / "optimizer.py").write_text(hooks)
    python = ft.script(f'#!/bin/sh\nexec {sys.executable} -I "$@"\n', "python")
    python.chmod(0o755)

    job = ft.start(
        *("--nproc-per-node", "1", "--log-dir", "logs"),
        *(ft.script(ISOLATED), ft.script(CHILD, "child.py")),
        env={"PYTHON_EXEC": str(python), "PYTHONPATH": str(ft.folder)},
    )

    assert job.wait() == 0, job.stderr
    [rank] = job.events("worker_started")
    assert f"watched {rank['pid']}" in job.stdout
    assert len(job.events("rank_armed")) == 1
    assert job.stderr.count("do not count as heartbeats, because") == 1
