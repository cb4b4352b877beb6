"""A job for nvidia-resiliency-ext: heartbeats, sections, and a function restarted in place.

``check_install.py`` starts it under ``ft_launcher``. Rank 1 kills itself in the first cycle; in the
second, the function of rank 0 raises once. Every name is the other package's.
"""

import datetime as dt
import json
import os
import time

import nvidia_resiliency_ext.fault_tolerance as ft
from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.shared_utils.inject_fault import Fault, dispatch_fault_injection

RANK = int(os.environ["RANK"])
CYCLE = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
FOLDER = os.environ["CHECK_FOLDER"]


def note(**facts: object) -> None:
    with open(f"{FOLDER}/rank{RANK}", "a") as file:
        file.write(json.dumps({"cycle": CYCLE, **facts}) + "\n")


client = ft.RankMonitorClient()
client.init_workload_monitoring(num_warmup_iters=1)
client.send_heartbeat()
client.start_section("step")
client.end_section("step")
note(sections=dict(client.section_timeouts.section), state=client.state_dict())
if CYCLE == 0:
    if RANK == 1:
        while not os.path.exists(f"{FOLDER}/rank0") or not os.path.getsize(f"{FOLDER}/rank0"):
            time.sleep(0.01)
        dispatch_fault_injection(fault=Fault.SIGKILL, delay=0.05)
    client.start_section("step")
    time.sleep(1000)


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
def train(call: inprocess.CallWrapper = None) -> int:
    call.ping()
    with call.atomic():
        note(iteration=call.iteration, world=os.environ["WORLD_SIZE"])
    if RANK == 0 and call.iteration == 0:
        raise RuntimeError("boom")
    return call.iteration


note(returned=train())
client.shutdown_workload_monitoring()
