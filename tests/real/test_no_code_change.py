"""An unmodified script: its optimizer's steps and its collectives are heartbeats."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.real.harness import Job, Launcher, kill
from tests.waiting import BOUND_S, until

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")

SCRIPT = Path(__file__).parent.parent / "harmless" / "plain_script.py"
"""Its group has two hours."""


def start(ft: Launcher, scenario: str, **env: str) -> Job:
    return ft.start(
        *("--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", "logs"),
        *("--ft-warm-standby", "false", "--ft-auto-heartbeat-floor", "3"),
        *("--ft-on-incident", "touch told"),
        SCRIPT,
        env={
            "OUT": str(ft.folder),
            "HARMLESS_SCENARIO": scenario,
            "HARMLESS_LIGHT_TORCH": "1",
            **env,
        },
    )


def ends(ft: Launcher) -> int:
    """Ranks that have trained to the end, in any cycle."""
    return sum(len(path.read_text().splitlines()) for path in ft.folder.glob("done.*"))


@needs_torch
@pytest.mark.parametrize(
    ("scenario", "place"),
    [
        ("reads_lines_of_a_child", "reads_lines_of_a_child"),
        ("receives_50_mb_per_second_in_a_thread", "received"),
    ],
)
def test_a_rank_that_waits_for_something_outside_is_one_stall_and_goes_on(
    ft: Launcher, scenario: str, place: str
) -> None:
    """It was killed. ``make harmless`` has more of the kind."""
    job = start(ft, scenario, HARMLESS_PAUSE_S="9")

    assert job.wait(3 * BOUND_S) == 0, job.stderr
    assert ends(ft) == 2
    assert "NestedRestarter" not in job.stdout
    assert job.stderr.count("reports nothing by itself") == 1
    assert max(event["cycle"] for event in job.events()) == 0
    stalls = [event for event in job.events("stall") if place in event["reason"]]
    assert [event["culprits"] for event in stalls] == [[0]], job.stderr
    assert not job.events("incident")
    assert not job.events("rank_overdue")
    assert not job.said(r"\[ERROR\]")
    assert job.said(f"no optimizer step for .*; rank 0 .*{place}")
    assert job.said(f"is a stall: .*{place}")
    assert job.said("no rank is killed, because nothing proves that it hangs")
    assert (job.folder / "told").exists()


@needs_torch
@pytest.mark.parametrize(
    ("scenario", "proof"),
    [
        ("all_reduce_and_broadcast", "ranks 0,1 have called collective .* as different operations"),
        ("stopped_in_its_first_steps", "rank 1 has been stopped, .* and others wait for it"),
    ],
)
def test_where_no_time_can_help_the_job_is_restarted(
    ft: Launcher, scenario: str, proof: str
) -> None:
    """A tie of two, that was left for ever; a rank in its first steps, that nobody saw."""
    job = start(ft, scenario)

    assert job.wait(4 * BOUND_S) == 0, job.stderr
    # A rank that is woken for its stacks may come to its end before it is ended.
    assert ends(ft) >= 2
    assert max(event["cycle"] for event in job.events()) == 1
    assert job.said(proof), job.stderr
    if scenario == "stopped_in_its_first_steps":
        assert job.events("incident")[0]["culprits"] == [1], job.stderr
        assert not job.said("rank 0 .*: hung"), "it waited"


ISOLATED = """
import os, subprocess, sys, time
assert "start_hook" in os.environ["PYTHONPATH"] and not any("start_hook" in p for p in sys.path)
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


MEETING = """
import os, pathlib, signal, sys, threading, time

if os.environ["NVRX_CYCLE"] == "0":
    signal.pause()

import torch.distributed as dist

has_come = pathlib.Path(os.environ["OUT"]) / "has come"

def say_where_the_main_thread_waits():
    while not has_come.exists():
        frame = sys._current_frames()[threading.main_thread().ident]
        while frame is not None:
            if frame.f_code.co_name == "wait_until_listens":
                has_come.touch()
            frame = frame.f_back
        time.sleep(0.01)

if os.environ["RANK"] == "1":
    threading.Thread(target=say_where_the_main_thread_waits, daemon=True).start()
while os.environ["RANK"] == "0" and not has_come.exists():
    time.sleep(0.01)
dist.init_process_group("gloo")
dist.barrier()
"""


@needs_torch
@pytest.mark.parametrize("warm", ["true", "false"])
def test_a_rank_that_comes_before_rank_0_does_not_pause_as_torch_does(
    ft: Launcher, warm: str
) -> None:
    """By half as long as rank 0 takes: 8.5 s of 20."""
    job = ft.start(
        *("--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs", "--ft-warm-standby", warm),
        *("--ft-warm-standby-delay=0", "--ft-warm-preload=torch.distributed"),
        ft.script(MEETING),
        env={"OUT": str(ft.folder), "OMP_NUM_THREADS": "1"},
    )
    if warm == "true":
        until(lambda: job.said("2 of 2 ranks can restart without importing"), "parked processes")
    first = until(lambda: job.events("worker_started"), "a rank")[0]

    kill(first["pid"])

    assert job.wait() == 0, job.stderr
    started = [event["is_warm"] for event in job.events("worker_started") if event["cycle"] == 1]
    assert started == [warm == "true"] * 2
    assert (ft.folder / "has come").exists()
