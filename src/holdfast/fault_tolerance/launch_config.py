"""The arguments of torch's launcher API, and the plan that they come to.

Fields and their order are those of ``torch.distributed.launcher.api.LaunchConfig``, so that a
program changes its import and nothing else; further ones follow. The values go through the option
table of ``ft_launcher``, which refuses the same values here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.options.arguments import UsageError, parse_args
from holdfast.options.ft_options import ANY_FAILED
from holdfast.options.launch_options import DEFAULT_SIGNALS
from holdfast.options.plan import LaunchPlan, make_plan

_RDZV_TIMEOUT_S = 900
_LIKE_OPTIONS = (
    *("nproc_per_node", "role", "rdzv_endpoint", "rdzv_backend", "max_restarts", "local_addr"),
    *("signals_to_handle", "shutdown_timeout", "term_timeout", "workers_stop_timeout"),
)
"""Fields that are options of the same names."""
_WITHOUT_EFFECT = ("monitor_interval", "start_method", "event_log_handler")


@dataclass
class LaunchConfig:
    """A job that a program starts. Times are seconds.

    Attributes:
        min_nodes: Least number of nodes.
        max_nodes: Greatest number of nodes.
        nproc_per_node: Ranks on this node.
        logs_specs: torch's ``DefaultLogsSpecs``: folder, redirects, tee, ranks shown. None: output
            goes to the console.
        run_id: Name of the job, the same on all nodes; empty: a random one, for one node.
        role: Name of the ranks' role.
        rdzv_endpoint: HOST:PORT of the store where launchers of several nodes meet.
        rdzv_backend: How they meet; torch's default is ``etcd``.
        rdzv_configs: Details of it, as ``--rdzv-conf`` takes them.
        rdzv_timeout: The key ``timeout`` of ``rdzv_configs``; -1: not given.
        max_restarts: Restarts until the job has failed.
        monitor_interval: Without effect: the end of a rank wakes the launcher.
        start_method: Without effect: ranks are always programs, which ``spawn`` comes close to.
        log_line_prefix_template: Starts a teed line.
        metrics_cfg: Without effect.
        local_addr: Address of this node for the others; None: looked up.
        event_log_handler: Without effect: events are always written to the run's folder.
        numa_options: torch's ``NumaOptions``; None: ranks are not bound.
        signals_to_handle: Names of the signals that are passed on to ranks.
        duplicate_stdout_filters: Lines of stdout that hold one of these texts are copied.
        duplicate_stderr_filters: Lines of stderr that hold one of these texts are copied.
        virtual_local_rank: Each rank sees one GPU only, as device 0.
        shutdown_timeout: torch's name for ``term_timeout``, used where that is None.
        fault_tol_cfg: How ranks are watched; None: the defaults.
        term_timeout: From a signal passed on to SIGKILL; None: ``shutdown_timeout``, else 1800.
        workers_stop_timeout: From SIGTERM to SIGKILL when ranks are stopped for a restart.
        restart_policy: ``any-failed`` or ``min-healthy``.

    Raises:
        ValueError: ``shutdown_timeout`` is negative.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Any = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "c10d"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = DEFAULT_SIGNALS
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None
    fault_tol_cfg: FaultToleranceConfig | None = None
    term_timeout: float | None = None
    workers_stop_timeout: float = 15.0
    restart_policy: str = ANY_FAILED

    def __post_init__(self) -> None:
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        self.rdzv_configs.setdefault("timeout", _RDZV_TIMEOUT_S)
        if self.shutdown_timeout is not None and self.shutdown_timeout < 0:
            raise ValueError(f"shutdown_timeout must be at least 0, got {self.shutdown_timeout}")


def plan_of(
    config: LaunchConfig, words: list[str], environ: Mapping[str, str], *, name: str
) -> LaunchPlan:
    """Resolve a configuration.

    Args:
        config: Of the job.
        words: The command of a rank, in the words of ``ft_launcher``: options and script, ...
        environ: The program's environment. ``PET_`` variables are a command line's, and not read.
        name: Of script or function, for the log.

    Raises:
        UsageError: A value cannot be used; names the option that takes it.
    """
    environ = {key: value for key, value in environ.items() if not key.startswith("PET_")}
    args = parse_args([*_options(config), *words], environ)
    plan = make_plan(args, environ, config=config.fault_tol_cfg)
    idle = (f"metrics_cfg: without effect: {sorted(config.metrics_cfg)}",)
    return dataclasses.replace(
        plan,
        name=name,
        log_line_prefix_template=config.log_line_prefix_template or plan.log_line_prefix_template,
        warnings=plan.warnings + (idle if config.metrics_cfg else ()),
    )


def _options(config: LaunchConfig) -> list[str]:
    # Those without effect are worth a line only where a program has chosen them.
    usual = {each.name: each.default for each in dataclasses.fields(config)}
    idle = [name for name in _WITHOUT_EFFECT if getattr(config, name) != usual[name]]
    given: dict[str, Any] = {
        **{name.replace("_", "-"): getattr(config, name) for name in (*_LIKE_OPTIONS, *idle)},
        "nnodes": f"{config.min_nodes}:{config.max_nodes}",
        "rdzv-id": config.run_id or "none",
        "rdzv-conf": _rdzv_conf(config.rdzv_configs),
        "node-rank": config.rdzv_configs.get("rank"),
        "duplicate-stdout-filters": _comma_list(config.duplicate_stdout_filters),
        "duplicate-stderr-filters": _comma_list(config.duplicate_stderr_filters),
        "ft-restart-policy": config.restart_policy,
        "numa-binding": _numa_mode(config.numa_options),
        **_logs(config.logs_specs),
    }
    options = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return [*options, *(["--virtual-local-rank"] if config.virtual_local_rank else [])]


def _rdzv_conf(configs: Mapping[str, Any]) -> str:
    pairs = []
    for key, value in configs.items():
        pair = f"{key}={value}"
        if "," in pair:
            raise UsageError(f"rdzv_configs: {key}={value!r} cannot be used; it has a comma")
        if key != "rank" and value not in (None, ""):
            pairs.append(pair)
    return ",".join(pairs)


def _comma_list(texts: list[str] | None) -> str | None:
    return ",".join(text.replace(",", ",,") for text in texts) if texts else None


def _numa_mode(options: Any) -> str | None:
    if options is None:
        return None
    return str(getattr(options.affinity_mode, "value", options.affinity_mode))


def _logs(specs: Any) -> dict[str, Any]:
    """Options for torch's ``DefaultLogsSpecs``, not all of which is public."""
    if specs is None:
        return {}
    from holdfast.base.torch_private import log_choices  # noqa: PLC0415 - imports torch

    try:
        folder = specs.root_log_dir
        redirects, tee, shown = log_choices(specs)
    except AttributeError:
        raise UsageError(
            f"logs_specs: {type(specs).__name__} cannot be used; it takes torch's DefaultLogsSpecs "
            "or a class derived from it"
        ) from None
    return {
        "log-dir": None if folder in (None, "None", "/dev/null") else folder,
        "redirects": _streams(redirects),
        "tee": _streams(tee),
        "local-ranks-filter": ",".join(map(str, sorted(shown))) if shown else None,
    }


def _streams(streams: Any) -> str:
    if isinstance(streams, Mapping):
        return ",".join(f"{rank}:{int(bits)}" for rank, bits in streams.items()) or "0"
    return str(int(streams))
