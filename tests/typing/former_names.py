"""A program written for nvidia-resiliency-ext; type checkers read it, as public_api.py."""

from typing_extensions import assert_type

from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.fault_tolerance import (
    FaultToleranceConfig,
    RankMonitorClient,
    RankMonitorServer,
    WorkloadAction,
    WorkloadControlRequest,
)

EXCLUDE = WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "broken")
MONITOR = RankMonitorServer.run_in_subprocess
CONFIG = FaultToleranceConfig(rank_heartbeat_timeout=300.0)


def with_sections() -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.start_section("step")
    client.end_section("step")
    assert_type(client.is_initialized, bool)
    client.shutdown_workload_monitoring()


@inprocess.Wrapper(abort=inprocess.abort.AbortTorchDistributed())
def train(steps: int, call: inprocess.CallWrapper | None = None) -> int:
    if call is not None:
        call.ping()
    return steps
