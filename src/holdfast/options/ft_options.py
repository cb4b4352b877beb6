"""The ``--ft-`` options: one for each field of the configuration, and those beside it. Pure."""

from __future__ import annotations

from typing import Any

from holdfast.fault_tolerance.config import SETTINGS, option_of
from holdfast.options.forms import CommaList
from holdfast.options.option import NODES, RESTARTS, Option, pet, under
from holdfast.options.values import (
    NOT_YET,
    AbsolutePaths,
    Choice,
    Flag,
    Numeric,
    Size,
    Text,
    ValueKind,
)

ANY_FAILED = "any-failed"
_PORT = Numeric("port", counted=False, least=0, most=65535, whole=True)
_PATH = Text("PATH", null=False)
_SECONDS = Numeric("seconds", least=0)
_PROCESSES = Numeric("processes", least=0, whole=True)
_CHUNKS = Numeric("chunks", least=0, whole=True)


def _ft(
    name: str,
    kind: ValueKind | None,
    default: Any,
    help_: str,
    why: str = "",
    *,
    in_env: bool = False,
    **more: Any,
) -> Option:
    env = (pet(name),) if in_env else ()
    return Option(name, kind, default, help_, why, env=env, **more)


def _fields(group: str, *names: str, needs: str = "") -> list[Option]:
    options = []
    for name in names:
        setting = SETTINGS[name]
        twin = f"--ft-{name.replace('_', '-')}"
        option = option_of(name)
        options.append(
            Option(
                option,
                setting.kind,
                None,
                setting.help,
                setting.why,
                group,
                field=name,
                idle=setting.idle,
                needs=needs,
                twins=() if twin == option else (twin,),
            )
        )
    return options


_LOG_SERVICE: tuple[tuple[str, ValueKind, Any, str], ...] = (
    ("--ft-nvrx-logfile", AbsolutePaths(many=False), None, "File for the launcher's log"),
    (
        "--ft-enable-log-server",
        Flag(),
        False,
        "Collect the output of all nodes through one service",
    ),
    ("--ft-log-server-port", _PORT, 50051, "Port of that service"),
    ("--ft-log-server-log", _PATH, None, "File for that service's log"),
    ("--ft-log-server-log-prefix", _PATH, None, "Prefix of that service's log files"),
    ("--ft-log-server-graceful-shutdown-timeout", _SECONDS, 60.0, "How long it may take to end"),
    ("--ft-log-aggregator-count", _PROCESSES, None, "Processes that collect for it"),
    ("--ft-log-leaf-max-queue-chunks", _CHUNKS, None, "What nodes keep while it is busy"),
)
"""Options without effect that only scripts for nvidia-resiliency-ext give."""

FT_OPTIONS = [
    # A switch with None as default, not False: where it is not given, the value of a file holds.
    *[option._replace(kind=None) for option in _fields("What to run", "numa_bind_strict")],
    *under(
        "What to run",
        _ft(
            "--ft-stdin-rank",
            Numeric("local rank", counted=False, least=0, whole=True),
            None,
            "Local rank that reads the launcher's stdin, for breakpoint() and input()",
            "at a terminal the only one that --local-ranks-filter shows, else 0",
            in_env=True,
        ),
    ),
    *_fields("Membership", "use_infra_group_rank", "segment", needs=NODES),
    *under(
        "Membership",
        _ft(
            "--ft-active-nodes",
            Choice(["max", "min"]),
            "max",
            "With --nnodes MIN:MAX, nodes with ranks: up to MAX, or MIN, and the others are spares",
            "torchrun's",
            needs=NODES,
        ),
        _ft(
            "--ft-rdzv-impl",
            Choice(["barrier", "legacy"]),
            "barrier",
            "Which rendezvous of nvidia-resiliency-ext",
            idle="there is one rendezvous",
        ),
    ),
    *under(
        "Restarting",
        _ft(
            "--ft-restart-policy",
            Choice([ANY_FAILED, "min-healthy"]),
            ANY_FAILED,
            "Restart when any rank has failed, or only when too few nodes are healthy (one node:"
            " no rank of the Wrapper's call is left)",
            "a failed rank usually stops all others",
        ),
        _ft(
            "--ft-restart-window",
            Numeric("seconds", above=0),
            None,
            "Count --max-restarts within any period of this length",
            "over the whole job",
            needs=RESTARTS,
        ),
        _ft(
            "--ft-restart-backoff",
            _SECONDS,
            0.0,
            "Wait before the restart after a second failure in a row; doubles with each further "
            "one, up to 300 s; a cycle of 300 s resets it",
            "waiting helps with few failures",
            needs=RESTARTS,
        ),
        _ft(
            "--ft-warm-standby",
            Flag(),
            True,
            "Keep a parked interpreter for each rank, and restart from it; takes 230 MiB with "
            "torch alone, 410 MiB with transformers, and leaves when memory gets short",
            "a restart takes a tenth of the time or less",
            needs=RESTARTS,
        ),
        _ft(
            "--ft-warm-start",
            Flag(),
            False,
            "Prepare parked interpreters also while this node waits for others",
            "only a spare gains from it",
        ),
        _ft(
            "--ft-warm-preload",
            CommaList(),
            [],
            "Further modules that parked interpreters import",
            needs=RESTARTS,
        ),
        _ft(
            "--ft-warm-standby-delay",
            _SECONDS,
            3.0,
            "Parked interpreters are prepared so long after the start, or once a rank has called"
            " init_workload_monitoring(); without CAP_SYS_NICE 1 s after the last one has",
            "a job that crashes at its start is restarted without them",
            needs=RESTARTS,
        ),
        _ft(
            "--ft-warm-standby-memory-mb",
            Numeric("MiB", least=0, whole=True),
            16384,
            "Most memory of all parked interpreters of a node; no more are prepared then",
            "8 of them with a CUDA build of torch need about half of it",
            needs=RESTARTS,
        ),
    ),
    *under(
        "Restarting",
        _ft(
            "--ft-snapshot-memory",
            Size(),
            None,
            "Most memory of the snapshots of all ranks of a node; 0 for no snapshots",
            "a quarter of what host or control group have left when the first rank asks",
            needs=RESTARTS,
        ),
        _ft(
            "--ft-snapshot-progress",
            Numeric("steps", least=1, whole=True),
            10,
            "A snapshot from which two cycles in a row made fewer new steps is given up, with "
            "all newer ones",
            "a state that is broken fails again soon",
            needs=RESTARTS,
        ),
        _ft(
            "--ft-snapshot-keep",
            _SECONDS,
            0.0,
            "So often the snapshots of one step are copied to another node, so that the loss of a "
            "node costs no more than the time since then; 0 for never. Give it to all launchers",
            "takes twice the memory and the network",
            needs=NODES,
        ),
        _ft(
            "--ft-snapshot-dir",
            AbsolutePaths(many=False),
            None,
            "Folder, shared or one per node, to which a job that fails or is signalled writes "
            "its newest snapshot; a new job with as many ranks begins from it. One folder for "
            "each training",
            "snapshots end with the job",
        ),
        _ft(
            "--ft-snapshot-dir-timeout",
            _SECONDS,
            60.0,
            "How long the end of the job waits for that",
            "a scheduler that ends a job often kills it within minutes",
        ),
    ),
    *_fields(
        "Restarting",
        "max_no_progress_cycles",
        "min_progress_iterations",
        "checkpoint_iteration_file",
    ),
    *under(
        "Restarting",
        _ft(
            "--ft-max-same-failures",
            Numeric("cycles", least=0, whole=True),
            0,
            "Stop after this many cycles in a row with the same exception at the same line, "
            "without known progress; 0 for never",
            "a fault of one batch or node may be gone with the next start",
        ),
        _ft(
            "--ft-no-restart-exit-code",
            Numeric("code", counted=False, least=1, most=255, whole=True),
            93,
            "Exit code that tells a scheduler not to restart the job; a rank that exits with it "
            "(not with 1) asks for that",
            "nvidia-resiliency-ext's",
        ),
    ),
    *_fields("Stopping", "check_remaining_processes"),
    *under(
        "Detecting hangs",
        _ft(
            "--ft-cfg-path",
            Text("FILE", null=False),
            None,
            "YAML file with a map named fault_tolerance, at any depth; options override it",
            in_env=True,
        ),
        _ft(
            "--ft-ignore-missing-cfg",
            None,
            False,
            "Use defaults if that file, or its map, is missing or empty",
            "it is mostly a mistake",
        ),
    ),
    *_fields(
        "Detecting hangs",
        "initial_rank_heartbeat_timeout",
        "section_ends_initial_timeout",
        "rank_heartbeat_timeout",
        "rank_section_timeouts",
        "rank_out_of_section_timeout",
        "first_call_timeout",
        "exit_timeout",
        "evidence_timeout",
        "num_warmup_iterations",
        "auto_heartbeat",
        "auto_heartbeat_floor",
        "auto_kill",
        "safety_factor",
        "learned_timeout_floor",
        "learned_timeouts_below_given",
        "rank_termination_signal",
        "exception_grace",
        "install_exception_hook",
    ),
    *_fields("Output", "log_level"),
    *under(
        "Output",
        _ft(
            "--ft-log-format",
            Choice(["text", "json"]),
            "text",
            "Form of holdfast's lines; json: one object per line",
            "people read it",
            in_env=True,
        ),
        _ft(
            "--ft-restarter-lines",
            None,
            False,
            "Write lines [NestedRestarter] name=[InJob] state=... to stdout, for a program that "
            "restarts this job from outside",
            "stdout is the script's",
            in_env=True,
        ),
    ),
    *_fields("Output", "restart_check_interval"),
    *under(
        "Output",
        _ft(
            "--ft-per-cycle-applog-prefix",
            AbsolutePaths(many=False),
            None,
            "One file per cycle with the output of all ranks, each line after its rank: "
            "/logs/run.log gives /logs/run_cycle0.log",
            in_env=True,
        ),
        _ft(
            "--ft-keep-runs",
            Numeric("runs", least=1, whole=True),
            None,
            "At the start, remove runs of this node from the log folder, but for the newest and "
            "those that are alive",
            "all stay; see holdfast prune",
            in_env=True,
        ),
        *(_ft(*row, idle=NOT_YET, in_env=True) for row in _LOG_SERVICE),
    ),
    *_fields("Output", "cycle_info_dir", "cycle_info_job_id"),
    *_fields(
        "Health",
        "node_health_check_interval",
        "enable_nic_monitor",
        "enable_nic_healthcheck",
        "pci_topo_file",
        "link_down_path_template",
        "link_state_path_template",
        "enable_dist_storage_healthcheck",
        "storage_healthcheck_path",
        "gpu_memory_reclaim_timeout",
        "gpu_memory_tolerance_mb",
        "gpu_memory_poll_interval",
    ),
    *under(
        "Health",
        _ft(
            "--ft-node-health-check-endpoint",
            Text("SOCKET", null=False),
            None,
            "Unix socket (/path, ./path or unix:///path) of a gRPC service that is asked before "
            "each start whether this node is healthy",
        ),
        _ft(
            "--ft-host-checks",
            Flag(),
            True,
            "Check this host before ranks start and while they run; a broken node leaves the job",
            "a spare takes over before ranks fail on a broken GPU",
        ),
    ),
    *under(
        "Metrics and hooks",
        _ft(
            "--ft-metrics-port",
            _PORT,
            None,
            "Serve /metrics for Prometheus, /healthz and /readyz on this port of each node (0: "
            "any that is free); needs holdfast[metrics]",
            "nothing listens",
            in_env=True,
        ),
        _ft(
            "--ft-metrics-host",
            Text("ADDRESS", null=False),
            None,
            "Address that metrics are served at",
            "all of them",
            in_env=True,
        ),
        _ft(
            "--ft-on-incident",
            Text("COMMAND", null=False),
            None,
            "Command that is started after an incident, with the path of its incident.json as "
            "last argument; it has 60 s",
            in_env=True,
        ),
        _ft(
            "--ft-on-incident-nodes",
            Choice(["one", "all"]),
            "one",
            "Nodes that start it: one of the job, or each, with its own incident.json",
            "people want one message; all is for a command that looks at its node",
            in_env=True,
        ),
        _ft(
            "--ft-observers",
            CommaList(),
            None,
            "Entry points of the group holdfast.observers, called with every event in a process "
            "of their own",
            in_env=True,
        ),
    ),
    *_fields(
        "Explaining failures",
        "attrsvc_host",
        "attrsvc_port",
        "attribution_endpoint",
        "attribution_analysis_backend",
        "attribution_export_url",
        "attribution_llm_api_key_file",
        "attribution_llm_base_url",
        "attribution_llm_model",
        "attribution_log_level",
        "attribution_startup_timeout",
        "attribution_stop_action",
    ),
    *_fields(
        "Compatibility",
        "workload_check_interval",
        "skip_section_response",
    ),
]
