"""Every environment variable that holdfast reads, sets or knows, and its effect. Pure.

``--help-all`` prints it, and docs/environment.md is made from it.
"""

from __future__ import annotations

from collections.abc import Iterator

VARIABLES = {
    "Launcher": {
        "NVRX_LOG_DEBUG": "1: log at level debug; --ft-log-level goes before it",
        "NVRX_LOG_TO_STDOUT": "1: the log goes to stdout, not to stderr",
        "FT_LAUNCHER_LOGLEVEL, FAULT_TOL_CFG_PATH": (
            "old names of --ft-log-level, --ft-cfg-path, with a warning"
        ),
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "--log-line-prefix-template",
        "NVRX_DISABLE_RANK_MONITORS": "1: ranks are not watched for hangs",
        "NVRX_GPUS_PER_NUMA": (
            "G: local rank r runs on NUMA node r // G, with the memory of that node"
        ),
        "PYTHON_EXEC": "interpreter of the ranks",
        "PATH": "folders in which programs are searched",
        "PYTHONPATH": "Python's own; parked interpreters keep the job's",
        "TMPDIR": "folder for the folders of runs, without --log-dir",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT, TORCHELASTIC_SIGNALS_TO_HANDLE": (
            "--shutdown-timeout, --signals-to-handle"
        ),
        "TORCHELASTIC_ERROR_FILE": (
            "file for the first cause of a failed job; each rank gets one of its own"
        ),
        "HOLDFAST_JOB_SECRET": "secret of all launchers of a job; not passed on to ranks",
        "HOLDFAST_MARKER": (
            "set for ranks: the job of a process; used to find processes that were left behind"
        ),
    },
    "Slurm and Kubernetes": {
        "NVRX_INFRA_RANK_FROM_NODENAME": "1: nodes are ordered by the digits of SLURMD_NODENAME",
        "SLURMD_NODENAME": "name of this node",
        "CROSS_SLURM_PROCID": "number of this node over several Slurm jobs",
        "SLURM_TOPOLOGY_ADDR": "block and node, which order nodes",
        "SLURM_TOPOLOGY_ADDR_PATTERN": (
            "form of SLURM_TOPOLOGY_ADDR; forms other than block.node are ignored"
        ),
        "SLURM_TOPOLOGY_NODES_PER_BLOCK": (
            "distance between the numbers of two blocks; default 10000000000"
        ),
        "SLURM_ARRAY_TASK_ID": "node numbers count through the tasks of a job array",
        "SLURM_PROCID, SLURM_NODEID": "number of this node",
        "GROUP_RANK": "number of this node, where Slurm gives none",
        "SLURM_JOB_ID": "this is a Slurm job; unnamed jobs that differ in it refuse each other",
        "SLURM_STEP_ID": "launchers of one srun belong to one job",
        "SLURM_STEP_NUM_TASKS": "more than 1: SLURM_STEP_ID counts",
        "SLURM_RESTART_COUNT": "tells starts of one Slurm job apart",
        "SLURM_HET_SIZE": "set: launchers of one job may differ in SLURM_JOB_ID",
        "SLURM_JOBID, SLURM_STEPID, SLURM_PACK_SIZE, SLURM_NODELIST": (
            "old names of SLURM_JOB_ID, SLURM_STEP_ID, SLURM_HET_SIZE, SLURM_JOB_NODELIST"
        ),
        "SLURM_STEP_NUM_NODES, SLURM_NNODES, SLURM_JOB_NUM_NODES": (
            "number of nodes, in this order, where --nnodes is not given"
        ),
        "SLURM_STEP_NODELIST, SLURM_JOB_NODELIST": (
            "the first node leads; of the step before that of the job"
        ),
        "SLURM_NTASKS_PER_NODE, SLURM_STEP_TASKS_PER_NODE": (
            "more than 1 is refused: one launcher per node"
        ),
        (
            "JOB_COMPLETION_INDEX, JOB_COMPLETIONS, JOB_SERVICE_NAME, JOBSET_NAME, JOB_INDEX, "
            "REPLICATED_JOB_NAME, REPLICATED_JOB_REPLICAS"
        ): ("Kubernetes: size, number and leader"),
        "HOSTNAME": "name of this pod",
        "HOLDFAST_NODE_DOMAIN": "NVLink domain of this node, for --ft-segment",
    },
    "Set for ranks": {
        "HOLDFAST_LOG_FORMAT": "--ft-log-format, where it is json",
        "FT_LAUNCHER_IPC_SOCKET, FT_RANK_MONITOR_IPC_SOCKET": (
            "sockets of the launcher (control requests) and of the rank's monitor"
        ),
        "HOLDFAST_NODE_HEALTH_CHECK_ENDPOINT": "socket of the node's health service",
        "HOLDFAST_CHAOS": "folder for orders and steps of holdfast chaos",
        "HOLDFAST_AUTO, HOLDFAST_PARKED": "set while a rank starts, or is parked: what it sets up",
        "NVRX_CYCLE, TORCHELASTIC_RESTART_COUNT": "the cycle, from 0",
        "RANK, ROLE_RANK": "global rank",
        "LOCAL_RANK": "rank within its node",
        "WORLD_SIZE, ROLE_WORLD_SIZE": "number of ranks",
        "LOCAL_WORLD_SIZE, GROUP_WORLD_SIZE": "number of ranks on this node, of nodes",
        "ROLE_NAME, TORCHELASTIC_MAX_RESTARTS": "--role, --max-restarts",
        "MASTER_ADDR, MASTER_PORT": "where rank 0 listens",
        "TORCHELASTIC_RUN_ID": "name of the job",
        "TORCHELASTIC_USE_AGENT_STORE": "False, as rank 0 hosts a new store in every cycle",
    },
    "torch, NCCL and CUDA": {
        "OMP_NUM_THREADS": "passed on to ranks; 1 where it is not set, of several ranks",
        "CUDA_VISIBLE_DEVICES": "GPUs that --nproc-per-node gpu counts and that are checked",
        "CUDA_DEVICE_ORDER": (
            "passed on to ranks; set PCI_BUS_ID if the GPUs of a host are of several kinds"
        ),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "set for ranks: 1 where it is not set",
        "NVRX_FR_TRACE_PATH": "folder into which torch's flight record is written before an abort",
        "GLOO_SOCKET_IFNAME": (
            "set where it is not and the host's own name leads to no address that other hosts reach"
        ),
        "TORCH_FR_BUFFER_SIZE, TORCH_NCCL_TRACE_BUFFER_SIZE": (
            "above 0: torch's flight recorder is on (the second is its older name)"
        ),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "whether torch writes its flight recorder",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "compared with the configured timeouts",
        "TORCH_DISTRIBUTED_DEBUG": "passed on to ranks, not to test processes of holdfast",
        "TORCH_CPP_LOG_LEVEL": "ERROR where it is not set",
        "CUDA_MODULE_LOADING, CUDA_LAUNCH_BLOCKING, CUDA_DEVICE_MAX_CONNECTIONS": (
            "a script may set it before it imports torch, also with warm standby"
        ),
        "GRPC_VERBOSITY": "NONE where it is not set, in the health process",
    },
    "Scripts and commands": {
        "FAULT_TOL_FINISHED_FLAG_FILE": (
            "file that the Lightning callbacks make when the training is complete"
        ),
        "HOLDFAST_INJECT": "faults to inject, with a hook on PYTHONPATH",
        "PYTHONINSPECT": "set: an exception does not end the rank",
        "NVRX_LOG_RANK_FORMAT_VERBOSE": (
            "1: texts of nvidia_resiliency_ext.inprocess.attribution show ranges of ranks, "
            "{0-15, 18}"
        ),
        "HOLDFAST_INCIDENT, HOLDFAST_NODE, HOLDFAST_RUN_DIR": (
            "for the command of --ft-on-incident: path of the incident, name of this host, "
            "folder of the run"
        ),
        "HOLDFAST_VIEW_TOKEN": "token of holdfast view",
        "TERM": "dumb or unknown: holdfast top shows nothing live",
    },
}
"""By where they count: names, separated by commas, and their effect."""
_FILES = "the launcher writes its log to stderr, or to stdout with NVRX_LOG_TO_STDOUT"
_TELEMETRY = "events are written to events-launcher.jsonl in the run's folder"
_TIMER = "no timer server is started; sections of RankMonitorClient limit the time of a step"
IDLE_VARIABLES = {
    "NVRX_NODE_LOCAL_TMPDIR": _FILES,
    "NVRX_LOG_MAX_FILE_SIZE_KB": _FILES,
    "NVRX_LOG_MAX_LOG_FILES": _FILES,
    "NVRX_TELEMETRY_EXPORTER": _TELEMETRY,
    "NVRX_TELEMETRY_FILE": _TELEMETRY,
    "TORCHELASTIC_ENABLE_FILE_TIMER": _TIMER,
    "TORCHELASTIC_TIMER_FILE": _TIMER,
    "TORCHELASTIC_HEALTH_CHECK_PORT": (
        "no health server is started; the launcher's exit reports the end of the job"
    ),
}
"""Variables that have an effect under torchrun or nvidia-resiliency-ext alone, and what replaces
it."""


def described() -> Iterator[tuple[str, str]]:
    """Each variable, and its effect."""
    for rows in VARIABLES.values():
        for names, effect in rows.items():
            yield from ((name, effect) for name in names.split(", "))
    yield from IDLE_VARIABLES.items()
