"""The plan of one launcher: a command line and an environment, resolved.

    argv, PET_* --parse_args--> Arguments --make_plan--> LaunchPlan --agent--> ranks
                                   |                         ^
                                   +--> YAML file -----------+

Every mistake that can be found before a process is started is found here. Reads its arguments, the
configuration file, and through :class:`Machine` a few facts about the node. Times are seconds.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.base import facts
from holdfast.base.pure.switches import is_set
from holdfast.base.pure.wording import count
from holdfast.errors import ConfigError
from holdfast.fault_tolerance.config import (
    FaultToleranceConfig,
    Resolved,
    doubts,
    resolve,
)
from holdfast.net.pure.address import bare_host
from holdfast.options import forms, without_effect
from holdfast.options.cluster_env import nodes_by_default, read_cluster
from holdfast.options.numa import Prefixes, bindings
from holdfast.options.open_files import affordable
from holdfast.options.option import UsageError
from holdfast.options.options import BY_DEST
from holdfast.options.values import Unacceptable
from holdfast.watch.rank.auto_start import StartHook

if TYPE_CHECKING:
    from holdfast.events.observer_messages import ObserverConfig as Observed
    from holdfast.health.messages import HealthConfig
    from holdfast.job.pure.workload import Workload
    from holdfast.options.machine import Machine
    from holdfast.options.meeting_plan import MeetingPlan

LOCAL_RANK_MACRO = "${local_rank}"
"""Where this stands in a rank's command, its local rank is put, as torchrun does."""
DEFAULT_PREFIX = "[${role_name}${local_rank}]:"
_RUN_PATH = """\
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


_FROM_STDIN = "-"
"""The path of a script that Python reads from its stdin."""
_TORCHS_BACKENDS = ("c10d", "static", "etcd", "etcd-v2")


@dataclass(frozen=True)
class WarmStandby:
    """Parked interpreters, from which ranks restart without importing.

    Attributes:
        preload: Modules to import besides those that are seen in a rank.
        delay_s: A cycle's age before it is steady, where no rank reports in.
        memory_mib_max: All parked processes of the node together may have so much.
        at_start: Prepare while waiting for the first cycle, too.
    """

    preload: tuple[str, ...] = ()
    delay_s: float = 3.0
    memory_mib_max: int = 16384
    at_start: bool = False


@dataclass(frozen=True)
class LaunchPlan:
    """One node's part of a job; a field without a description has the value of its option.

    Attributes:
        command: Of a rank; ``${local_rank}`` in it stands for its local rank.
        numa: By local rank, words before it that bind it to CPUs; empty: no rank is bound.
        nproc_per_node: Ranks on this node, at least 1.
        name: The script, module or program as the user calls it.
        signal_groups: Signals go to whole process groups and not to the rank's process alone: a
            program that is not python may be a shell, which passes nothing on to its children.
        master_port: Where rank 0 listens; ``None``: on a fresh free port in each cycle.
        applog: In files named after this path, one for each cycle, all output is kept, too.
        log_dir: Where this run's folder goes; ``None``: to a temporary folder.
        keep_runs: How many run folders of this node stay there; ``None``: all.
        redirects: By local rank, bits of the streams (1 stdout, 2 stderr) that go to files.
        tee: By local rank, bits of the streams that go to files and to the console.
        local_ranks_filter: Local ranks shown on the console; ``None``: all.
        stdin_rank: Local rank that reads the launcher's stdin.
        n_carried: Local ranks below this one may write through the launcher; the others have its
            own stdout and stderr, as it may not open enough files.
        log_line_prefix_template: Of a teed line; knows role_name, rank, local_rank, hostname.
        counts_steps: Optimizer steps are watched while no timeout of a rank runs.
        start_hook: Settings for the first lines of a rank; None: it is no Python.
        warm: How ranks restart from parked interpreters; ``None``: they don't.
        why_cold: Why they cannot, although it is asked for; ``None``: they can.
        snapshot_memory: Bytes for snapshots of this node's ranks; ``None``: a quarter of the rest.
        snapshot_keep_s: From one step that is kept at a peer node to the next; 0: none is.
        snapshot_dir: Folder in which snapshots outlive the job; ``None``: they do not.
        snapshot_dir_timeout_s: How long the job's end waits for the bytes written there.
        health_endpoint: Path of the socket of this node's health service.
        care: Health checks of this host; ``None``: none.
        observing: Metrics and hooks; ``None``: none.
        meeting: How the launchers of a job of several nodes meet; ``None``: this node is all.
        workload: Compared by the launchers of a job; ``None``: this node is all.
    """

    command: tuple[str, ...]
    numa: Prefixes
    nproc_per_node: int
    ft: FaultToleranceConfig
    name: str
    signal_groups: bool
    min_nodes: int
    max_nodes: int
    run_id: str
    role: str
    max_restarts: int
    restart_window_s: float | None
    restart_backoff_s: float
    max_same_failures: int
    no_restart_exit_code: int
    restart_policy: str
    master_addr: str
    master_port: int | None
    workers_stop_timeout_s: float
    term_timeout_s: float
    signals_to_handle: tuple[int, ...]
    applog: str | None
    log_dir: str | None
    keep_runs: int | None
    log_level: int
    log_to_stdout: bool
    log_format: str
    restarter_lines: bool
    redirects: Mapping[int, int]
    tee: Mapping[int, int]
    local_ranks_filter: frozenset[int] | None
    stdin_rank: int
    n_carried: int
    duplicate_stdout_filters: tuple[str, ...]
    duplicate_stderr_filters: tuple[str, ...]
    log_line_prefix_template: str
    virtual_local_rank: bool
    monitors_enabled: bool
    counts_steps: bool
    start_hook: StartHook | None
    warm: WarmStandby | None
    why_cold: str | None
    snapshot_memory: int | None
    snapshot_progress: int
    snapshot_keep_s: float
    snapshot_dir: str | None
    snapshot_dir_timeout_s: float
    health_endpoint: str | None
    care: HealthConfig | None
    observing: Observed | None
    meeting: MeetingPlan | None
    workload: Workload | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    def command_for(self, local_rank: int) -> list[str]:
        """The command of one rank."""
        prefix = self.numa[local_rank] if self.numa else ()
        own = (word.replace(LOCAL_RANK_MACRO, str(local_rank)) for word in self.command)
        return [*prefix, *own]


def make_plan(
    args: Any,
    environ: Mapping[str, str],
    machine: Machine = facts,
    config: FaultToleranceConfig | None = None,
) -> LaunchPlan:
    """Resolve what :func:`.parse_args` or the parser of :func:`.get_args_parser` gave.

    ``config``: how ranks are watched; None: as file and options say.

    Raises:
        UsageError: Something on the command line or in the environment cannot be used.
        ConfigError: The configuration file cannot be used.
    """
    if args.training_script is None:  # with --version and the like, which answer and start nothing
        raise UsageError("no script to run: these words only print something and exit")
    _check_backend(args.rdzv_backend, machine)
    nodes = min_nodes, max_nodes = _node_count(args, environ)
    nproc = _nproc(args, environ, machine)
    entry = _entrypoint(args, environ, machine)
    warm, why_cold = _warm(args, entry)
    resolved = resolve(args) if config is None else Resolved(config, {}, doubts(config))
    config = resolved.config
    warnings = [*getattr(args, "warnings", ()), *resolved.warnings]
    shown = _meaning(args, "local_ranks_filter")
    endpoint = _health_endpoint(args, machine, warnings)
    meeting, workload = _meeting(args, entry, environ, config, nodes, machine)
    warnings += meeting.warnings if meeting else ()
    warnings += without_effect.warnings(args, resolved, environ)
    if later := without_effect.later(args, config):
        warnings.append(f"accepted, but without effect so far: {', '.join(later)}")
    if nproc > 1 and "OMP_NUM_THREADS" not in environ:
        warnings.append(
            f"OMP_NUM_THREADS is not set; each of the {nproc} ranks gets 1, as with torchrun"
        )
    if unknown := forms.unknown_signals(args.signals_to_handle):
        warnings.append(
            f"--signals-to-handle: {', '.join(map(repr, unknown))} is left out, as it is not the "
            "name of a signal"
        )
    redirects, tee = _streams(args, "redirects", nproc), _streams(args, "tee", nproc)
    fits = affordable(
        machine.open_files_max(),
        [_files_of_output(args, redirects[rank] | tee[rank]) for rank in range(nproc)],
        monitored=not is_set(environ, "NVRX_DISABLE_RANK_MONITORS"),
    )
    if fits.warning:
        warnings.append(fits.warning)
    is_python = entry.kind != "program"
    return LaunchPlan(
        command=entry.command,
        # nvidia-resiliency-ext runs a script of --run-path in its own process, and binds nothing
        numa=bindings(args.numa_binding, nproc, environ, machine)
        if args.numa_binding or entry.kind != "run-path"
        else (),
        nproc_per_node=nproc,
        ft=config,
        name=args.training_script,
        signal_groups=entry.kind == "program",
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        run_id=_run_id(args, max_nodes, machine),
        role=args.role,
        max_restarts=args.max_restarts,
        restart_window_s=args.ft_restart_window,
        restart_backoff_s=args.ft_restart_backoff,
        max_same_failures=args.ft_max_same_failures,
        no_restart_exit_code=args.ft_no_restart_exit_code,
        restart_policy=args.ft_restart_policy,
        master_addr=_master_addr(args, machine),
        master_port=args.master_port or None,
        workers_stop_timeout_s=args.workers_stop_timeout,
        term_timeout_s=args.term_timeout,
        signals_to_handle=_meaning(args, "signals_to_handle"),
        applog=args.ft_per_cycle_applog_prefix,
        log_dir=args.log_dir or None,
        keep_runs=args.ft_keep_runs,
        log_level=config.log_level,
        log_to_stdout=is_set(environ, "NVRX_LOG_TO_STDOUT"),
        log_format=args.ft_log_format,
        restarter_lines=args.ft_restarter_lines,
        redirects=redirects,
        tee=tee,
        local_ranks_filter=shown,
        stdin_rank=_stdin_rank(args, nproc, shown, machine),
        n_carried=fits.n_carried,
        duplicate_stdout_filters=tuple(filter(None, args.duplicate_stdout_filters)),
        duplicate_stderr_filters=tuple(filter(None, args.duplicate_stderr_filters)),
        log_line_prefix_template=args.log_line_prefix_template
        or environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
        or DEFAULT_PREFIX,
        virtual_local_rank=args.virtual_local_rank,
        warm=warm,
        why_cold=why_cold,
        snapshot_memory=args.ft_snapshot_memory,
        snapshot_progress=args.ft_snapshot_progress,
        snapshot_keep_s=args.ft_snapshot_keep,
        snapshot_dir=args.ft_snapshot_dir or None,
        snapshot_dir_timeout_s=args.ft_snapshot_dir_timeout,
        health_endpoint=endpoint,
        care=_care(args, config, environ, nproc, endpoint) if args.ft_host_checks else None,
        observing=_observing(args, environ, machine),
        meeting=meeting,
        workload=workload,
        monitors_enabled=fits.monitored,
        counts_steps=(counts := fits.monitored and config.auto_heartbeat and is_python),
        start_hook=StartHook(counts, config.exception_grace_in_force) if is_python else None,
        warnings=tuple(warnings),
        notes=tuple(without_effect.notes(args, resolved, is_alone=meeting is None)),
    )


# ------------------------------------------------------------------ parts of the plan
class _Entrypoint(NamedTuple):
    kind: str
    command: tuple[str, ...] = ()


def _entrypoint(args: Any, environ: Mapping[str, str], machine: Machine) -> _Entrypoint:
    script: str = args.training_script
    words = tuple(args.training_script_args)
    path = script.replace(LOCAL_RANK_MACRO, "0")
    if args.no_python and not args.run_path:
        if not machine.program_exists(path, environ):
            raise UsageError(f"no such program: {script!r}")
        return _Entrypoint("program", (script, *words))
    python = sys.executable if args.run_path else environ.get("PYTHON_EXEC") or sys.executable
    if python != sys.executable and not machine.program_exists(python, environ):
        raise UsageError(f"PYTHON_EXEC: no such program: {python!r}")
    if args.module and not args.run_path:
        # another interpreter has other packages
        if python == sys.executable and not machine.module_exists(script):
            raise UsageError(f"no such module: {script!r}")
        return _Entrypoint("module", (python, "-u", "-m", script, *words))
    if path != _FROM_STDIN and not machine.path_exists(path):
        raise UsageError(
            f"no such script: {script!r}; give -m before a module, --no-python before a program"
        )
    if args.run_path:
        return _Entrypoint("run-path", (python, "-u", "-c", _RUN_PATH, script, *words))
    return _Entrypoint("script", (python, "-u", script, *words))


def _warm(args: Any, entry: _Entrypoint) -> tuple[WarmStandby | None, str | None]:
    """How ranks restart from parked interpreters; or, where that is asked for, why they cannot."""
    if not (args.ft_warm_start or (args.ft_warm_standby and args.max_restarts > 0)):
        return None, None
    if args.training_script == _FROM_STDIN:
        return None, "the script is read from stdin"
    if entry.kind == "program":
        return None, "with --no-python it is not known what the program does"
    if entry.command[0] != sys.executable:
        return None, "PYTHON_EXEC is another interpreter than the launcher's"
    warm = WarmStandby(
        preload=tuple(filter(None, args.ft_warm_preload)),
        delay_s=args.ft_warm_standby_delay,
        memory_mib_max=args.ft_warm_standby_memory_mb,
        at_start=args.ft_warm_start,
    )
    return warm, None


def _health_endpoint(args: Any, machine: Machine, warnings: list[str]) -> str | None:
    """Path of the health service's socket; None, with a warning: it is none that can be asked."""
    text: str | None = args.ft_node_health_check_endpoint
    if not text:
        return None
    try:
        return machine.absolute(forms.read_uds(text))
    except Unacceptable:
        warnings.append(
            f"--ft-node-health-check-endpoint: {text!r} is not the path of a Unix socket (/path, "
            "./path or unix:///path); no health service is asked"
        )
        return None


def _care(
    args: Any,
    config: FaultToleranceConfig,
    environ: Mapping[str, str],
    nproc: int,
    endpoint: str | None,
) -> HealthConfig:
    from holdfast.health.messages import HealthConfig  # noqa: PLC0415 - where used

    paths = config.storage_healthcheck_path or ""
    return HealthConfig(
        nproc=nproc,
        visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
        folders=tuple(filter(None, (args.log_dir, environ.get("TMPDIR") or "/tmp", "/dev/shm"))),  # noqa: S108
        endpoint=endpoint,
        nic_state=config.enable_nic_healthcheck,
        nic_monitor=config.enable_nic_monitor,
        storage=config.enable_dist_storage_healthcheck,
        storage_paths=tuple(filter(None, (path.strip() for path in paths.split(",")))),
        pci_topo_file=config.pci_topo_file,
        link_down_path_template=config.link_down_path_template,
        link_state_path_template=config.link_state_path_template,
        interval_s=config.node_health_check_interval,
        reclaim_timeout_s=config.gpu_memory_reclaim_timeout,
        reclaim_tolerance_mib=config.gpu_memory_tolerance_mb,
        reclaim_poll_s=config.gpu_memory_poll_interval,
    )


_SHELL_WORDS = frozenset(("|", "||", "&", "&&", ";", ">", ">>", "<", "2>&1"))


def _observing(args: Any, environ: Mapping[str, str], machine: Machine) -> Observed | None:
    port, names = args.ft_metrics_port, args.ft_observers or ()
    try:
        command = tuple(shlex.split(args.ft_on_incident or ""))
    except ValueError as error:
        raise UsageError(f"--ft-on-incident: {args.ft_on_incident!r}: {error}") from None
    if port is None and not command and not names:
        return None
    if port is not None and not machine.module_exists("prometheus_client"):
        raise UsageError(
            "--ft-metrics-port needs prometheus_client, which is not installed: "
            "pip install 'holdfast[metrics]'"
        )
    if for_a_shell := _SHELL_WORDS.intersection(command):
        raise UsageError(
            f"--ft-on-incident: no shell is started, so {min(for_a_shell)!r} would be an argument; "
            "give a script, or: sh -c 'COMMAND with \"$1\"' hook"
        )
    if command and not machine.program_exists(command[0], environ):
        raise UsageError(f"--ft-on-incident: no program that may be executed: {command[0]!r}")
    from holdfast.events import observer_messages  # noqa: PLC0415 - where used

    registered = machine.plug_in_names(observer_messages.GROUP) if names else ()
    if unknown := sorted({*names} - {*registered}):
        raise UsageError(
            f"--ft-observers: {unknown[0]!r} cannot be used; installed packages register "
            f"{', '.join(sorted(registered)) or 'none'} as entry points of "
            f"{observer_messages.GROUP}"
        )
    on_every_node = args.ft_on_incident_nodes == "all"
    return observer_messages.ObserverConfig(
        port, args.ft_metrics_host or "", command, tuple(names), on_every_node
    )


def _nproc(args: Any, environ: Mapping[str, str], machine: Machine) -> int:
    wanted: int | str = _meaning(args, "nproc_per_node")
    if isinstance(wanted, int):
        return wanted
    gpus = 0 if wanted == "cpu" else machine.gpu_count(environ)
    if gpus is None:
        raise UsageError(
            f"--nproc-per-node: {wanted!r} cannot be used; GPUs of this kind are not counted, "
            "give their number"
        )
    if gpus == 0 and wanted == "gpu":
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        because = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
        raise UsageError(f"--nproc-per-node: 'gpu' cannot be used; this node shows no GPU{because}")
    return gpus or machine.cpu_count()


def _check_backend(name: str, machine: Machine) -> None:
    if name in _TORCHS_BACKENDS:
        return
    registered = machine.plug_in_names("torchrun.handlers")
    if name not in registered:
        raise UsageError(
            f"--rdzv-backend: {name!r} cannot be used; it takes {', '.join(_TORCHS_BACKENDS)}, or "
            "one that an installed package registers as an entry point of torchrun.handlers (here: "
            f"{', '.join(sorted(registered)) or 'none'})"
        )


def _run_id(args: Any, max_nodes: int, machine: Machine) -> str:
    """Torchrun's rule: a job that no other node can join needs no name that others know."""
    alone = max_nodes == 1 and not args.rdzv_endpoint and args.rdzv_id in ("", "none")
    run_id: str = args.rdzv_id
    return machine.random_id() if args.standalone or alone else run_id


def _node_count(args: Any, environ: Mapping[str, str]) -> tuple[int, int]:
    """MIN and MAX of ``--nnodes``; of the scheduler where the command line says nothing."""
    if args.standalone:
        return 1, 1
    if "nnodes" in getattr(args, "origins", ()):
        low, high = _meaning(args, "nnodes")
        return low, high
    try:
        by_default = nodes_by_default(read_cluster(environ))
    except ConfigError as error:
        raise UsageError(str(error)) from None
    return by_default, by_default


def _meeting(
    args: Any,
    entry: _Entrypoint,
    environ: Mapping[str, str],
    config: FaultToleranceConfig,
    nodes: tuple[int, int],
    machine: Machine,
) -> tuple[MeetingPlan, Workload] | tuple[None, None]:
    if nodes[1] == 1:
        return None, None
    from holdfast.options import meeting_plan  # noqa: PLC0415 - where used

    meeting = meeting_plan.make_meeting_plan(args, environ, config, nodes)
    return meeting, meeting_plan.own_workload(args, entry.kind, meeting, environ, machine)


def _streams(args: Any, dest: str, nproc: int) -> dict[int, int]:
    streams: int | dict[int, int] = _meaning(args, dest)
    if isinstance(streams, int):
        return dict.fromkeys(range(nproc), streams)
    return {local_rank: streams.get(local_rank, 0) for local_rank in range(nproc)}


def _files_of_output(args: Any, in_file: int) -> int:
    """Open files for a rank's output: pipes (stderr: always), files for streams ``in_file``."""
    n_files = 0
    for bit, filters in ((1, args.duplicate_stdout_filters), (2, args.duplicate_stderr_filters)):
        n_ways = bool(in_file & bit) + any(filters)
        has_pipe = n_ways or bit == 2 or args.ft_per_cycle_applog_prefix
        n_files += n_ways + bool(has_pipe)
    return n_files


def _master_addr(args: Any, machine: Machine) -> str:
    """As given, else this host; by the name that torchrun gives it, where that is no IPv4."""
    here = machine.loopback()
    if "master_addr" in getattr(args, "origins", ()) or here == "127.0.0.1":
        return bare_host(args.master_addr)
    return "localhost"


def _stdin_rank(args: Any, nproc: int, shown: Collection[int] | None, machine: Machine) -> int:
    """The local rank that is named, or the only one that a person sees, or the first.

    A person sees it at a terminal; a file is for the rank that reads it under torchrun.
    """
    named: int | None = args.ft_stdin_rank
    if named is not None and named >= nproc:
        raise UsageError(
            f"--ft-stdin-rank: there is no local rank {named}, as this node has "
            f"{count(nproc, 'rank')}; they are counted from 0"
        )
    seen = {*range(nproc)} if shown is None else {*range(nproc)} & {*shown}
    if named is not None:
        return named
    return seen.pop() if len(seen) == 1 and machine.has_terminal() else 0


def _meaning(args: Any, dest: str) -> Any:
    """What text means; a program may have put text into ``args`` that the parser lets not pass."""
    option, text = BY_DEST[dest], getattr(args, dest)
    assert isinstance(option.kind, forms.Shaped)
    try:
        return option.kind.read(text)
    except Unacceptable as error:
        raise option.refusal(option.name, text, error) from None
