"""A program for nvidia-resiliency-ext under ``ft_launcher``, which is started by its module."""

from __future__ import annotations

import json
from pathlib import Path

import nvidia_resiliency_ext
from tests.real.harness import Launcher

COMPAT = Path(nvidia_resiliency_ext.__file__).parents[1]

PROGRAM = """
import datetime as dt, json, os
import nvidia_resiliency_ext.fault_tolerance as ft
import nvidia_resiliency_ext.inprocess as inprocess
from nvidia_resiliency_ext.shared_utils.inject_fault import Fault, dispatch_fault_injection

RANK, CYCLE = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def note(**what):
    with open(os.environ["OUT"] + f"/rank{RANK}", "a") as file:
        file.write(json.dumps({"cycle": CYCLE, **what}) + "\\n")

client = ft.RankMonitorClient()
client.init_workload_monitoring(num_warmup_iters=1)
client.send_heartbeat()
client.start_section("step")
client.end_section("step")
note(sections=dict(client.section_timeouts.section), state=client.state_dict())
if CYCLE == 0:
    if RANK == 1:
        while not os.path.exists(os.environ["OUT"] + "/rank0"):
            __import__("time").sleep(0.01)
        dispatch_fault_injection(fault=Fault.SIGKILL, delay=0.05)
    client.start_section("step")
    __import__("time").sleep(1000)

@inprocess.Wrapper(
    initialize=inprocess.initialize.RetryController(max_iterations=3),
    finalize=inprocess.finalize.ThreadedFinalize(dt.timedelta(seconds=10), lambda: None),
    health_check=inprocess.Compose(
        inprocess.health_check.CudaHealthCheck(),
        inprocess.health_check.FaultCounter(max_rank_faults=1),
    ),
    rank_assignment=inprocess.Compose(
        inprocess.rank_assignment.ActivateAllRanks(), inprocess.rank_assignment.ShiftRanks()
    ),
    last_call_wait=dt.timedelta(0),
)
def train(call: inprocess.CallWrapper = None):
    call.ping()
    with call.atomic():
        note(iteration=call.iteration, world=os.environ["WORLD_SIZE"])
    if RANK == 0 and call.iteration == 0:
        raise RuntimeError("boom")
    return call.iteration

note(returned=train())
client.shutdown_workload_monitoring()
"""


def test_heartbeats_sections_and_restarts_in_place_work_by_the_other_name(ft: Launcher) -> None:
    """Killed once by its own fault injection, restarted in place once; nothing but old names."""
    job = ft.start(
        *("--nproc_per_node", "2", "--max-restarts=1"),
        *("--ft-param-rank_section_timeouts=step:100", "--ft-warm-standby", "false"),
        ft.script(PROGRAM),
        module="nvidia_resiliency_ext.fault_tolerance.launcher",
        env={"PYTHONPATH": str(COMPAT)},
    )
    assert job.wait() == 0, job.stderr
    assert job.stderr.count("--ft-param-rank_section_timeouts is an old spelling") == 1
    for rank in range(2):
        begun, again, *calls, returned = map(json.loads, job.written(f"rank{rank}"))
        assert (begun["cycle"], again["cycle"]) == (0, 1)
        assert begun["sections"] == {"step": 100.0}
        # A rank that another one's fault reaches before its first call makes only the second.
        assert calls[-1] == {"cycle": 1, "iteration": 1, "world": "2"}
        assert returned == {"cycle": 1, "returned": 1}
