"""Every variable of the environment that holdfast reads or knows, with its effect. Pure.

The launcher warns of a variable that has an effect under torchrun or nvidia-resiliency-ext alone.
``docs/environment.md`` shows the table, and a test holds that every variable that a module reads is
in it. ``PET_<OPTION>`` variables are in the table of options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_FILES = "the launcher writes its log to stderr, or to stdout with NVRX_LOG_TO_STDOUT"
_TELEMETRY = "events are written to events-launcher.jsonl in the run's folder"
_TIMER = "no timer server is started; sections of RankMonitorClient limit the time of a step"


class Variable(NamedTuple):
    """One variable.

    Attributes:
        effect: Of it; of an idle one, its replacement.
    """

    reader: str
    effect: str
    is_idle: bool = False


VARIABLES: Mapping[str, Variable] = {
    # ---- log and output
    "NVRX_LOG_DEBUG": Variable(
        "launcher, rank", "1: log at level debug; --ft-log-level goes before it"
    ),
    "NVRX_LOG_TO_STDOUT": Variable("launcher, rank", "1: the log goes to stdout, not to stderr"),
    "NVRX_LOG_RANK_FORMAT_VERBOSE": Variable(
        "Wrapper",
        "1: texts of nvidia_resiliency_ext.inprocess.attribution show many ranks as ranges, "
        "{0-15, 18}",
    ),
    "FT_LAUNCHER_LOGLEVEL": Variable("launcher", "old name of --ft-log-level, with a warning"),
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": Variable(
        "launcher", "start of each teed line; knows ${role_name}, ${rank}, ${local_rank}"
    ),
    "NVRX_NODE_LOCAL_TMPDIR": Variable("launcher", _FILES, is_idle=True),
    "NVRX_LOG_MAX_FILE_SIZE_KB": Variable("launcher", _FILES, is_idle=True),
    "NVRX_LOG_MAX_LOG_FILES": Variable("launcher", _FILES, is_idle=True),
    "NVRX_TELEMETRY_EXPORTER": Variable("launcher", _TELEMETRY, is_idle=True),
    "NVRX_TELEMETRY_FILE": Variable("launcher", _TELEMETRY, is_idle=True),
    # ---- the launcher's work
    "FAULT_TOL_CFG_PATH": Variable("launcher", "old name of --ft-cfg-path, with a warning"),
    "NVRX_DISABLE_RANK_MONITORS": Variable("launcher", "1: ranks are not watched for hangs"),
    "NVRX_GPUS_PER_NUMA": Variable(
        "launcher", "G: local rank r runs on NUMA node r // G, with the memory of that node"
    ),
    "PYTHON_EXEC": Variable("launcher", "interpreter of the ranks"),
    "PATH": Variable("launcher", "folders in which programs are searched"),
    "PYTHONPATH": Variable("launcher, rank", "Python's own; parked interpreters keep the job's"),
    "OMP_NUM_THREADS": Variable(
        "launcher", "passed on to ranks; 1 where it is not set and there are several ranks"
    ),
    "CUDA_VISIBLE_DEVICES": Variable(
        "launcher", "GPUs that --nproc-per-node gpu counts and that are checked"
    ),
    "CUDA_DEVICE_ORDER": Variable(
        "launcher", "passed on to ranks; set PCI_BUS_ID if the GPUs of a host are of several kinds"
    ),
    "TMPDIR": Variable("launcher", "folder for the folders of runs, without --log-dir"),
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": Variable("launcher", "--shutdown-timeout"),
    "TORCHELASTIC_SIGNALS_TO_HANDLE": Variable("launcher", "--signals-to-handle"),
    "TORCHELASTIC_ERROR_FILE": Variable(
        "launcher", "file for the first cause of a failed job; each rank gets one of its own"
    ),
    "TORCHELASTIC_ENABLE_FILE_TIMER": Variable("launcher", _TIMER, is_idle=True),
    "TORCHELASTIC_TIMER_FILE": Variable("launcher", _TIMER, is_idle=True),
    "TORCHELASTIC_HEALTH_CHECK_PORT": Variable(
        "launcher",
        "no health server is started; the launcher's exit reports the end of the job",
        is_idle=True,
    ),
    # ---- where this node stands
    "NVRX_INFRA_RANK_FROM_NODENAME": Variable(
        "launcher", "1: nodes are ordered by the digits of SLURMD_NODENAME"
    ),
    "SLURMD_NODENAME": Variable("launcher", "name of this node"),
    "CROSS_SLURM_PROCID": Variable("launcher", "number of this node over several Slurm jobs"),
    "SLURM_TOPOLOGY_ADDR": Variable("launcher", "block and node, which order nodes"),
    "SLURM_TOPOLOGY_ADDR_PATTERN": Variable(
        "launcher", "form of SLURM_TOPOLOGY_ADDR; forms other than block.node are ignored"
    ),
    "SLURM_TOPOLOGY_NODES_PER_BLOCK": Variable(
        "launcher", "distance between the numbers of two blocks; default 10000000000"
    ),
    "SLURM_ARRAY_TASK_ID": Variable(
        "launcher", "node numbers count through the tasks of a job array"
    ),
    "SLURM_PROCID": Variable("launcher", "number of this node"),
    "GROUP_RANK": Variable("launcher", "number of this node, where Slurm gives none"),
    "SLURM_JOB_ID": Variable(
        "launcher", "this is a Slurm job; unnamed jobs that differ in it refuse each other"
    ),
    "SLURM_JOBID": Variable("launcher", "old name of SLURM_JOB_ID"),
    "SLURM_STEP_ID": Variable("launcher", "launchers of one srun belong to one job"),
    "SLURM_STEPID": Variable("launcher", "old name of SLURM_STEP_ID"),
    "SLURM_STEP_NUM_TASKS": Variable("launcher", "more than 1: SLURM_STEP_ID counts"),
    "SLURM_RESTART_COUNT": Variable("launcher", "tells starts of one Slurm job apart"),
    "SLURM_HET_SIZE": Variable("launcher", "set: launchers of one job may differ in SLURM_JOB_ID"),
    "SLURM_PACK_SIZE": Variable("launcher", "old name of SLURM_HET_SIZE"),
    "SLURM_NNODES": Variable("launcher", "number of nodes, where --nnodes is not given"),
    "SLURM_JOB_NUM_NODES": Variable("launcher", "number of nodes of the whole Slurm job"),
    "SLURM_STEP_NUM_NODES": Variable("launcher", "number of nodes of this srun"),
    "SLURM_NODEID": Variable("launcher", "number of this node in its srun"),
    "SLURM_STEP_NODELIST": Variable("launcher", "its first node hosts the store"),
    "SLURM_JOB_NODELIST": Variable("launcher", "its first node hosts the store, without a step"),
    "SLURM_NODELIST": Variable("launcher", "old name of SLURM_JOB_NODELIST"),
    "SLURM_NTASKS_PER_NODE": Variable("launcher", "more than 1 is refused: one launcher per node"),
    "SLURM_STEP_TASKS_PER_NODE": Variable("launcher", "the same of this srun"),
    "JOB_COMPLETION_INDEX": Variable("launcher", "Kubernetes: number of this pod in its job"),
    "JOB_COMPLETIONS": Variable("launcher", "Kubernetes: number of pods of the job"),
    "JOB_SERVICE_NAME": Variable("launcher", "Kubernetes: headless service of the job"),
    "JOBSET_NAME": Variable("launcher", "Kubernetes: this job belongs to a JobSet"),
    "JOB_INDEX": Variable("launcher", "Kubernetes: number of the job in its JobSet"),
    "REPLICATED_JOB_NAME": Variable("launcher", "Kubernetes: name of the job in its JobSet"),
    "REPLICATED_JOB_REPLICAS": Variable("launcher", "Kubernetes: jobs of the JobSet"),
    "HOSTNAME": Variable("launcher", "Kubernetes: name of this pod"),
    "HOLDFAST_JOB_SECRET": Variable(
        "launcher",
        "secret that all launchers of a job sign their messages with (docs/security.md); not "
        "passed on to ranks",
    ),
    "HOLDFAST_NODE_DOMAIN": Variable("launcher", "NVLink domain of this node, for --ft-segment"),
    # ---- given to ranks, and read there
    "FT_LAUNCHER_IPC_SOCKET": Variable("rank", "socket of the launcher, for control requests"),
    "FAULT_TOL_FINISHED_FLAG_FILE": Variable(
        "rank", "file that the Lightning callbacks make when the training is complete"
    ),
    "FT_RANK_MONITOR_IPC_SOCKET": Variable("rank", "socket of the rank's monitor"),
    "HOLDFAST_NODE_HEALTH_CHECK_ENDPOINT": Variable(
        "rank", "set for ranks: socket of the node's health service"
    ),
    "HOLDFAST_MARKER": Variable(
        "launcher",
        "set for ranks: the job of a process; used to find processes that were left behind",
    ),
    "HOLDFAST_INCIDENT": Variable(
        "command of --ft-on-incident", "path of the incident, as its last argument"
    ),
    "HOLDFAST_NODE": Variable("command of --ft-on-incident", "name of this host"),
    "HOLDFAST_RUN_DIR": Variable("command of --ft-on-incident", "folder of the run"),
    "HOLDFAST_CHAOS": Variable("rank", "set by holdfast chaos: its folder for orders and steps"),
    "HOLDFAST_INJECT": Variable(
        "rank", "faults to inject, with a hook on PYTHONPATH (docs/chaos.md#faults-in-any-script)"
    ),
    "HOLDFAST_VIEW_TOKEN": Variable("holdfast view", "token of --token"),
    "TERM": Variable("holdfast top", "dumb or unknown: nothing live can be shown"),
    "HOLDFAST_AUTO": Variable(
        "rank", "set while a rank starts: what its first lines set up, and its own PYTHONPATH"
    ),
    "PYTHONINSPECT": Variable(
        "rank", "set: an exception does not end the rank, as Python shows a prompt after it"
    ),
    "HOLDFAST_PARKED": Variable("rank", "set for parked interpreters: their instructions"),
    "NVRX_CYCLE": Variable("rank", "set for ranks: the cycle, from 0"),
    "RANK": Variable("rank", "global rank"),
    "LOCAL_RANK": Variable("rank", "rank within its node"),
    "WORLD_SIZE": Variable("rank", "number of ranks"),
    "LOCAL_WORLD_SIZE": Variable("rank", "set for ranks: number of ranks on this node"),
    "GROUP_WORLD_SIZE": Variable("rank", "set for ranks: number of nodes"),
    "ROLE_NAME": Variable("rank", "set for ranks: --role"),
    "ROLE_RANK": Variable("rank", "set for ranks: same as RANK"),
    "ROLE_WORLD_SIZE": Variable("rank", "set for ranks: same as WORLD_SIZE"),
    "MASTER_ADDR": Variable("rank", "where rank 0 listens"),
    "MASTER_PORT": Variable("rank", "where rank 0 listens"),
    "TORCHELASTIC_RESTART_COUNT": Variable("rank", "the cycle, from 0"),
    "TORCHELASTIC_MAX_RESTARTS": Variable("rank", "set for ranks: --max-restarts"),
    "TORCHELASTIC_RUN_ID": Variable("rank", "name of the job"),
    "TORCHELASTIC_USE_AGENT_STORE": Variable(
        "rank", "set for ranks: False, since rank 0 hosts a new store in every cycle"
    ),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": Variable(
        "rank, doctor", "set for ranks: 1 where it is not set"
    ),
    "NVRX_FR_TRACE_PATH": Variable(
        "Wrapper", "folder into which torch's flight record is written before an abort"
    ),
    # ---- torch's and CUDA's own
    "GLOO_SOCKET_IFNAME": Variable(
        "rank, Wrapper",
        "set where it is not and the host's own name leads to no address that other hosts reach",
    ),
    "TORCH_FR_BUFFER_SIZE": Variable("rank, doctor", "above 0: torch's flight recorder is on"),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": Variable("rank, doctor", "older name of the same"),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": Variable("doctor", "whether torch writes its flight recorder"),
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": Variable("doctor", "compared with the configured timeouts"),
    "TORCH_DISTRIBUTED_DEBUG": Variable(
        "rank", "passed on to ranks, not to test processes of holdfast"
    ),
    "TORCH_CPP_LOG_LEVEL": Variable("launcher", "ERROR where it is not set"),
    **dict.fromkeys(
        ("CUDA_MODULE_LOADING", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS"),
        Variable("launcher", "a script may set it before it imports torch, also with warm standby"),
    ),
    "GRPC_VERBOSITY": Variable("launcher", "NONE where it is not set, in the health process"),
}


def without_effect(environ: Mapping[str, str]) -> list[str]:
    """One sentence for variables that are set and that nothing here reads; usually none."""
    idle: dict[str, list[str]] = {}
    for name, variable in VARIABLES.items():
        if variable.is_idle and environ.get(name, "").strip() not in ("", "0"):
            idle.setdefault(variable.effect, []).append(name)
    return [f"{', '.join(names)}: without effect here; {why}" for why, names in idle.items()]
