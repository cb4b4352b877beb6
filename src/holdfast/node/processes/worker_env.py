"""The environment of a rank: variables of torchrun, nvidia-resiliency-ext, holdfast. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.base.processes.proc import MARKER
from holdfast.base.pure import json_line
from holdfast.base.pure.numbering import Cycle, GlobalRank, GroupRank, LocalRank
from holdfast.errors import ConfigError
from holdfast.fault_tolerance.data import (
    FT_LAUNCHER_IPC_SOCKET_ENV_VAR,
    FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR,
)
from holdfast.job.pure.job_secret import drop_secret

if TYPE_CHECKING:
    from holdfast.options.plan import LaunchPlan

HEALTH_ENDPOINT = "HOLDFAST_NODE_HEALTH_CHECK_ENDPOINT"
"""Path of the socket of this node's health service, for ranks that want to ask it as well."""
LASTING = frozenset(
    {
        "RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
    }
)
"""Variables that seldom differ between two cycles of one local rank."""
PER_CYCLE = LASTING | {
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_ERROR_FILE",
    "NVRX_CYCLE",
    MARKER,
}
"""Variables that may differ between two cycles of one local rank; all others are the job's."""


@dataclass(frozen=True)
class RankPlace:
    """Where a rank stands in its cycle.

    Roles are not mixed within a job, so that role rank and size equal the global ones.
    """

    local_rank: LocalRank
    rank: GlobalRank
    group_rank: GroupRank
    local_world_size: int
    world_size: int
    group_world_size: int
    cycle: Cycle
    master_addr: str
    master_port: int
    gloo_interface: str | None = None


def unplaced(local_rank: int, nproc: int) -> RankPlace:
    """The place of a rank before its node has one: for settings that no cycle has a part in."""
    place = LocalRank(local_rank), GlobalRank(0), GroupRank(0)
    return RankPlace(*place, nproc, nproc, 1, Cycle(0), master_addr="", master_port=0)


def rank_env(
    plan: LaunchPlan,
    place: RankPlace,
    base: Mapping[str, str],
    launcher_socket: str,
    monitor_socket: str | None,
    *,
    error_file: str = "",
    marker: str = "",
) -> dict[str, str]:
    """The environment of one rank; without keywords, as far as the cycle has no part in it.

    ``TORCHELASTIC_RESTART_COUNT`` is the cycle: job-wide, 0 at first, never decreasing.
    ``TORCHELASTIC_USE_AGENT_STORE`` is False: rank 0 hosts a fresh store in every cycle, so that
    keys of an earlier cycle are never found.

    Raises:
        ConfigError: ``virtual_local_rank`` and ``CUDA_VISIBLE_DEVICES`` lists too few devices.
    """
    env = {
        **base,
        "LOCAL_RANK": str(place.local_rank),
        "RANK": str(place.rank),
        "GROUP_RANK": str(place.group_rank),
        "ROLE_RANK": str(place.rank),
        "ROLE_NAME": plan.role,
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "WORLD_SIZE": str(place.world_size),
        "GROUP_WORLD_SIZE": str(place.group_world_size),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": str(place.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(place.cycle),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.max_restarts),
        "TORCHELASTIC_RUN_ID": plan.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "NVRX_CYCLE": str(place.cycle),
        FT_LAUNCHER_IPC_SOCKET_ENV_VAR: launcher_socket,
        MARKER: marker,
    }
    drop_secret(env)  # only launchers need it
    if monitor_socket is None:
        env.pop(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, None)
    else:
        env[FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR] = monitor_socket
    if plan.health_endpoint is not None:
        env[HEALTH_ENDPOINT] = plan.health_endpoint
    env.pop(json_line.VARIABLE, None)
    if plan.log_format == json_line.JSON:
        env[json_line.VARIABLE] = json_line.JSON
    if place.gloo_interface is not None:
        env.setdefault("GLOO_SOCKET_IFNAME", place.gloo_interface)
    if place.local_world_size > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    if plan.virtual_local_rank:
        env["LOCAL_RANK"] = "0"
        env["CUDA_VISIBLE_DEVICES"] = _own_device(base, place.local_rank)
    return env


def _own_device(base: Mapping[str, str], local_rank: LocalRank) -> str:
    visible = base.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(local_rank)
    devices = [device.strip() for device in visible.split(",")]
    if local_rank >= len(devices):
        raise ConfigError(
            f"--virtual-local-rank: local rank {local_rank} has no device, "
            f"CUDA_VISIBLE_DEVICES={visible} lists {len(devices)}"
        )
    return devices[local_rank]
